// The Device of core/device.h on one CUDA card. Streams are non-blocking, the legacy stream is
// refused, every call makes its card current first: N ranks as N threads may share one CudaDevice.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"

namespace mladcp {

// What a dispatcher needs to know of a card.
struct CudaProperties {
  std::string name;            // "NVIDIA H200"
  int compute_capability = 0;  // 90 for sm_90
  int multiprocessors = 0;
  int l2_bytes = 0;
  int max_shared_bytes_per_block = 0;  // after opting in
  std::size_t memory_bytes = 0;
};

class CudaDevice final : public Device {
 public:
  // Throws Unsupported when there is no such card or it is older than sm_80, naming what there is.
  explicit CudaDevice(int index = 0);

  int index() const { return index_; }
  const CudaProperties& properties() const { return properties_; }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string_view description() const override { return description_; }

  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer) noexcept override;

  Stream create_stream() override;
  void destroy_stream(Stream stream) noexcept override;
  void synchronize(Stream stream) override;

  Event create_event() override;
  void destroy_event(Event event) noexcept override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;

  void copy(void* destination, const void* source, std::size_t bytes, Stream stream) override;
  void copy_from_host(void* destination, const void* source, std::size_t bytes,
                      Stream stream) override;
  void copy_to_host(void* destination, const void* source, std::size_t bytes,
                    Stream stream) override;
  void fill_bytes(void* destination, unsigned char value, std::size_t bytes,
                  Stream stream) override;

  void copy_strided(const TensorView& destination, const TensorView& source,
                    Stream stream) override;
  void sum_in_rank_order(const TensorView& out, std::span<const TensorView> inputs,
                         Stream stream) override;

 private:
  int index_ = 0;
  CudaProperties properties_;
  std::string description_;
};

// One line per card ("cuda:0 NVIDIA H200, sm_90, 132 SMs, 139 GiB"); empty without a card or
// driver.
std::vector<std::string> available_cuda_devices();

// Throws CudaError when less than `bytes` are free on the card, with the sizes and the remedy:
// for large problems, before the first of many allocations.
void expect_free_memory(const CudaDevice& device, std::size_t bytes, std::string_view purpose);

}  // namespace mladcp
