// A collective whose calls are expectations.
#pragma once

#include <gmock/gmock.h>

#include "core/collective.h"

namespace mladcp {

class MockCollective : public Collective {
 public:
  MOCK_METHOD(int, rank, (), (const, override));
  MOCK_METHOD(int, world_size, (), (const, override));
  MOCK_METHOD(void, synchronize, (Stream stream), (override));
  MOCK_METHOD(void, run,
              (const CollectiveCall& call, const TensorView& out, const TensorView& in,
               Stream stream),
              (override));
};

}  // namespace mladcp
