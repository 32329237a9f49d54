#include "tests/collectives/conformance.h"

#include <algorithm>

#include "core/error.h"
#include "tests/support/collective_case.h"

namespace mladcp {
namespace {

constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kE4M3,
                                DType::kI32, DType::kI64, DType::kBytes};
constexpr Layout kAllLayouts[] = {Layout::kDense, Layout::kPadded, Layout::kTransposed};

// Runs all cases on one group; the first finding of a rank ends its work, but never its
// collectives.
RankBody check_all(const std::vector<CollectiveCase>& cases) {
  return [cases](RankUnderTest& rank) {
    std::string findings;
    for (const CollectiveCase& test_case : cases) {
      const std::string finding = check_case(test_case, rank.collective, rank.device, rank.stream);
      if (findings.empty()) findings = finding;
    }
    return findings;
  };
}

// iota + 100 * rank on the device of the rank.
Tensor iota_tensor(const RankUnderTest& rank, const Shape& shape) {
  Tensor host(host_device(), DType::kF32, shape, "in");
  for (std::int64_t i = 0; i < element_count(shape); ++i) {
    host.as<float>()[i] = static_cast<float>(i + 100 * rank.collective.rank());
  }
  return copied_to_device(host, rank.device, rank.stream);
}

TEST_P(CollectiveConformance, KnowsRankAndWorldSize) {
  const int world_size = group_->world_size();
  run([world_size](RankUnderTest& rank) -> std::string {
    const int r = rank.collective.rank();
    if (rank.collective.world_size() != world_size) return "world size is wrong";
    return r >= 0 && r < world_size ? "" : "rank is outside of the world";
  });
}

TEST_P(CollectiveConformance, AllGatherPutsRankBlocksSideBySideOnAnyAxis) {
  std::vector<CollectiveCase> cases;
  for (const Shape& shape :
       {Shape{7}, Shape{3, 5}, Shape{3, 2, 5}, Shape{1, 4, 3}, Shape{2, 3, 1, 5}}) {
    for (int dim = -shape.rank(); dim < shape.rank(); ++dim) {
      cases.push_back({CollectiveOp::kAllGather, shape, dim, DType::kBF16});
    }
  }
  run(check_all(cases));
}

TEST_P(CollectiveConformance, AllGatherMovesEveryDtypeByteForByte) {
  std::vector<CollectiveCase> cases;
  for (const DType dtype : kAllDTypes) {
    for (const int dim : {0, 1, 2}) {
      cases.push_back({CollectiveOp::kAllGather, {3, 1, 5}, dim, dtype});  // 15 bytes of FP8
    }
  }
  run(check_all(cases));
}

TEST_P(CollectiveConformance, AllGatherTakesStridedTensors) {
  std::vector<CollectiveCase> cases;
  for (const Layout in_layout : kAllLayouts) {
    for (const Layout out_layout : kAllLayouts) {
      for (const int dim : {0, 1, -1}) {
        cases.push_back(
            {CollectiveOp::kAllGather, {3, 4, 5}, dim, DType::kE4M3, in_layout, out_layout});
      }
    }
  }
  run(check_all(cases));
}

TEST_P(CollectiveConformance, ReduceScatterKeepsTheOwnSliceOfTheSumOnAnyAxis) {
  std::vector<CollectiveCase> cases;
  const std::int64_t n = group_->world_size();
  for (const Shape& shape :
       {Shape{3 * n}, Shape{n, 5}, Shape{2 * n, 3, n}, Shape{n, 2 * n, 3 * n}}) {
    for (int dim = -shape.rank(); dim < shape.rank(); ++dim) {
      const int axis = dim < 0 ? dim + shape.rank() : dim;
      if (shape[axis] % n != 0) continue;
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        cases.push_back({CollectiveOp::kReduceScatter, shape, dim, dtype});
      }
    }
  }
  run(check_all(cases));
}

