// How ranks talk. Attention logic sees this interface and nothing else of the group.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/device.h"
#include "core/tensor.h"

namespace mladcp {

enum class CollectiveOp : std::uint8_t { kAllGather, kReduceScatter, kAllToAll };

std::string_view name(CollectiveOp op);  // "all_gather", "reduce_scatter", "all_to_all"

// One call as data: what is logged, compared between ranks and golden-tested.
struct CollectiveCall {
  CollectiveOp op = CollectiveOp::kAllGather;
  int dim = 0;  // never negative here
  DType dtype = DType::kF32;
  Shape in_shape;
  Shape out_shape;
  std::string_view stage;     // a string literal: "query", "lse", "output", "context", ...
  std::int64_t sequence = 0;  // per handle, from 0

  friend bool operator==(const CollectiveCall& a, const CollectiveCall& b) = default;
};

// "all_gather #3 'query' dim 1 e4m3 [3, 16, 576] -> [3, 128, 576]"
std::string describe(const CollectiveCall& call);
// The fields in which two calls differ, as text: "dim 1 against 0, in_shape [3] against [4]".
std::string difference(const CollectiveCall& a, const CollectiveCall& b);

// One rank's handle on a group of world_size() ranks. In the laws below x_s is the input of rank s,
// n the extent of the input along dim, and index d stands for the position along dim.
//
// Completion: ordered on `stream`; host implementations are complete on return. All ranks must make
// the same calls in the same order. Errors: InvalidArgument before anything is sent; RankMismatch,
// Timeout, AbortedByPeer or a backend's error afterwards, on every rank.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // out[.., s * n + d, ..] == x_s[.., d, ..]            out.size(dim) == world_size() * n
  void all_gather(const TensorView& out, const TensorView& in, int dim, Stream stream,
                  std::string_view stage);

  // out[.., d, ..] == sum over s of x_s[.., rank() * m + d, ..]     n == world_size() * m
  // fp32 or bf16 only: a sum of FP8 codes has no meaning, of bytes even less.
  void reduce_scatter(const TensorView& out, const TensorView& in, int dim, Stream stream,
                      std::string_view stage);

  // out[s] == x_s[rank()]                                in.size(0) == out.size(0) == world_size()
  void all_to_all(const TensorView& out, const TensorView& in, Stream stream,
                  std::string_view stage);

  // Waits for the calls made on `stream` and throws what went wrong with one of them after it was
  // enqueued, such as a peer that never came. Host implementations are complete already.
  virtual void synchronize(Stream) {}

 private:
  // The tensors as given: any axis, any strides; checked against `call`.
  virtual void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
                   Stream stream) = 0;

  // Decorators hand a checked call on under its own sequence number.
  friend class ForwardingCollective;

  std::int64_t next_sequence_ = 0;
};

// Bytes one rank must receive (and send) for this call: the (N-1)/N laws.
//   all_gather      (N - 1) * in_bytes
//   reduce_scatter  (N - 1) / N * in_bytes
//   all_to_all      (N - 1) / N * in_bytes
std::int64_t wire_bytes(const CollectiveCall& call, int world_size);

}  // namespace mladcp
