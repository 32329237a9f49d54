#include "harness/cuda_ranks.h"

namespace mladcp {

CudaRanks::CudaRanks(const std::vector<int>& cards, int first_rank) : first_rank_(first_rank) {
  for (const int card : cards) {
    std::unique_ptr<CudaDevice>& device = devices_[card];
    if (device == nullptr) device = std::make_unique<CudaDevice>(card);
    ranks_.push_back(std::make_unique<Rank>(*device));
  }
}

ScheduleParams CudaRanks::schedule_params(const ScheduleShape& shape) const {
  return ranks_.front()->ops.attention.schedule_params(shape);
}

const NumericsProfile& CudaRanks::numerics(const ParallelConfig& config, std::int64_t q_len) const {
  const DType query = config.quantized_query() ? DType::kE4M3 : DType::kBF16;
  return profile_from_name(ranks_.front()->ops.attention.decode_profile(
      query, config.kv_dtype, config.page_size, {config.gathered_heads(), q_len}));
}

PrefillFormats CudaRanks::prefill_formats() {
  PrefillFormats formats;
  formats.p_unit = 0x1p-8;      // bf16
  formats.fp32_unit = 0x1p-23;  // tensor cores truncate
  return formats;
}

}  // namespace mladcp
