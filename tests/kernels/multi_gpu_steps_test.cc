// Whole steps on N cards joined by NCCL against the same group simulated on one card: the same
// kernels on the same shards, so the same bits, but where a ring adds more than two addends in an
// order and with roundings of its own.
#include <map>
#include <memory>
#include <vector>

#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_graph.h"
#include "reference/error_bounds.h"
#include "tests/kernels/group_case.h"
#include "tests/kernels/prefill_case.h"
#include "tests/support/nccl_under_test.h"

namespace mladcp {
namespace {

// What a rank's decode step left behind, on the host.
struct StepResult {
  Tensor output;     // [T, H, Vd] bf16
  Tensor corrected;  // [T, Hg, X], ag_rs alone
  Tensor reduced;    // [T, H, X], ag_rs alone, in the dtype of the reduction
};

StepResult result_of(const ParallelConfig& config, const DecodeWorkspace& workspace,
                     Stream stream) {
  StepResult result;
  result.output = copied_to_host(workspace.output(), stream);
  if (config.combine == Combine::kAllGatherReduceScatter) {
    const bool rounds = config.reduce_dtype != DType::kBF16;
    result.corrected = copied_to_host(workspace.corrected(), stream);
    result.reduced = copied_to_host(rounds ? workspace.reduced() : workspace.combined(), stream);
  }
  return result;
}

// N cards, a rank each.
class CardGroup {
 public:
  explicit CardGroup(int ranks) : cards_(ranks), group_(cards_.devices()) {
    for (int r = 0; r < ranks; ++r) {
      ops_.push_back(std::make_unique<CudaOps>(cards_.device(r)));
    }
  }

  // One step per rank; with_graph: the results are those of a captured step's second replay.
  std::vector<StepResult> decode_step(const GroupProblem& p, bool with_graph) {
    std::vector<StepResult> results(ops_.size());
    group_.run([&](Collective& collective) {
      const int r = collective.rank();
      results[static_cast<std::size_t>(r)] = run_rank(p, collective, r, with_graph);
    });
    return results;
  }

  std::vector<PrefillResult> prefill_step(const PrefillWorld& world) {
    std::vector<PrefillResult> results(ops_.size());
    group_.run([&](Collective& collective) {
      const int r = collective.rank();
      results[static_cast<std::size_t>(r)] =
          run_rank_on_card(world, collective, cards_.device(r), ops_of(r).ops(), cards_.stream(r));
    });
    return results;
  }

 private:
  CudaOps& ops_of(int r) { return *ops_[static_cast<std::size_t>(r)]; }

  StepResult run_rank(const GroupProblem& p, Collective& collective, int r, bool with_graph) {
    CudaDevice& device = cards_.device(r);
    const DeviceGuard guard(device.index());
    const Stream stream = cards_.stream(r);
    const ParallelConfig& config = p.shape.config;
    RankState state(device, stream, p, r, ops_of(r).attention, limits_of(p));
    const auto step = [&] {
      decode(config, kGroupSoftmaxScale, state.inputs(config.k_scale), state.workspace,
             ops_of(r).ops(), collective, stream);
    };
    step();  // connects, and sizes the scratch memory
    collective.synchronize(stream);
    if (with_graph) {
      const Stream streams[] = {stream};
      const CudaGraph graph(device, streams, step);
      for (int replay = 0; replay < 2; ++replay) {
        const TensorView output = state.workspace.output();
        device.fill_bytes(output.data, 0xFF, static_cast<std::size_t>(output.bytes()), stream);
        graph.launch(stream);
      }
      collective.synchronize(stream);
    }
    return result_of(config, state.workspace, stream);
  }

  Cards cards_;
  NcclGroup group_;
  std::vector<std::unique_ptr<CudaOps>> ops_;
};

class MultiGpuStepsTest : public GpuTest {
 protected:
  // Connected once a process: that takes seconds.
  static CardGroup& cards(int ranks) {
    static auto& groups = *new std::map<int, std::unique_ptr<CardGroup>>;
    std::unique_ptr<CardGroup>& group = groups[ranks];
    if (group == nullptr) group = std::make_unique<CardGroup>(ranks);
    return *group;
  }

  static std::vector<int> group_sizes() {
    const auto visible = static_cast<int>(available_cuda_devices().size());
    std::vector<int> sizes;
    for (int n = 2; n <= visible; ++n) sizes.push_back(n);
    return sizes;
  }

  // The same group with all its ranks on the first card.
  static std::vector<StepResult> simulated(const GroupProblem& p) {
    GpuGroup group(device(), p, ops_of_rank);
    group.enqueue();
    std::vector<StepResult> results;
    for (std::int64_t r = 0; r < p.world(); ++r) {
      const Stream rank_stream = group.streams()[static_cast<std::size_t>(r)];
      device().synchronize(rank_stream);
      results.push_back(result_of(p.shape.config, group.rank(r).workspace, rank_stream));
    }
    return results;
  }

  static void expect_equal(const std::vector<StepResult>& got,
                           const std::vector<StepResult>& wanted) {
    for (std::size_t r = 0; r < got.size(); ++r) {
      SCOPED_TRACE("rank " + std::to_string(r));
      expect_same_bytes("output", got[r].output, wanted[r].output);
    }
  }

