// The metadata kernel against core's build_schedule: equal in every field.
#include "kernels/metadata/metadata.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "kernels/device/cuda_device.h"
#include "kernels/device/cuda_error.h"

namespace mladcp {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kPoison = 0x5a5a5a5a;
constexpr std::int64_t kCanaries = 32;  // int32 before and after each output

// Device buffers for one shape, outputs between canaries.
class MetadataOnDevice {
 public:
  MetadataOnDevice(std::int64_t requests, std::int64_t num_parts)
      : requests_(requests),
        num_parts_(num_parts),
        stream_(device_.create_stream()),
        lengths_(device_, DType::kI32, {std::max<std::int64_t>(1, requests)}, "lengths"),
        parts_(device_, DType::kI32, {num_parts * kPartFields + 2 * kCanaries}, "parts"),
        num_splits_(device_, DType::kI32, {requests + 1 + 2 * kCanaries}, "num_splits") {}
  ~MetadataOnDevice() { device_.destroy_stream(stream_); }
  MetadataOnDevice(const MetadataOnDevice&) = delete;
  MetadataOnDevice& operator=(const MetadataOnDevice&) = delete;

  Stream stream() const { return stream_; }

  ScheduleTensors schedule() const {
    TensorView parts = parts_.view().narrow(0, kCanaries, num_parts_ * kPartFields);
    return {parts.split(0, num_parts_), num_splits_.view().narrow(0, kCanaries, requests_ + 1)};
  }
  TensorView lengths() const { return lengths_.view().narrow(0, 0, requests_); }

  void upload(const std::vector<std::int32_t>& lengths) {
    device_.copy_from_host(lengths_.as<void>(), lengths.data(),
                           lengths.size() * sizeof(std::int32_t), stream_);
  }
  void poison() {
    for (const Tensor* tensor : {&parts_, &num_splits_}) {
      device_.fill_bytes(tensor->as<void>(), 0x5a, static_cast<std::size_t>(tensor->view().bytes()),
                         stream_);
    }
  }

  // What the device holds, after checking the canaries.
  Schedule download(ScheduleDialect dialect) {
    Schedule got;
    got.dialect = dialect;
    got.parts = without_canaries(parts_);
    got.num_splits = without_canaries(num_splits_);
    return got;
  }

 private:
  std::vector<std::int32_t> without_canaries(const Tensor& tensor) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(tensor.view().elements()));
    device_.copy_to_host(all.data(), tensor.as<void>(), all.size() * sizeof(std::int32_t), stream_);
    const auto touched = [](std::int32_t value) { return value != kPoison; };
    EXPECT_EQ(std::count_if(all.begin(), all.begin() + kCanaries, touched), 0);
    EXPECT_EQ(std::count_if(all.end() - kCanaries, all.end(), touched), 0);
    return {all.begin() + kCanaries, all.end() - kCanaries};
  }

  CudaDevice device_;
  std::int64_t requests_;
  std::int64_t num_parts_;
  Stream stream_;
  Tensor lengths_;
  Tensor parts_;
  Tensor num_splits_;
};

Schedule on_host(const std::vector<std::int32_t>& lengths, std::int64_t num_parts,
                 ScheduleDialect dialect, const ScheduleParams& params) {
  Schedule schedule;
  schedule.dialect = dialect;
  schedule.parts.resize(static_cast<std::size_t>(num_parts * kPartFields));
  schedule.num_splits.resize(lengths.size() + 1);
  build_schedule(schedule.parts, schedule.num_splits, lengths, dialect, params);
  return schedule;
}

Schedule on_device(const std::vector<std::int32_t>& lengths, std::int64_t num_parts,
                   ScheduleDialect dialect, const ScheduleParams& params) {
  MetadataOnDevice device(static_cast<std::int64_t>(lengths.size()), num_parts);
  device.poison();
  device.upload(lengths);
  build_schedule_on_device(device.schedule(), device.lengths(), dialect, params, device.stream());
  return device.download(dialect);
}