TEST_P(CollectiveConformance, ReduceScatterTakesStridedTensors) {
  std::vector<CollectiveCase> cases;
  const std::int64_t n = group_->world_size();
  for (const Layout in_layout : kAllLayouts) {
    for (const Layout out_layout : kAllLayouts) {
      for (const int dim : {1, 2}) {
        cases.push_back({CollectiveOp::kReduceScatter,
                         {3, n, 2 * n},
                         dim,
                         DType::kBF16,
                         in_layout,
                         out_layout});
      }
    }
  }
  run(check_all(cases));
}

// A transposed matrix lies with dim 1 in front, as backends like it, the others do not.
TEST_P(CollectiveConformance, LayoutsMayDifferFromRankToRank) {
  run([](RankUnderTest& rank) {
    const int n = rank.collective.world_size();
    std::vector<CollectiveCase> cases;
    for (int shift = 0; shift < 3; ++shift) {
      const Layout in = kAllLayouts[(rank.collective.rank() + shift) % 3];
      const Layout out = kAllLayouts[(2 * rank.collective.rank() + shift) % 3];
      cases.push_back({CollectiveOp::kAllGather, {5, 3}, 1, DType::kE4M3, in, out});
      cases.push_back({CollectiveOp::kReduceScatter, {5, 2 * n}, 1, DType::kBF16, in, out});
      cases.push_back({CollectiveOp::kAllToAll, {n, 5}, 0, DType::kF32, in, out});
    }
    return check_all(cases)(rank);
  });
}

TEST_P(CollectiveConformance, AllToAllSwapsBlocks) {
  std::vector<CollectiveCase> cases;
  const std::int64_t n = group_->world_size();
  for (const Shape& shape : {Shape{n}, Shape{n, 7}, Shape{n, 3, 5}, Shape{n, 2, 3, 5}}) {
    for (const DType dtype : kAllDTypes) {
      cases.push_back({CollectiveOp::kAllToAll, shape, 0, dtype});
    }
  }
  for (const Layout in_layout : kAllLayouts) {
    for (const Layout out_layout : kAllLayouts) {
      cases.push_back({CollectiveOp::kAllToAll, {n, 3, 5}, 0, DType::kE4M3, in_layout, out_layout});
    }
  }
  run(check_all(cases));
}

TEST_P(CollectiveConformance, ZeroExtentsPassThrough) {
  const std::int64_t n = group_->world_size();
  run(check_all({
      {CollectiveOp::kAllGather, {0, 4, 5}, 1, DType::kE4M3},
      {CollectiveOp::kAllGather, {0}, 0, DType::kF32},
      {CollectiveOp::kReduceScatter, {0, 2 * n, 5}, 1, DType::kBF16},
      {CollectiveOp::kAllToAll, {n, 0, 5}, 0, DType::kBF16},
      {CollectiveOp::kAllGather, {1, 1}, 0, DType::kBF16},  // the group still works
  }));
}

// fp32 addition does not associate: 2^30 + 1 loses the one, so any other order shows.
TEST_P(CollectiveConformance, SumsRepeatBitwiseAndRunInRankOrderWherePromised) {
  const bool in_rank_order = GetParam().sums_in_rank_order;
  run([in_rank_order](RankUnderTest& rank) -> std::string {
    const int n = rank.collective.world_size();
    const auto addend = [](int s, int i) {
      return (s % 3 == 0 ? 1.0F : -1.0F) * static_cast<float>(1 << (s * 7 + i * 5) % 31) + 0.3F;
    };
    constexpr int kPerRank = 11;
    LaidOutTensor in(rank.device, DType::kF32, {n, kPerRank}, Layout::kDense, "in", rank.stream);
    LaidOutTensor out(rank.device, DType::kF32, {1, kPerRank}, Layout::kDense, "out", rank.stream);
    std::vector<unsigned char> bytes;
    for (int i = 0; i < n * kPerRank; ++i) {
      const float value = addend(rank.collective.rank(), i);
      const auto* begin = reinterpret_cast<const unsigned char*>(&value);
      bytes.insert(bytes.end(), begin, begin + sizeof value);
    }
    in.write(bytes, rank.stream);
    std::vector<unsigned char> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      rank.collective.reduce_scatter(out.view(), in.view(), 0, rank.stream, "test");
      const std::vector<unsigned char> got = out.read(rank.stream);
      if (repeat == 0) first = got;
      if (got != first) return "repeat " + std::to_string(repeat) + " gave other bits";
    }
    for (int i = 0; in_rank_order && i < kPerRank; ++i) {
      float sum = addend(0, rank.collective.rank() * kPerRank + i);
      for (int s = 1; s < n; ++s) sum += addend(s, rank.collective.rank() * kPerRank + i);
      const auto* wanted = reinterpret_cast<const unsigned char*>(&sum);
      if (!std::equal(wanted, wanted + sizeof sum, first.data() + i * sizeof sum)) {
        return "element " + std::to_string(i) + " was not added in rank order";
      }
    }
    return "";
  });
}