  // A ring rounds to its dtype at each of its N - 1 hops.
  static void expect_sums(const ParallelConfig& config, const std::vector<StepResult>& got,
                          const std::vector<StepResult>& wanted) {
    const std::int64_t h = config.local_heads();
    for (std::size_t r = 0; r < got.size(); ++r) {
      SCOPED_TRACE("rank " + std::to_string(r));
      expect_same_bytes("corrected", got[r].corrected, wanted[r].corrected);
      std::vector<TensorView> addends;
      for (const StepResult& of_rank : wanted) {
        addends.push_back(of_rank.corrected.view().narrow(1, static_cast<std::int64_t>(r) * h, h));
      }
      const Comparison sum = compare(got[r].reduced, expect_sum(addends, config.reduce_dtype,
                                                                static_cast<int>(got.size()) - 1));
      EXPECT_TRUE(sum.pass()) << sum;
    }
  }

  void expect_as_simulated(const GroupShape& shape) {
    const ParallelConfig& config = shape.config;
    SCOPED_TRACE(std::to_string(config.dcp) + " ranks, " + std::string(name(config.kv_dtype)) +
                 ", " + std::string(name(config.combine)) + ", reduce " +
                 std::string(name(config.reduce_dtype)));
    const GroupProblem p = make_group_problem(shape);
    const std::vector<StepResult> wanted = simulated(p);
    CardGroup& group = cards(static_cast<int>(config.dcp));
    const std::vector<StepResult> direct = group.decode_step(p, false);
    const std::vector<StepResult> replayed = group.decode_step(p, true);
    if (config.combine != Combine::kAllGatherReduceScatter || config.dcp == 2) {
      expect_equal(direct, wanted);
    } else {
      expect_sums(config, direct, wanted);
    }
    expect_equal(replayed, direct);
  }
};

GroupShape shape_of(int ranks, DType kv, Combine combine) {
  GroupShape shape;
  ParallelConfig& config = shape.config;
  config.tp = config.dcp = ranks;
  config.heads = ranks * (ranks == 3 ? 5 : 16);
  config.page_size = 64;
  config.interleave = ranks == 4 ? 16 : 1;
  config.kv_dtype = kv;
  config.combine = combine;
  config.k_scale = kv == DType::kE4M3 ? 0.5F : 1.0F;
  config.q_scale = 0.25F;
  shape.requests = {{1300, 1}, {1, 1}, {65, 2}, {0, 1}, {ranks, 1}};
  shape.seed = static_cast<std::uint64_t>(ranks);
  return shape;
}

TEST_F(MultiGpuStepsTest, DecodeIsThatOfTheSimulatedGroup) {
  for (const int ranks : group_sizes()) {
    for (const DType kv : {DType::kE4M3, DType::kBF16}) {
      for (const Combine combine :
           {Combine::kAllGatherReduceScatter, Combine::kAllToAll, Combine::kAllToAllPacked}) {
        expect_as_simulated(shape_of(ranks, kv, combine));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(MultiGpuStepsTest, OptionsOfTheCombineAsInTheSimulatedGroup) {
  for (const int ranks : group_sizes()) {
    for (const bool project : {false, true}) {
      for (const DType reduce : {DType::kBF16, DType::kF32}) {
        GroupShape shape = shape_of(ranks, DType::kE4M3, Combine::kAllGatherReduceScatter);
        shape.config.project_before_merge = project;
        shape.config.replicate_query = !project;
        shape.config.reduce_dtype = reduce;
        SCOPED_TRACE(project ? "project_before_merge" : "replicate_query");
        expect_as_simulated(shape);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(MultiGpuStepsTest, StepsRepeatBitwise) {
  for (const int ranks : group_sizes()) {
    const GroupProblem p =
        make_group_problem(shape_of(ranks, DType::kE4M3, Combine::kAllGatherReduceScatter));
    const std::vector<StepResult> first = cards(ranks).decode_step(p, false);
    for (int i = 0; i < 5; ++i) {
      expect_equal(cards(ranks).decode_step(p, false), first);
      if (HasFailure()) return;
    }
  }
}

TEST_F(MultiGpuStepsTest, ChunkedPrefillIsThatOfTheSimulatedGroup) {
  for (const int ranks : group_sizes()) {
    for (const DType kv : {DType::kE4M3, DType::kBF16}) {
      PrefillShape shape;
      shape.dims = MlaDims{};
      shape.local_heads = 2;
      shape.sharding = {ranks, ranks == 3 ? 4 : 1};
      shape.workspace_rows = 32 * ranks;
      shape.kv_dtype = kv;
      shape.softmax_scale = 0.0721688F;
      shape.requests = {{200, 17}, {0, 5}, {65, 1}, {90, 70}};
      shape.seed = static_cast<std::uint64_t>(ranks);
      SCOPED_TRACE(std::to_string(ranks) + " ranks " + std::string(name(kv)));
      const PrefillWorld world(shape);
      std::vector<PrefillResult> wanted(static_cast<std::size_t>(ranks));
      for (int r = 0; r < ranks; ++r) ops_of_rank(static_cast<std::size_t>(r));  // on one thread
      InProcessGroup simulated_group(ranks, {}, device());
      simulated_group.run([&](Collective& collective) {
        const auto r = static_cast<std::size_t>(collective.rank());
        const Stream rank_stream = device().create_stream();
        wanted[r] =
            run_rank_on_card(world, collective, device(), ops_of_rank(r).ops(), rank_stream);
        device().destroy_stream(rank_stream);
      });
      const std::vector<PrefillResult> got = cards(ranks).prefill_step(world);
      for (std::size_t r = 0; r < got.size(); ++r) {
        SCOPED_TRACE("rank " + std::to_string(r));
        EXPECT_GT(got[r].chunks, 1);
        expect_same_bytes("output", got[r].output, wanted[r].output);
        expect_same_bytes("lse", got[r].lse, wanted[r].lse);
      }
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace mladcp
