// GoogleMock doubles of the operation interfaces: for tests of order, shapes and arguments.
#pragma once

#include <gmock/gmock.h>

#include "core/ops.h"

namespace mladcp {

class MockQueryOps : public QueryOps {
 public:
  MOCK_METHOD(void, absorb, (const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
  MOCK_METHOD(void, concat, (const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
  MOCK_METHOD(void, concat_quantize,
              (const TensorView&, const TensorView&, const TensorView&, float, Stream), (override));
  MOCK_METHOD(void, project_value,
              (const TensorView&, const TensorView&, const TensorView&, Stream), (override));
  MOCK_METHOD(void, project_keys_values,
              (const TensorView&, const TensorView&, const TensorView&, const TensorView&,
               const TensorView&, Stream),
              (override));
};

class MockCacheOps : public CacheOps {
 public:
  MOCK_METHOD(void, write,
              (const KvCache&, const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
  MOCK_METHOD(void, gather_and_dequantize,
              (const TensorView&, const KvCache&, const TensorView&, const ContextChunkTensors&,
               Stream),
              (override));
  MOCK_METHOD(void, reorganise, (const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
};

class MockAttentionOps : public AttentionOps {
 public:
  MOCK_METHOD(std::int64_t, num_parts, (const ScheduleShape&), (const, override));
  MOCK_METHOD(void, build_schedule,
              (const ScheduleTensors&, const TensorView&, const ScheduleShape&, Stream),
              (override));
  MOCK_METHOD(void, decode,
              (const TensorView&, const TensorView&, const Query&, const KvCache&,
               const DecodeRows&, const ScheduleTensors&, const DecodeScales&, const TensorView&,
               Stream),
              (override));
  MOCK_METHOD(std::int64_t, decode_workspace_bytes,
              (std::int64_t, const ScheduleShape&, std::int64_t), (const, override));
  MOCK_METHOD(void, causal,
              (const TensorView&, const TensorView&, const TensorView&, const TensorView&,
               const TensorView&, const TensorView&, std::int64_t, float, Stream),
              (override));
  MOCK_METHOD(void, context,
              (const TensorView&, const TensorView&, const TensorView&, const TensorView&,
               const TensorView&, const TensorView&, std::int64_t, const TensorView&, float,
               Stream),
              (override));
};

class MockCombineOps : public CombineOps {
 public:
  MOCK_METHOD(void, mask_empty, (const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
  MOCK_METHOD(void, correct, (const TensorView&, const TensorView&, const TensorView&, int, Stream),
              (override));
  MOCK_METHOD(void, merge,
              (const TensorView&, const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
  MOCK_METHOD(void, merge_into,
              (const TensorView&, const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
  MOCK_METHOD(void, pack, (const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
  MOCK_METHOD(void, unpack, (const TensorView&, const TensorView&, const TensorView&, Stream),
              (override));
  MOCK_METHOD(void, round_to, (const TensorView&, const TensorView&, Stream), (override));
};

// The four together; everything not expected is let through silently.
struct MockOps {
  testing::NiceMock<MockQueryOps> query;
  testing::NiceMock<MockCacheOps> cache;
  testing::NiceMock<MockAttentionOps> attention;
  testing::NiceMock<MockCombineOps> combine;

  MockOps() { ON_CALL(attention, num_parts).WillByDefault(testing::Return(1)); }
  Ops ops() { return {query, cache, attention, combine}; }
};

}  // namespace mladcp
