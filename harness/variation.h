// How a probe or an injected fault changes what a rank runs: a changed plan, changed inputs, or a
// decorator. The clean run has no variation; production code knows none of this.
#pragma once

#include <memory>

#include "core/collective.h"
#include "core/config.h"
#include "core/decode.h"
#include "core/decode_plan.h"
#include "core/ops.h"
#include "core/prefill.h"
#include "core/prefill_plan.h"

namespace mladcp {

// Keeps decorators alive while their Ops are in use.
class OpsDecorator {
 public:
  virtual ~OpsDecorator() = default;
  virtual Ops ops() = 0;
};

class Variation {
 public:
  virtual ~Variation() = default;

  virtual void change_config(int /*rank*/, ParallelConfig& /*config*/) const {}
  virtual void change_plan(int /*rank*/, DecodePlan& /*plan*/) const {}
  virtual void change_inputs(int /*rank*/, DecodeInputs& /*inputs*/, Stream /*stream*/) const {}
  virtual void change_prefill_plan(int /*rank*/, PrefillPlan& /*plan*/) const {}
  virtual void change_prefill_inputs(int /*rank*/, PrefillInputs& /*inputs*/,
                                     Stream /*stream*/) const {}
  // Null when the operations, or the collective, stay as they are.
  virtual std::unique_ptr<OpsDecorator> decorate(int /*rank*/, const Ops& /*next*/) const {
    return nullptr;
  }
  virtual std::unique_ptr<Collective> decorate(int /*rank*/, Collective& /*next*/) const {
    return nullptr;
  }
};

}  // namespace mladcp
