#include "core/config.h"

#include <array>
#include <sstream>

#include "core/error.h"

namespace mladcp {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& got,
                         const std::string& remedy) {
  throw InvalidArgument(field + " = " + got + ": " + remedy);
}

void expect_positive(const char* field, std::int64_t value) {
  if (value <= 0) refuse(field, std::to_string(value), "must be at least 1");
}

void expect_at_most(const char* field, std::int64_t value, std::int64_t most) {
  if (value > most) {
    refuse(field, std::to_string(value), "must be at most " + std::to_string(most));
  }
}

void expect_divides(const char* field, std::int64_t value, const char* by_field, std::int64_t by) {
  if (value % by == 0) return;
  refuse(field, std::to_string(value),
         "must be a multiple of " + std::string(by_field) + " = " + std::to_string(by));
}

void expect_scale(const char* field, float value) {
  if (is_scale(value)) return;
  std::ostringstream got;
  got << value;  // to_string() prints -1e-9 as -0.000000
  refuse(field, got.str(), kScaleRule);
}

template <typename Enum, std::size_t count>
Enum from_name(const char* field, std::string_view text, const std::array<Enum, count>& all) {
  std::string known;
  for (const Enum value : all) {
    if (name(value) == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(name(value));
  }
  throw InvalidArgument(std::string(field) + " = '" + std::string(text) + "': use one of " + known);
}

}  // namespace

std::string_view name(QueryForm form) {
  switch (form) {
    case QueryForm::kAuto:
      return "auto";
    case QueryForm::kPair:
      return "pair";
    case QueryForm::kQuantized:
      return "quantized";
  }
  return "?";
}

std::string_view name(Combine combine) {
  switch (combine) {
    case Combine::kAllGatherReduceScatter:
      return "ag_rs";
    case Combine::kAllToAll:
      return "a2a";
    case Combine::kAllToAllPacked:
      return "a2a_packed";
  }
  return "?";
}

QueryForm query_form_from_name(std::string_view text) {
  return from_name("query", text,
                   std::array{QueryForm::kAuto, QueryForm::kPair, QueryForm::kQuantized});
}

Combine combine_from_name(std::string_view text) {
  return from_name(
      "combine", text,
      std::array{Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked});
}

bool ParallelConfig::quantized_query() const {
  if (query == QueryForm::kAuto) return kv_dtype == DType::kE4M3;
  return query == QueryForm::kQuantized;
}

void validate(const ParallelConfig& config) {
  expect_positive("heads", config.heads);
  expect_positive("tp", config.tp);
  expect_positive("dcp", config.dcp);
  expect_positive("interleave", config.interleave);
  expect_positive("page_size", config.page_size);
  expect_at_most("heads", config.heads, kMostHeads);
  expect_at_most("tp", config.tp, kMostHeads);
  expect_at_most("dcp", config.dcp, kMostHeads);
  expect_at_most("interleave", config.interleave, kMostPageSize);
  expect_at_most("page_size", config.page_size, kMostPageSize);
  expect_divides("tp", config.tp, "dcp", config.dcp);
  expect_divides("heads", config.heads, "tp", config.tp);
  expect_divides("page_size", config.page_size, "interleave", config.interleave);
  expect_scale("q_scale", config.q_scale);
  expect_scale("k_scale", config.k_scale);
  if (config.kv_dtype != DType::kBF16 && config.kv_dtype != DType::kE4M3) {
    refuse("kv_dtype", std::string(name(config.kv_dtype)), "must be bf16 or fp8 (e4m3)");
  }
  if (config.query == QueryForm::kQuantized && config.kv_dtype != DType::kE4M3) {
    refuse("query", "quantized",
           "needs an FP8 cache but kv_dtype = " + std::string(name(config.kv_dtype)) +
               "; use query pair or kv_dtype fp8");
  }
  if (config.reduce_dtype != DType::kBF16 && config.reduce_dtype != DType::kF32) {
    refuse("reduce_dtype", std::string(name(config.reduce_dtype)), "must be bf16 or fp32");
  }
}

}  // namespace mladcp