// Each refusal comes before anything is sent, on every rank; the group works afterwards.
TEST_P(CollectiveConformance, RefusesWhatTheLawsForbid) {
  run([](RankUnderTest& rank) -> std::string {
    Collective& collective = rank.collective;
    const std::int64_t n = collective.world_size();
    const auto tensor = [&](DType dtype, const Shape& shape, const char* tensor_name) {
      return Tensor(rank.device, dtype, shape, tensor_name);
    };
    std::string findings;
    const auto expect_refusal = [&](const char* what, const std::string& wanted_text,
                                    const auto& call) {
      try {
        call();
        findings += std::string(what) + " was accepted; ";
      } catch (const InvalidArgument& error) {
        if (std::string(error.what()).find(wanted_text) == std::string::npos) {
          findings += std::string(what) + ": no '" + wanted_text + "' in '" + error.what() + "'; ";
        }
      }
    };
    const Tensor in = tensor(DType::kBF16, {3, 2 * n, 4}, "x");
    const Tensor gathered = tensor(DType::kBF16, {3, 2 * n * n, 4}, "gathered");
    const Tensor wider = tensor(DType::kBF16, {3, 2 * n * n + 1, 4}, "wider");
    const Tensor gathered_f32 = tensor(DType::kF32, {3, 2 * n * n, 4}, "gathered");
    const Tensor codes = tensor(DType::kE4M3, {n, 4}, "codes");
    const Tensor codes_out = tensor(DType::kE4M3, {1, 4}, "codes_out");
    const Tensor bytes = tensor(DType::kBytes, {n, 4}, "raw");
    const Tensor bytes_out = tensor(DType::kBytes, {1, 4}, "raw_out");
    const Tensor odd = tensor(DType::kF32, {2 * n + 1, 4}, "odd");
    const Tensor odd_out = tensor(DType::kF32, {2, 4}, "odd_out");
    const Tensor scalar = tensor(DType::kF32, {n + 1}, "blocks");
    const Stream stream = rank.stream;
    expect_refusal("a wrong output shape", "wider bf16",
                   [&] { collective.all_gather(wider, in, 1, stream, "query"); });
    expect_refusal("a dim that does not exist", "dim 3",
                   [&] { collective.all_gather(gathered, in, 3, stream, "query"); });
    expect_refusal("a dim below -rank", "dim -4",
                   [&] { collective.all_gather(gathered, in, -4, stream, "query"); });
    expect_refusal("two dtypes", "one dtype",
                   [&] { collective.all_gather(gathered_f32, in, 1, stream, "query"); });
    expect_refusal("a sum of FP8 codes", "codes e4m3",
                   [&] { collective.reduce_scatter(codes_out, codes, 0, stream, "output"); });
    expect_refusal("a sum of bytes", "raw bytes",
                   [&] { collective.reduce_scatter(bytes_out, bytes, 0, stream, "output"); });
    if (n > 1) {
      expect_refusal("an indivisible axis", "not divisible",
                     [&] { collective.reduce_scatter(odd_out, odd, 0, stream, "output"); });
    }
    expect_refusal("blocks for too many ranks", "'lse' on rank",
                   [&] { collective.all_to_all(scalar, scalar, stream, "lse"); });
    const std::string afterwards =
        check_case({CollectiveOp::kAllGather, {3, 2}, 1}, collective, rank.device, stream);
    return findings + afterwards;
  });
}

