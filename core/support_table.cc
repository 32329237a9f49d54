#include "core/support_table.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr std::array<std::int64_t, 4> kCudaPages = {16, 32, 64, 128};
constexpr std::span<const std::int64_t> kAnyPage = {};

constexpr std::array kTable = {
    DecodeSupport{"cpu", DType::kBF16, false, kAnyPage, 0, 0, 0},
    DecodeSupport{"cpu", DType::kE4M3, false, kAnyPage, 0, 0, 0},
    DecodeSupport{"cpu", DType::kE4M3, true, kAnyPage, 0, 0, 0},
    DecodeSupport{"cuda", DType::kBF16, false, kCudaPages, 512, 64, 0},
    DecodeSupport{"cuda", DType::kE4M3, false, kCudaPages, 512, 64, 0},
    DecodeSupport{"cuda", DType::kE4M3, true, kCudaPages, 512, 64, 0},
};

std::string pages_text(const DecodeSupport& row) {
  if (row.pages.empty()) return "any";
  std::string text;
  for (const std::int64_t page : row.pages) {
    text += (text.empty() ? "" : ", ") + std::to_string(page);
  }
  return text;
}

std::string widths_text(const DecodeSupport& row) {
  if (row.latent == 0) return "any";
  return std::to_string(row.latent) + ", " + std::to_string(row.rope);
}

std::string query_text(bool quantized) { return quantized ? "quantized" : "pair"; }

std::string limit_text(std::int64_t limit) { return limit == 0 ? "any" : std::to_string(limit); }

bool offers(const DecodeSupport& row, const ParallelConfig& config, const MlaDims& dims,
            std::int64_t q_len) {
  const bool page = row.pages.empty() || std::find(row.pages.begin(), row.pages.end(),
                                                   config.page_size) != row.pages.end();
  const bool widths = row.latent == 0 || (row.latent == dims.latent && row.rope == dims.rope);
  return row.cache == config.kv_dtype && row.quantized_query == config.quantized_query() && page &&
         widths && (row.max_q_len == 0 || q_len <= row.max_q_len);
}

}  // namespace

std::span<const DecodeSupport> support_table() { return kTable; }

void expect_supported(std::string_view implementation, const ParallelConfig& config,
                      const MlaDims& dims, std::int64_t q_len) {
  std::string offered;
  for (const DecodeSupport& row : kTable) {
    if (row.implementation != implementation) continue;
    if (offers(row, config, dims, q_len)) return;
    offered += "\n  cache " + std::string(name(row.cache)) + ", query " +
               query_text(row.quantized_query) + ", page " + pages_text(row) + ", L and R " +
               widths_text(row) + ", q_len " + limit_text(row.max_q_len);
  }
  throw Unsupported(
      std::string(implementation) + " does not offer cache " + std::string(name(config.kv_dtype)) +
      ", query " + query_text(config.quantized_query()) + ", page " +
      std::to_string(config.page_size) + ", L and R " + std::to_string(dims.latent) + ", " +
      std::to_string(dims.rope) + ", q_len " + std::to_string(q_len) + "; it offers:" + offered);
}

std::string support_table_markdown() {
  std::string text =
      "| implementation | cache | query | page | L, R | q_len | combine |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const DecodeSupport& row : kTable) {
    text += "| " + std::string(row.implementation) + " | " + std::string(name(row.cache)) + " | " +
            query_text(row.quantized_query) + " | " + pages_text(row) + " | " + widths_text(row) +
            " | " + limit_text(row.max_q_len) + " | all |\n";
  }
  return text;
}

}  // namespace mladcp