std::int64_t first_difference(const std::vector<std::int32_t>& a,
                              const std::vector<std::int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

::testing::AssertionResult equal(const Schedule& got, const Schedule& wanted) {
  if (got.parts != wanted.parts) {
    const std::int64_t at = first_difference(wanted.parts, got.parts);
    return ::testing::AssertionFailure()
           << "part " << at / kPartFields << " field " << at % kPartFields << " is "
           << got.parts[at] << ", core says " << wanted.parts[at];
  }
  if (got.num_splits != wanted.num_splits) {
    const std::int64_t at = first_difference(wanted.num_splits, got.num_splits);
    return ::testing::AssertionFailure() << "num_splits[" << at << "] is " << got.num_splits[at]
                                         << ", core says " << wanted.num_splits[at];
  }
  return ::testing::AssertionSuccess();
}

TEST(MetadataKernel, EqualToTheGoldens) {
  std::ifstream file("tests/golden/flashmla_metadata.jsonl");
  ASSERT_TRUE(file) << "run from the root of the repository";
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const nlohmann::json golden = nlohmann::json::parse(line);
    const ScheduleDialect dialect =
        golden["variant"] == "blocks" ? ScheduleDialect::kBlocks : ScheduleDialect::kTokens;
    const auto lengths = golden["seq_lens"].get<std::vector<std::int32_t>>();
    const auto rows =
        golden["tile_scheduler_metadata"].get<std::vector<std::vector<std::int32_t>>>();
    const auto num_parts = static_cast<std::int64_t>(rows.size());
    const Schedule got = on_device(lengths, num_parts, dialect, {});
    EXPECT_EQ(got.num_splits, golden["num_splits"].get<std::vector<std::int32_t>>());
    for (std::int64_t p = 0; p < num_parts; ++p) {
      SchedulePart wanted{rows[p][0], rows[p][1], rows[p][2], rows[p][3], rows[p][4]};
      const SchedulePart part = read_part(got.parts, p);
      if (wanted.begin_request == -1) wanted.begin = part.begin;  // unspecified
      ASSERT_EQ(part, wanted) << "line " << cases + 1 << " part " << p;
    }
    ASSERT_TRUE(equal(got, on_host(lengths, num_parts, dialect, {}))) << "line " << cases + 1;
  }
  EXPECT_EQ(cases, 560);
}

// Lengths of every kind: empty, short, long, equal, around a block's edge.
std::vector<std::int32_t> random_lengths(std::mt19937& random, std::size_t batch) {
  const std::uint32_t longest = 1U << (random() % 18);
  const auto empties = static_cast<std::uint32_t>(random() % 5);  // of 4: none .. all
  const bool all_equal = random() % 8 == 0;
  const auto length = static_cast<std::int32_t>(random() % (longest + 1));
  std::vector<std::int32_t> lengths(batch);
  for (std::int32_t& l : lengths) {
    l = random() % 4 < empties ? 0
        : all_equal            ? length
                               : static_cast<std::int32_t>(random() % (longest + 1));
  }
  return lengths;
}

TEST(MetadataKernel, EqualToCoreFor10000RandomBatches) {
  std::mt19937 random(20240608);
  constexpr std::int64_t kParts[] = {132, 66, 44, 33, 148, 74, 1, 2,
                                     12,  13, 14, 24, 25,  26, 7, 170};
  for (int shape = 0; shape < 500; ++shape) {
    const std::size_t batch = shape % 50 == 49   ? 4096
                              : shape % 50 == 48 ? 4097 + random() % 4000
                              : shape % 7 == 6   ? random() % 2000
                                                 : random() % 200;
    const std::int64_t num_parts = kParts[random() % std::size(kParts)];
    MetadataOnDevice device(static_cast<std::int64_t>(batch), num_parts);
    for (int i = 0; i < 20; ++i) {
      const std::vector<std::int32_t> lengths = random_lengths(random, batch);
      const ScheduleDialect dialect =
          i % 2 == 0 ? ScheduleDialect::kTokens : ScheduleDialect::kBlocks;
      ScheduleParams params;
      if (shape % 5 == 4) params.block = 1 + static_cast<std::int64_t>(random() % 200);
      if (shape % 3 == 2) params.overhead_blocks = 1 + static_cast<std::int64_t>(random() % 8);
      device.poison();
      device.upload(lengths);
      build_schedule_on_device(device.schedule(), device.lengths(), dialect, params,
                               device.stream());
      ASSERT_TRUE(equal(device.download(dialect), on_host(lengths, num_parts, dialect, params)))
          << "shape " << shape << " try " << i << ": " << batch << " requests, " << num_parts
          << " parts, block " << params.block << ", overhead " << params.overhead_blocks << ", "
          << name(dialect);
    }
  }
}

