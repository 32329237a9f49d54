// Which decode steps each implementation of the operations offers. One table: what refuses a
// scenario and what docs/support.md shows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/config.h"
#include "core/kv_cache.h"

namespace mladcp {

struct DecodeSupport {
  std::string_view implementation;  // "cpu", "cuda"
  DType cache;
  bool quantized_query;                 // one e4m3 tensor; otherwise bf16, pair or concatenated
  std::span<const std::int64_t> pages;  // page sizes; empty: any
  std::int64_t latent;                  // L and R; 0: any
  std::int64_t rope;
  std::int64_t max_q_len;  // query rows a request; 0: any
  // Every combine and option works with every row: they are made of other operations.
};

std::span<const DecodeSupport> support_table();

// Throws Unsupported naming what was asked for and what the implementation offers.
void expect_supported(std::string_view implementation, const ParallelConfig& config,
                      const MlaDims& dims, std::int64_t q_len);

// The table in Markdown, as docs/support.md holds it.
std::string support_table_markdown();

}  // namespace mladcp