// Fault 7 of docs/faults.md: a reversed move of the axis shows only from dim 2 on.
TEST_P(CollectiveConformance, ReduceScatterOfIotaKeepsPositions) {
  run([](RankUnderTest& rank) -> std::string {
    const int n = rank.collective.world_size();
    const Tensor in = iota_tensor(rank, {3, 5, 2 * n});
    const Tensor out(rank.device, DType::kF32, {3, 5, 2}, "out");
    rank.collective.reduce_scatter(out, in, 2, rank.stream, "output");
    const Tensor got = copied_to_host(out, rank.stream);
    for (int i = 0; i < 3 * 5 * 2; ++i) {
      const int position = i / 2 * 2 * n + 2 * rank.collective.rank() + i % 2;
      const auto wanted = static_cast<float>(n * position + 100 * n * (n - 1) / 2);
      if (got.as<float>()[i] != wanted) return "position " + std::to_string(i);
    }
    return "";
  });
}

// Fault 21 of docs/faults.md: FP8 codes 0x00..0x1B arrive as they are, odd counts included.
TEST_P(CollectiveConformance, AllGatherKeepsFp8Codes) {
  run([](RankUnderTest& rank) -> std::string {
    std::vector<unsigned char> codes(28);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<unsigned char>(i);
    const std::int64_t n = rank.collective.world_size();
    const Tensor in(rank.device, DType::kE4M3, {2, 2, 7}, "in");
    const Tensor out(rank.device, DType::kE4M3, {2, 2 * n, 7}, "out");
    rank.device.copy_from_host(in.view().data, codes.data(), codes.size(), rank.stream);
    rank.collective.all_gather(out, in, 1, rank.stream, "query");
    const Tensor got = copied_to_host(out, rank.stream);
    for (std::int64_t t = 0; t < 2; ++t) {
      for (std::int64_t i = 0; i < 14 * n; ++i) {
        if (got.as<unsigned char>()[t * 14 * n + i] != t * 14 + i % 14) return "a code changed";
      }
    }
    return "";
  });
}

// Fault 27 of docs/faults.md: rank blocks lie side by side per token; positions, not sets.
TEST_P(CollectiveConformance, AllGatherOfIotaKeepsPositions) {
  run([](RankUnderTest& rank) -> std::string {
    const int n = rank.collective.world_size();
    const Tensor in = iota_tensor(rank, {3, 2, 5});
    const Tensor out(rank.device, DType::kF32, {3, 2 * n, 5}, "out");
    rank.collective.all_gather(out, in, 1, rank.stream, "query");
    const Tensor got = copied_to_host(out, rank.stream);
    for (int i = 0; i < 3 * 2 * n * 5; ++i) {
      const int token = i / (10 * n);
      const int source = i / 10 % n;
      const auto wanted = static_cast<float>(10 * token + i % 10 + 100 * source);
      if (got.as<float>()[i] != wanted) return "position " + std::to_string(i);
    }
    return "";
  });
}

// One rank passes another length: all ranks get the same message, and the group stays refused.
TEST_P(CollectiveConformance, DifferingCallsFailOnEveryRank) {
  if (!GetParam().compares_calls) GTEST_SKIP() << "this group does not exchange calls";
  run([](RankUnderTest& rank) -> std::string {
    const std::int64_t n = rank.collective.world_size();
    const std::int64_t tokens = rank.collective.rank() == n - 1 ? 4 : 3;
    const Tensor in(rank.device, DType::kBF16, {tokens, 2}, "in");
    const Tensor out(rank.device, DType::kBF16, {tokens * n, 2}, "out");
    std::string findings;
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        rank.collective.all_gather(out, in, 0, rank.stream, "context");
        if (n > 1) findings += "attempt " + std::to_string(attempt) + " passed; ";
      } catch (const RankMismatch& error) {
        const std::string text = error.what();
        for (const std::string& wanted :
             {std::string("rank ") + std::to_string(n - 1), std::string("all_gather #0 'context'"),
              std::string("in_shape [4, 2] against [3, 2]")}) {
          if (text.find(wanted) == std::string::npos) {
            findings.append("no '").append(wanted).append("' in '").append(text).append("'; ");
          }
        }
      }
    }
    return findings;
  });
}

}  // namespace
}  // namespace mladcp
