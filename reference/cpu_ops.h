// The operations on the host, together.
#pragma once

#include "core/ops.h"
#include "reference/cpu_attention_ops.h"
#include "reference/cpu_cache_ops.h"
#include "reference/cpu_combine_ops.h"
#include "reference/cpu_query_ops.h"

namespace mladcp {

// Stateless apart from the thread budget (threads_per_rank of reference/parallel_for.h): one may
// serve several rank threads at once, each call using up to `threads`.
struct CpuOps {
  explicit CpuOps(int threads, int scheduled_sms = CpuAttentionOps::kScheduledSms)
      : query(threads), cache(threads), attention(threads, scheduled_sms), combine(threads) {}

  Ops ops() { return {query, cache, attention, combine}; }

  CpuQueryOps query;
  CpuCacheOps cache;
  CpuAttentionOps attention;
  CpuCombineOps combine;
};

}  // namespace mladcp
