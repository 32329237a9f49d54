#include "kernels/metadata/metadata.cuh"

#include <cuda_runtime_api.h>

#include <string>

#include "core/error.h"
#include "kernels/device/cuda_error.h"
#include "kernels/device/cuda_stream.h"

namespace mladcp {
namespace {

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

void expect_supported(const MetadataParams& params) {
  if (params.overhead_blocks < 1 || params.overhead_blocks > kMaxMetadataOverhead) {
    throw Unsupported("metadata kernel: overhead_blocks is " +
                      std::to_string(params.overhead_blocks) + ", offered are 1.." +
                      std::to_string(kMaxMetadataOverhead) + "; core's build_schedule takes any");
  }
  if (params.num_parts > kMaxMetadataParts) {
    throw Unsupported("metadata kernel: " + std::to_string(params.num_parts) +
                      " parts, offered are at most " + std::to_string(kMaxMetadataParts));
  }
  if (reinterpret_cast<std::uintptr_t>(params.parts) % 16 != 0) {
    throw InvalidArgument("metadata kernel: parts must be aligned to 16 bytes");
  }
}

// As many chunks as give every walk a thread of its own and fit into shared memory, at most the
// root of P: a part's way is one chunk's walk and a look-up for each chunk before.
metadata::Plan plan_for(const MetadataParams& params, std::int64_t shared_bytes) {
  const auto plan_of = [&](int chunks) {
    return metadata::Plan(params.requests, params.num_parts, params.overhead_blocks, chunks);
  };
  int chunks = 1;
  while ((chunks + 1) * (chunks + 1) <= params.num_parts &&
         plan_of(chunks + 1).walks <= metadata::kThreads &&
         plan_of(chunks + 1).bytes <= shared_bytes) {
    ++chunks;
  }
  const metadata::Plan plan = plan_of(chunks);
  if (plan.bytes > shared_bytes) {
    throw Unsupported("metadata kernel: " + std::to_string(params.requests) + " requests on " +
                      std::to_string(params.num_parts) + " parts need " +
                      std::to_string(plan.bytes) + " bytes of shared memory, this card offers " +
                      std::to_string(shared_bytes) + "; build the schedule on the host");
  }
  return plan;
}

void launch_few(const MetadataParams& params, Stream stream) {
  const metadata::KernelParams kernel{
      params, metadata::Plan(params.requests, params.num_parts, params.overhead_blocks, 1),
      FastDivisor(static_cast<std::uint32_t>(params.block)),
      FastDivisor(static_cast<std::uint32_t>(params.num_parts))};
  launch_dependent("metadata_few_kernel", metadata::metadata_few_kernel, 1, metadata::kFewThreads,
                   0, cuda_stream(stream), kernel);
}

}  // namespace

void launch_metadata(const MetadataParams& params, Stream stream) {
  expect_supported(params);
  if (params.requests <= metadata::kFewRequests && params.num_parts <= metadata::kFewParts) {
    return launch_few(params, stream);
  }
  constexpr int kStaticBytes = 1024;  // what the scan takes, rounded up
  const metadata::KernelParams kernel{
      params,
      plan_for(params, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kStaticBytes),
      FastDivisor(static_cast<std::uint32_t>(params.block)),
      FastDivisor(static_cast<std::uint32_t>(params.num_parts))};
  check_cuda(cudaFuncSetAttribute(metadata::metadata_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.plan.bytes),
             "cudaFuncSetAttribute(metadata_kernel)");
  launch_dependent("metadata_kernel", metadata::metadata_kernel, 1, metadata::kThreads,
                   static_cast<std::size_t>(kernel.plan.bytes), cuda_stream(stream), kernel);
}

void build_schedule_on_device(const ScheduleTensors& schedule, const TensorView& lengths,
                              ScheduleDialect dialect, const ScheduleParams& params,
                              Stream stream) {
  const std::int64_t requests = lengths.rank() == 1 ? lengths.size(0) : 0;
  const std::int64_t num_parts = schedule.parts.rank() == 2 ? schedule.parts.size(0) : 0;
  expect(lengths, DType::kI32, {requests});
  expect(schedule.parts, DType::kI32, {num_parts, kPartFields});
  expect(schedule.num_splits, DType::kI32, {requests + 1});
  expect_contiguous(lengths);
  expect_contiguous(schedule.parts);
  expect_contiguous(schedule.num_splits);
  // The host's check of everything but the lengths themselves.
  part_payload({}, num_parts, dialect, params);
  if (requests > kMaxScheduledRequests) {
    throw InvalidArgument("schedule: lengths has " + std::to_string(requests) +
                          " requests, at most " + std::to_string(kMaxScheduledRequests) +
                          " can be scheduled; split the batch");
  }
  MetadataParams kernel;
  kernel.lengths = lengths.as<const std::int32_t>();
  kernel.parts = schedule.parts.as<std::int32_t>();
  kernel.num_splits = schedule.num_splits.as<std::int32_t>();
  kernel.requests = static_cast<std::int32_t>(requests);
  kernel.num_parts = static_cast<std::int32_t>(num_parts);
  kernel.block = static_cast<std::int32_t>(params.block);
  kernel.overhead_blocks = static_cast<std::int32_t>(params.overhead_blocks);
  kernel.dialect = dialect;
  launch_metadata(kernel, stream);
}

}  // namespace mladcp
