// What tensors, axis moves and the in-process group need of a device. One implementation for host
// memory (here), one for CUDA (kernels/device).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "core/tensor.h"

namespace mladcp {

// Ordered work on a device. The host has one stream, the null one, on which everything is complete
// on return. On CUDA `handle` is a cudaStream_t of a non-blocking stream; null is refused there.
struct Stream {
  void* handle = nullptr;
};

// A point in a stream's work.
struct Event {
  void* handle = nullptr;
};

enum class DeviceKind { kHost, kCuda };

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string_view description() const = 0;  // "host", "cuda:0 NVIDIA H200"

  // Uninitialised memory aligned to at least 256 bytes; zero bytes give a unique pointer or null.
  // Throws Error (CudaError) when memory is short, naming the bytes asked for.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* pointer) noexcept = 0;

  virtual Stream create_stream() = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  virtual void synchronize(Stream stream) = 0;

  virtual Event create_event() = 0;
  virtual void destroy_event(Event event) noexcept = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;

  // Contiguous bytes within this device, or to and from host memory. Ordered on `stream`; the two
  // host directions are complete on return.
  virtual void copy(void* destination, const void* source, std::size_t bytes, Stream stream) = 0;
  virtual void copy_from_host(void* destination, const void* source, std::size_t bytes,
                              Stream stream) = 0;
  virtual void copy_to_host(void* destination, const void* source, std::size_t bytes,
                            Stream stream) = 0;
  virtual void fill_bytes(void* destination, unsigned char value, std::size_t bytes,
                          Stream stream) = 0;

  // destination[i, j, ...] = source[i, j, ...] for views of equal shape and element size, any
  // strides, bytes moved untouched (NaN payloads survive).
  virtual void copy_strided(const TensorView& destination, const TensorView& source,
                            Stream stream) = 0;

  // out[...] = round(((in[0] + in[1]) + in[2]) + ...), in fp32, in rank order, each element rounded
  // once to out's dtype (fp32 or bf16; inputs all fp32 or all bf16). Bitwise repeatable.
  virtual void sum_in_rank_order(const TensorView& out, std::span<const TensorView> inputs,
                                 Stream stream) = 0;
};

// Host memory; thread safe; lives for the whole program.
Device& host_device();

}  // namespace mladcp
