// A whole group on one card: N rank threads, a stream each, ordered by events; and the same as one
// CUDA graph.
#include <cmath>
#include <vector>

#include "kernels/device/cuda_graph.h"
#include "tests/kernels/group_case.h"

namespace mladcp {
namespace {

using GroupTest = GpuTest;

ParallelConfig config_for(std::int64_t ranks, std::int64_t local_heads, DType kv_dtype,
                          Combine combine) {
  ParallelConfig config;
  config.tp = config.dcp = ranks;
  config.heads = ranks * local_heads;
  config.page_size = 64;
  config.kv_dtype = kv_dtype;
  config.combine = combine;
  config.k_scale = kv_dtype == DType::kE4M3 ? 0.5F : 1.0F;
  config.q_scale = 0.25F;
  return config;
}

// Host and card absorb with sums of other orders: now and then a bf16 (and so an e4m3) element of
// the query is a unit apart; P is rounded on the card alone; ag_rs rounds up to N times, projection
// and output once more. Judged by the share of the output's norm: each rounding unbiased, 2^-8 /
// sqrt(3) at most.
void expect_near(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted, int roundings) {
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t r = 0; r < got.size(); ++r) {
    const std::vector<float> a = values_of(got[r]);
    const std::vector<float> b = values_of(wanted[r]);
    for (std::size_t i = 0; i < a.size(); ++i) {
      error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
      norm += double{b[i]} * b[i];
    }
  }
  EXPECT_GT(norm, 0.0);
  EXPECT_LE(std::sqrt(error / norm), 0x1p-8 * std::sqrt(2.0 * roundings));
}

TEST_F(GroupTest, DecodesAsTheHostDoes) {
  for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const DType kv : {DType::kE4M3, DType::kBF16}) {
      for (const Combine combine :
           {Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked}) {
        GroupShape shape;
        shape.config = config_for(ranks, ranks == 3 ? 5 : 16, kv, combine);
        shape.config.interleave = ranks == 4 ? 16 : 1;
        shape.requests = {{300, 1}, {1, 1}, {65, 2}, {0, 1}, {ranks, 1}};
        shape.seed = static_cast<std::uint64_t>(ranks);
        SCOPED_TRACE(std::to_string(ranks) + " ranks " + std::string(name(kv)) + " " +
                     std::string(name(combine)));
        const GroupProblem p = make_group_problem(shape);
        GpuGroup group(device(), p, ops_of_rank);
        group.enqueue();
        expect_near(group.outputs(), run_on_host(p), 4 + static_cast<int>(ranks));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(GroupTest, OptionsOfTheCombine) {
  for (const bool project : {false, true}) {
    for (const bool replicate : {false, true}) {
      for (const DType reduce : {DType::kBF16, DType::kF32}) {
        for (const QueryForm form : {QueryForm::kPair, QueryForm::kQuantized}) {
          GroupShape shape;
          shape.config = config_for(2, 8, DType::kE4M3, Combine::kAllGatherReduceScatter);
          shape.config.project_before_merge = project;
          shape.config.replicate_query = replicate;
          shape.config.reduce_dtype = reduce;
          shape.config.query = form;
          shape.requests = {{130, 1}, {7, 3}};
          SCOPED_TRACE(std::to_string(project) + std::to_string(replicate) +
                       std::string(name(reduce)) + std::string(name(form)));
          const GroupProblem p = make_group_problem(shape);
          GpuGroup group(device(), p, ops_of_rank);
          group.enqueue();
          expect_near(group.outputs(), run_on_host(p), 8);
        }
      }
    }
  }
}

void expect_equal(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
  for (std::size_t r = 0; r < got.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    expect_same_bytes("output", got[r], wanted[r]);
  }
}

TEST_F(GroupTest, RepeatsBitwise) {
  GroupShape shape;
  shape.config = config_for(8, 16, DType::kE4M3, Combine::kAllGatherReduceScatter);
  shape.requests = {{700, 1}, {64, 1}, {1, 1}};
  const GroupProblem p = make_group_problem(shape);
  GpuGroup group(device(), p, ops_of_rank);
  group.enqueue();
  const std::vector<Tensor> first = group.outputs();
  for (int i = 0; i < 20; ++i) {
    group.enqueue();
    expect_equal(group.outputs(), first);
    if (HasFailure()) return;
  }
}

// Captured with one set of lengths, tables, slots; replayed with others at the same addresses.
TEST_F(GroupTest, GraphReplaysWithOtherContents) {
  for (const Combine combine :
       {Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked}) {
    for (const DType kv : {DType::kE4M3, DType::kBF16}) {
      GroupShape shape;
      shape.config = config_for(4, 16, kv, combine);
      shape.columns = 17;
      shape.requests = {{64, 1}, {64, 1}, {64, 1}, {64, 1}};
      const GroupProblem captured = make_group_problem(shape);
      GpuGroup group(device(), captured, ops_of_rank);
      group.enqueue();  // first use of every kernel, before the capture
      const std::vector<Tensor> direct = group.outputs();
      const CudaGraph graph(device(), group.streams(), [&] { group.enqueue(); });
      graph.launch(stream());
      device().synchronize(stream());
      expect_equal(group.outputs(), direct);
      for (const std::vector<StepRequest>& lengths :
           {std::vector<StepRequest>{{4096, 1}, {1, 1}, {0, 1}, {0, 1}},
            {{65, 1}, {64, 1}, {65, 1}, {63, 1}}}) {
        GroupShape other = shape;
        other.requests = lengths;
        other.seed = 77;
        const GroupProblem replayed = make_group_problem(other);
        group.load(replayed);
        graph.launch(stream());
        device().synchronize(stream());
        const std::vector<Tensor> from_graph = group.outputs();
        group.load(replayed);
        group.enqueue();
        SCOPED_TRACE(std::string(name(combine)) + " " + std::string(name(kv)));
        expect_equal(from_graph, group.outputs());
        if (HasFailure()) return;
      }
    }
  }
}

// Padding rows of a captured batch: wild table entries and NaN queries change nothing, and no slot
// is written.
TEST_F(GroupTest, PaddingRowsChangeNothing) {
  GroupShape shape;
  shape.config = config_for(2, 16, DType::kE4M3, Combine::kAllGatherReduceScatter);
  shape.requests = {{16, 4}, {7, 4}, {1, 4}, {0, 4}};
  const GroupProblem p = make_group_problem(shape);
  GpuGroup clean(device(), p, ops_of_rank);
  clean.enqueue();
  const std::vector<Tensor> wanted = clean.outputs();
  GroupProblem poisoned_problem = make_group_problem(shape);
  const std::int64_t first_padding = 12;
  for (const Tensor* query : {&poisoned_problem.q_nope, &poisoned_problem.q_rope}) {
    poison(query->view().narrow(0, first_padding, 4));
  }
  for (std::int64_t i = 0; i < p.table.columns; ++i) {
    poisoned_problem.table.pages[static_cast<std::size_t>(3 * p.table.columns + i)] = 2147480000;
  }
  GpuGroup padded(device(), poisoned_problem, ops_of_rank);
  padded.enqueue();
  const std::vector<Tensor> got = padded.outputs();
  for (std::size_t r = 0; r < got.size(); ++r) {
    expect_same_bytes("real rows", got[r].view().narrow(0, 0, first_padding),
                      wanted[r].view().narrow(0, 0, first_padding));
    expect_same_bytes("cache", download(padded.rank(static_cast<std::int64_t>(r)).cache),
                      download(clean.rank(static_cast<std::int64_t>(r)).cache));
  }
}

}  // namespace
}  // namespace mladcp
