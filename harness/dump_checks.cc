#include "harness/dump_checks.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>

#include "core/device.h"
#include "core/error.h"
#include "harness/attention_dump.h"
#include "harness/bound_checks.h"
#include "harness/exact_checks.h"
#include "reference/device_lse.h"
#include "reference/error_bounds.h"

namespace mladcp {
namespace {

// What kernels that round so take; nothing: any. A bf16 kernel may widen an e4m3 cache, exactly.
struct Formats {
  const NumericsProfile& profile;
  std::optional<DType> query;
  std::optional<DType> cache;
};

const Formats kFormats[] = {{profiles::kCudaGenericFp8, {}, DType::kE4M3},
                            {profiles::kCudaGenericBf16, DType::kBF16, {}},
                            {profiles::kSm90Fp8, DType::kE4M3, DType::kE4M3},
                            {profiles::kSm90Fp8F16, DType::kE4M3, DType::kE4M3},
                            {profiles::kSm90Bf16, DType::kBF16, {}},
                            {profiles::kFlashMlaFp8, DType::kE4M3, DType::kE4M3}};

// Judged by the roundings of another format, a right kernel fails or a wrong one passes.
void expect_formats(const AttentionDump& dump, const NumericsProfile& profile) {
  for (const Formats& formats : kFormats) {
    if (formats.profile.name != profile.name) continue;
    const auto expect = [&](const TensorView& tensor, std::optional<DType> wanted) {
      if (!wanted || tensor.dtype == *wanted) return;
      throw InvalidArgument(
          fmt::format("{}: numerics {} is of {} in {}, got {}; name another "
                      "profile, or none for the one that fits",
                      dump.file.path, profile.name, name(*wanted), tensor.name, describe(tensor)));
    };
    expect(dump.file.tensor("q"), formats.query);
    expect(dump.file.tensor("kv_cache"), formats.cache);
  }
}

const NumericsProfile& profile_of(const AttentionDump& dump, const std::string& numerics) {
  const bool codes = dump.problem.query.dtype == DType::kE4M3;
  const bool quantised = dump.file.tensor("kv_cache").dtype == DType::kE4M3;
  if (numerics.empty()) {
    if (codes) return profiles::kSm90Fp8;
    return quantised ? profiles::kCudaGenericFp8 : profiles::kCudaGenericBf16;
  }
  const NumericsProfile& profile = profile_from_name(numerics);
  expect_formats(dump, profile);
  return profile;
}

bool sees_keys(const AttentionDump& dump, std::int64_t index, std::int64_t per_row) {
  return dump.problem.visible[static_cast<std::size_t>(index / per_row)] > 0;
}

// FlashMLA marks a row without keys by +inf, others by -inf: one mark for the comparison.
Tensor with_one_mark(const AttentionDump& dump) {
  Tensor lse = copied_to_host(dump.lse(), {});
  for (std::int64_t i = 0; i < lse.view().elements(); ++i) {
    float& value = lse.as<float>()[i];
    if (std::isinf(value) && !sees_keys(dump, i, lse.shape()[1])) {
      value = -std::numeric_limits<float>::infinity();
    }
  }
  return lse;
}

Check lse_check(const AttentionDump& dump, int rank) {
  const TensorView lse = dump.lse();
  std::int64_t wrong = 0;
  std::string first;
  for (std::int64_t i = 0; i < lse.elements(); ++i) {
    const float value = lse.as<const float>()[i];
    const bool sees = sees_keys(dump, i, lse.size(1));
    if (sees ? std::isfinite(value) : std::isinf(value)) continue;
    if (wrong++ == 0) {
      first = fmt::format("tensor lse{}: got {}, wanted {}", coordinates(lse.shape, i), value,
                          sees ? "a finite value" : "-inf or +inf (no visible keys)");
    }
  }
  return check_count("lse", rank, "finite exactly when a key is visible", wrong, first);
}

void judge(const AttentionDump& dump, const NumericsProfile& profile, int rank, int threads,
           std::vector<Check>& checks) {
  CombineRounding rounding;
  rounding.partial = dump.out().dtype;
  const ExpectedAttention expected =
      expect_decode(dump.problem, profile, rounding, threads).per_set[0];
  for (const double bound : expected.out.bound) {
    if (std::isfinite(bound)) continue;
    throw InvalidArgument(fmt::format(
        "{}: q, kv_cache and their scales are so large that no bound is finite; scale them down "
        "(softmax_scale {:g}, q_scale {:g}, k_scale {:g})",
        dump.file.path, dump.problem.softmax_scale, dump.problem.query_scale,
        dump.problem.key_scale));
  }
  const Tensor lse = with_one_mark(dump);
  checks.push_back(
      check_within("attention", rank, "output against fp64", dump.out(), expected.out));
  checks.push_back(check_within("attention", rank, "LSE against fp64", lse, expected.lse));
  if (profile.device_lse) {
    checks.push_back(check_within("attention", rank, "LSE against the tensor core's", lse,
                                  expect_device_lse(dump.problem, profile, 0, threads)));
  }
  checks.push_back(lse_check(dump, rank));
}

}  // namespace

std::vector<Check> judge_dumps(const std::vector<std::string>& files, const std::string& numerics,
                               int threads) {
  std::vector<AttentionDump> dumps;  // all of them are read before any is judged
  dumps.reserve(files.size());
  for (const std::string& path : files) dumps.push_back(read_attention_dump(path));
  std::vector<const NumericsProfile*> profiles;
  profiles.reserve(dumps.size());
  for (const AttentionDump& dump : dumps) profiles.push_back(&profile_of(dump, numerics));
  std::vector<Check> checks;
  for (std::size_t i = 0; i < dumps.size(); ++i) {
    judge(dumps[i], *profiles[i], static_cast<int>(i), threads, checks);
  }
  return checks;
}

}  // namespace mladcp
