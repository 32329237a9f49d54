#include "core/chunk_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

std::int32_t narrowed(std::int64_t value) { return static_cast<std::int32_t>(value); }

[[noreturn]] void refuse(const std::string& field, std::int64_t got, const std::string& remedy) {
  throw InvalidArgument(field + " = " + std::to_string(got) + ": " + remedy);
}

void check_contexts(std::span<const std::int64_t> contexts, const KvSharding& sharding) {
  for (std::size_t b = 0; b < contexts.size(); ++b) {
    const std::string field = "context length of request " + std::to_string(b);
    if (contexts[b] < 0) refuse(field, contexts[b], "must not be negative; 0 means no context");
    if (contexts[b] / sharding.world_size > kMaxInt32 - sharding.interleave) {
      refuse(field, contexts[b], "its local rows pass int32; split the request");
    }
  }
}

// The cutting rule: pieces of every chunk, nothing else.
class Packer {
 public:
  explicit Packer(const ChunkGeometry& geometry)
      : sharding_(geometry.sharding),
        budget_(geometry.local_rows()),
        cut_(geometry.cut()),
        cut_rows_(sharding_.padded_rows(cut_)),
        left_(budget_) {}

  void add(std::int64_t request, std::int64_t context) {
    std::int64_t start = 0;
    while (start < context) {
      const std::int64_t rest = sharding_.padded_rows(context) - sharding_.padded_rows(start);
      const std::int64_t length = rest <= left_ ? context - start : left_ / cut_rows_ * cut_;
      if (length == 0) {
        close();
        continue;
      }
      open_.push_back({request, start, length});
      start += length;
      left_ -= rest <= left_ ? rest : sharding_.padded_rows(length);
    }
  }

  std::vector<std::vector<ContextPiece>> finish() {
    close();
    return std::move(closed_);
  }

 private:
  void close() {
    if (!open_.empty()) closed_.push_back(std::move(open_));
    open_.clear();
    left_ = budget_;
  }

  KvSharding sharding_;
  std::int64_t budget_;    // padded local rows of a chunk
  std::int64_t cut_;       // positions
  std::int64_t cut_rows_;  // local rows of `cut_` positions: no padding, as V divides cut_
  std::int64_t left_;
  std::vector<ContextPiece> open_;
  std::vector<std::vector<ContextPiece>> closed_;
};

// Local rows rank r really keeps of a piece: its cached rows from seq_start on, without padding.
std::int64_t real_length(const KvSharding& sharding, std::int64_t context, std::int64_t rank,
                         std::int64_t seq_start, std::int64_t padded_length) {
  const std::int64_t rest = sharding.local_length(context, rank) - seq_start;
  return std::min(std::max<std::int64_t>(0, rest), padded_length);
}

void fill_rows(ContextChunk& chunk, std::int64_t world_size, std::int64_t requests) {
  chunk.padded_local_token_to_seq.reserve(static_cast<std::size_t>(chunk.toks));
  chunk.source_rows.resize(static_cast<std::size_t>(chunk.cu_seq_lens.back()));
  auto out = chunk.source_rows.begin();
  for (const ContextPiece& piece : chunk.pieces) {
    const auto request = static_cast<std::size_t>(piece.request);
    const std::int32_t begin = chunk.padded_local_cu_seq_lens[request];
    const std::int32_t end = chunk.padded_local_cu_seq_lens[request + 1];
    chunk.padded_local_token_to_seq.insert(chunk.padded_local_token_to_seq.end(),
                                           static_cast<std::size_t>(end - begin),
                                           narrowed(piece.request));
    for (std::int64_t r = 0; r < world_size; ++r) {
      const auto real = chunk.real_lengths[static_cast<std::size_t>(r * requests) + request];
      std::iota(out, out + real, narrowed(r * chunk.toks) + begin);
      out += real;
    }
  }
}

ContextChunk describe_chunk(std::vector<ContextPiece> pieces, const ChunkPlan& plan) {
  const KvSharding& sharding = plan.geometry.sharding;
  const auto requests = static_cast<std::size_t>(plan.requests());
  ContextChunk chunk;
  chunk.pieces = std::move(pieces);
  chunk.seq_starts.assign(requests, 0);
  chunk.real_lengths.assign(static_cast<std::size_t>(sharding.world_size) * requests, 0);
  // Lengths first, at [request + 1]; prefix sums below.
  chunk.padded_local_cu_seq_lens.assign(requests + 1, 0);
  chunk.cu_seq_lens.assign(requests + 1, 0);
  for (const ContextPiece& piece : chunk.pieces) {
    const auto request = static_cast<std::size_t>(piece.request);
    const std::int64_t start = sharding.padded_rows(piece.start);
    const std::int64_t padded = sharding.padded_rows(piece.start + piece.length) - start;
    chunk.seq_starts[request] = narrowed(start);
    chunk.padded_local_cu_seq_lens[request + 1] = narrowed(padded);
    chunk.toks += padded;
    for (std::int64_t r = 0; r < sharding.world_size; ++r) {
      const std::int32_t real =
          narrowed(real_length(sharding, plan.contexts[request], r, start, padded));
      chunk.real_lengths[static_cast<std::size_t>(r) * requests + request] = real;
      chunk.cu_seq_lens[request + 1] += real;
    }
  }
  std::partial_sum(chunk.padded_local_cu_seq_lens.begin(), chunk.padded_local_cu_seq_lens.end(),
                   chunk.padded_local_cu_seq_lens.begin());
  std::partial_sum(chunk.cu_seq_lens.begin(), chunk.cu_seq_lens.end(), chunk.cu_seq_lens.begin());
  fill_rows(chunk, sharding.world_size, plan.requests());
  return chunk;
}

}  // namespace

