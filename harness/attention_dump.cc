#include "harness/attention_dump.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <utility>

#include "core/config.h"
#include "core/device.h"
#include "core/error.h"
#include "reference/host_rows.h"

namespace mladcp {
namespace {

[[noreturn]] void refuse(const SafetensorsFile& file, const std::string& what) {
  throw InvalidArgument(file.path + ": " + what);
}

TensorView typed_tensor(const SafetensorsFile& file, const char* tensor_name, int rank,
                        std::initializer_list<DType> dtypes) {
  const TensorView& view = file.tensor(tensor_name);
  std::string wanted;
  bool known = false;
  for (const DType dtype : dtypes) {
    known = known || view.dtype == dtype;
    wanted += (wanted.empty() ? "" : " or ") + std::string(name(dtype));
  }
  if (view.rank() != rank || !known) {
    refuse(file, fmt::format("{}, must be {} of {} axes", describe(view), wanted, rank));
  }
  return view;
}

void expect_extents(const SafetensorsFile& file, const TensorView& view, const Shape& shape) {
  if (view.shape != shape) {
    refuse(file,
           fmt::format("{}, must be {} to fit q and kv_cache", describe(view), to_string(shape)));
  }
}

double scale_of(const SafetensorsFile& file, const std::string& key) {
  const double value = file.metadata_number(key);
  if (!is_scale(value)) {
    refuse(file, fmt::format("metadata {} is {}, {}", key, value, kScaleRule));
  }
  return value;
}

TensorView paged_cache(const SafetensorsFile& file) {
  const TensorView& view = file.tensor("kv_cache");
  const bool with_head = view.rank() == 4 && view.size(2) == 1;
  const TensorView cache =
      typed_tensor(file, "kv_cache", with_head ? 4 : 3, {DType::kE4M3, DType::kBF16});
  return with_head ? cache.select(2, 0) : cache;
}

// An Inf or NaN in a query or a visible key makes every result right, or none.
void expect_finite(const SafetensorsFile& file, const TensorView& view) {
  std::vector<float> row(static_cast<std::size_t>(view.size(view.rank() - 1)));
  const TensorView rows =
      view.reshaped({view.elements() / view.size(view.rank() - 1), view.size(view.rank() - 1)});
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    load_row(row.data(), rows, offset_of(rows, i));
    for (const float value : row) {
      if (std::isfinite(value)) continue;
      refuse(file,
             fmt::format("{} holds {} in row {}: inputs must be finite", describe(view), value, i));
    }
  }
}

// The keys of request b in the order of their positions.
Tensor gathered_keys(const SafetensorsFile& file, const TensorView& cache, const TensorView& table,
                     std::int64_t b) {
  const std::int64_t length = index_at(file.tensor("seq_lens"), b);
  const std::int64_t page_size = cache.size(1);
  if (length < 0 || length > table.size(1) * page_size) {
    refuse(file, fmt::format("seq_lens[{}] is {}, must be in 0..{} ({} table columns of {} keys)",
                             b, length, table.size(1) * page_size, table.size(1), page_size));
  }
  Tensor keys(host_device(), cache.dtype, {length, cache.size(2)}, "keys");
  for (std::int64_t k = 0; k < length; ++k) {
    const std::int64_t column = k / page_size;
    const std::int64_t page = index_at(table.select(0, b), column);
    if (page < 0 || page >= cache.size(0)) {
      refuse(file, fmt::format("block_table[{}, {}] is page {}, kv_cache has pages 0..{}", b,
                               column, page, cache.size(0) - 1));
    }
    copy_row(keys, offset_of(keys, k), cache, offset_of(cache, page, k % page_size));
  }
  return keys;
}

// One new token sees all keys either way.
bool is_causal(const SafetensorsFile& file, std::int64_t q_len) {
  const auto found = file.metadata.find("causal");
  if (found == file.metadata.end()) {
    if (q_len == 1) return false;
    refuse(file, fmt::format("metadata causal is missing and q has {} tokens a request: add True "
                             "where each sees the keys up to its own, False where all see all",
                             q_len));
  }
  if (found->second != "True" && found->second != "False") {
    refuse(file, "metadata causal is '" + found->second + "', must be True or False");
  }
  return found->second == "True";
}

}  // namespace

AttentionDump read_attention_dump(const std::string& path) {
  AttentionDump dump{read_safetensors(path), {}, {}};
  const SafetensorsFile& file = dump.file;
  const TensorView query = typed_tensor(file, "q", 4, {DType::kE4M3, DType::kBF16});
  const TensorView cache = paged_cache(file);
  const TensorView table = typed_tensor(file, "block_table", 2, {DType::kI32});
  const TensorView out = typed_tensor(file, "out", 4, {DType::kBF16, DType::kF32});
  const std::int64_t batch = query.size(0), q_len = query.size(1), heads = query.size(2);
  const std::int64_t width = cache.size(2);
  if (query.dtype == DType::kE4M3 && cache.dtype != DType::kE4M3) {
    refuse(file, describe(query) + " needs an e4m3 kv_cache, got " + describe(cache));
  }
  if (cache.size(1) < 1) refuse(file, describe(cache) + ": pages must hold at least one key");
  expect_extents(file, query, {batch, q_len, heads, width});
  expect_extents(file, table, {batch, table.size(1)});
  expect_extents(file, typed_tensor(file, "seq_lens", 1, {DType::kI32}), {batch});
  expect_extents(file, out, {batch, q_len, heads, out.size(3)});
  expect_extents(file, typed_tensor(file, "lse", 3, {DType::kF32}), {batch, q_len, heads});
  if (out.size(3) < 1 || out.size(3) > width) {
    refuse(file, fmt::format("{}: the value width {} must be in 1..{}, the key's", describe(out),
                             out.size(3), width));
  }

  if (query.elements() == 0) refuse(file, describe(query) + ": there is nothing to judge");
  expect_finite(file, query);
  OracleProblem& problem = dump.problem;
  const bool causal = is_causal(file, q_len);
  for (std::int64_t b = 0; b < batch; ++b) {
    dump.keys.push_back(gathered_keys(file, cache, table, b));
    expect_finite(file, dump.keys.back());
    const std::int64_t length = dump.keys.back().shape()[0];
    for (std::int64_t j = 0; j < q_len; ++j) {
      problem.request.push_back(static_cast<std::int32_t>(b));
      problem.visible.push_back(causal ? length - q_len + j + 1 : length);
    }
  }
  for (const Tensor& keys : dump.keys) problem.keys.push_back(keys);
  problem.query = query.merged(0);
  problem.latent = out.size(3);
  problem.softmax_scale = scale_of(file, "softmax_scale");
  problem.query_scale = query.dtype == DType::kE4M3 ? scale_of(file, "q_scale") : 1.0;
  problem.key_scale = cache.dtype == DType::kE4M3 ? scale_of(file, "k_scale") : 1.0;
  return dump;
}

}  // namespace mladcp