TEST(MetadataKernel, EqualToCoreAtTheLimits) {
  std::mt19937 random(3);
  for (const std::int64_t requests : {std::int64_t{0}, std::int64_t{1}, kMaxScheduledRequests}) {
    for (const std::int64_t overhead : {1, 5}) {
      ScheduleParams params;
      params.overhead_blocks = overhead;
      const std::vector<std::int32_t> lengths =
          random_lengths(random, static_cast<std::size_t>(requests));
      for (const ScheduleDialect dialect : {ScheduleDialect::kTokens, ScheduleDialect::kBlocks}) {
        EXPECT_TRUE(equal(on_device(lengths, 132, dialect, params),
                          on_host(lengths, 132, dialect, params)));
      }
    }
  }
  ScheduleParams params;
  params.overhead_blocks = kMaxMetadataOverhead;
  const std::vector<std::int32_t> lengths = {70000, 0, 1, 64, 65, 4000};
  EXPECT_TRUE(equal(on_device(lengths, 66, ScheduleDialect::kBlocks, params),
                    on_host(lengths, 66, ScheduleDialect::kBlocks, params)));
  const std::vector<std::int32_t> longest = {2147483647, 2147483647, 5};
  EXPECT_TRUE(equal(on_device(longest, 132, ScheduleDialect::kTokens, {}),
                    on_host(longest, 132, ScheduleDialect::kTokens, {})));
}

TEST(MetadataKernel, NegativeLengthsOfPaddingCountAsEmpty) {
  const Schedule got = on_device({300, -1, -2147483647, 7}, 66, ScheduleDialect::kTokens, {});
  EXPECT_TRUE(equal(got, on_host({300, 0, 0, 7}, 66, ScheduleDialect::kTokens, {})));
}

// A captured step keeps its buffers; a replay must follow the lengths that lie in them then.
TEST(MetadataKernel, ReplayOfAGraphFollowsTheLengths) {
  MetadataOnDevice device(4, 66);
  device.poison();
  device.upload({64, 64, 64, 64});
  const auto stream = static_cast<cudaStream_t>(device.stream().handle);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  build_schedule_on_device(device.schedule(), device.lengths(), ScheduleDialect::kBlocks, {},
                           device.stream());
  check_cuda(cudaStreamEndCapture(stream, &graph), "end capture");
  check_cuda(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
  for (const std::vector<std::int32_t>& lengths : {std::vector<std::int32_t>{64, 64, 64, 64},
                                                   {4096, 1, 0, 0},
                                                   {65, 64, 64, 64},
                                                   {0, 0, 0, 0},
                                                   {100000, 100000, 1, 1}}) {
    device.upload(lengths);
    check_cuda(cudaGraphLaunch(replay, stream), "launch");
    EXPECT_TRUE(equal(device.download(ScheduleDialect::kBlocks),
                      on_host(lengths, 66, ScheduleDialect::kBlocks, {})));
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

template <typename Expected, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  return "not thrown";
}

TEST(MetadataKernel, RefusesWhatItDoesNotOffer) {
  MetadataOnDevice device(2, 700);
  const auto build = [&](const ScheduleParams& params) {
    build_schedule_on_device(device.schedule(), device.lengths(), ScheduleDialect::kTokens, params,
                             device.stream());
  };
  EXPECT_THAT(message_of<Unsupported>([&] {
                build({132, 1, 64, 5});
              }),
              HasSubstr("2 requests on 700 parts need"));
  EXPECT_THAT(message_of<Unsupported>([&] {
                build({132, 1, 64, 0});
              }),
              HasSubstr("overhead_blocks is 0"));
  EXPECT_THAT(message_of<Unsupported>([&] {
                build({132, 1, 64, 33});
              }),
              HasSubstr("overhead_blocks is 33"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { build({132, 1, 0, 5}); }), HasSubstr("block is 0"));
  ScheduleTensors wrong = device.schedule();
  wrong.num_splits = wrong.num_splits.narrow(0, 0, 2);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                build_schedule_on_device(wrong, device.lengths(), ScheduleDialect::kTokens, {},
                                         device.stream());
              }),
              HasSubstr("num_splits"));
}

}  // namespace
}  // namespace mladcp
