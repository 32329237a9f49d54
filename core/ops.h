// What a device computes, as four references. Decode and prefill call these and a Collective, and
// nothing else: that is how a stage is seen, faulted and swapped.
#pragma once

#include "core/attention_ops.h"
#include "core/cache_ops.h"
#include "core/combine_ops.h"
#include "core/query_ops.h"

namespace mladcp {

struct Ops {
  QueryOps& query;
  CacheOps& cache;
  AttentionOps& attention;
  CombineOps& combine;
};

}  // namespace mladcp