std::int64_t ChunkGeometry::cut() const { return std::lcm(page_size, sharding.period()); }

void validate(const ChunkGeometry& geometry) {
  const auto& [sharding, page_size, workspace_rows] = geometry;
  if (sharding.world_size < 1) refuse("world_size", sharding.world_size, "must be at least 1");
  if (sharding.interleave < 1) refuse("interleave", sharding.interleave, "must be at least 1");
  if (page_size < 1) refuse("page_size", page_size, "must be at least 1");
  if (page_size % sharding.interleave != 0) {
    refuse("page_size", page_size,
           "must be a multiple of interleave = " + std::to_string(sharding.interleave));
  }
  const std::int64_t cut = geometry.cut();
  if (workspace_rows < cut) {
    refuse("workspace_rows", workspace_rows,
           "below lcm(page_size " + std::to_string(page_size) + ", period " +
               std::to_string(sharding.period()) + "), where a context may be cut; give at least " +
               std::to_string(cut));
  }
  if (workspace_rows % sharding.world_size != 0) {
    refuse("workspace_rows", workspace_rows,
           "every rank takes an equal share; give a multiple of world_size = " +
               std::to_string(sharding.world_size) + ", for example " +
               std::to_string(workspace_rows / sharding.world_size * sharding.world_size));
  }
  if (workspace_rows > kMaxInt32) {
    refuse("workspace_rows", workspace_rows,
           "row indices are int32; give at most " + std::to_string(kMaxInt32));
  }
}

ChunkPlan build_chunk_plan(std::span<const std::int64_t> contexts, const ChunkGeometry& geometry) {
  validate(geometry);
  check_contexts(contexts, geometry.sharding);
  ChunkPlan plan{geometry, {contexts.begin(), contexts.end()}, {}};
  if (geometry.sharding.world_size == 1) plan.geometry.sharding.interleave = 1;
  Packer packer(plan.geometry);
  for (std::int64_t b = 0; b < plan.requests(); ++b) {
    packer.add(b, contexts[static_cast<std::size_t>(b)]);
  }
  for (std::vector<ContextPiece>& pieces : packer.finish()) {
    plan.chunks.push_back(describe_chunk(std::move(pieces), plan));
  }
  return plan;
}

GatheredRow gathered_row(const ChunkPlan& plan, const ContextChunk& chunk, std::int64_t row) {
  if (row < 0 || row >= plan.geometry.sharding.world_size * chunk.toks) {
    refuse("gathered row", row,
           "the chunk has " + std::to_string(plan.geometry.sharding.world_size * chunk.toks));
  }
  GatheredRow found;
  found.rank = row / chunk.toks;
  const std::int64_t t = row % chunk.toks;
  const auto request =
      static_cast<std::size_t>(chunk.padded_local_token_to_seq[static_cast<std::size_t>(t)]);
  found.request = static_cast<std::int64_t>(request);
  found.local_row = t - chunk.padded_local_cu_seq_lens[request] + chunk.seq_starts[request];
  found.position = plan.geometry.sharding.global(found.local_row, found.rank);
  found.padding = found.position >= plan.contexts[request];
  return found;
}

std::string describe(const GatheredRow& row) {
  return "rank " + std::to_string(row.rank) + " request " + std::to_string(row.request) +
         (row.padding ? " padding" : " position " + std::to_string(row.position)) + " (local row " +
         std::to_string(row.local_row) + ")";
}

void check_block_table(const ChunkPlan& plan, const BlockTable& table, std::int64_t pages) {
  const auto entries = static_cast<std::int64_t>(table.pages.size());
  if (entries != plan.requests() * table.columns) {
    refuse("block_table entries", entries,
           "expected " + std::to_string(plan.requests()) + " requests x " +
               std::to_string(table.columns) + " columns");
  }
  const std::int64_t page_size = plan.geometry.page_size;
  for (std::int64_t b = 0; b < plan.requests(); ++b) {
    const std::int64_t rows =
        plan.geometry.sharding.padded_rows(plan.contexts[static_cast<std::size_t>(b)]);
    const std::int64_t used = (rows + page_size - 1) / page_size;
    if (used > table.columns) {
      refuse("block_table columns", table.columns,
             "request " + std::to_string(b) + " reads column " + std::to_string(used - 1) +
                 "; give at least " + std::to_string(used) + " columns");
    }
    for (std::int64_t c = 0; c < used; ++c) {
      const std::int32_t page = table.row(b)[static_cast<std::size_t>(c)];
      if (page >= 0 && page < pages) continue;
      refuse("block_table[request " + std::to_string(b) + "][column " + std::to_string(c) + "]",
             page, "the cache has pages 0 .. " + std::to_string(pages - 1));
    }
  }
}

}  // namespace mladcp
