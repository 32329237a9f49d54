// One thread block builds the whole schedule.
//
// Lay the requests end to end, blocks + overhead each: request j starts at W[j]. A part that starts
// at x ends at max(x + S, the last W <= x + S + overhead), S = ceil(W[B] / P): it takes S blocks
// net of one overhead, and where that would end in or right before another request's overhead it
// ends at that request's start. (docs/scheduler.md derives this from the greedy rule.)
//
// So part m starts at x[m] = m S + d[m], where the drift d never falls and grows by at most the
// overhead c a part: 0 <= d[m] <= c m. By how much depends on m and d alone: a table of c P^2 / 2
// bytes, jump[m][d], which all threads fill at once, each W the c bytes before it. Walking the
// table is all that is sequential, and it is cut into chunks of parts that are walked at the same
// time from every drift a chunk can begin with; then each part looks up its own.
#pragma once

#include <cub/block/block_scan.cuh>

#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/fast_divide.h"
#include "kernels/metadata/metadata.h"

namespace mladcp::metadata {

inline constexpr int kThreads = 1024;
inline constexpr int kItems = 4;  // requests a thread takes of a tile
inline constexpr int kTile = kThreads * kItems;

// First byte of row m >= 1 of the jump table: row m has c (m - 1) + 1 entries.
__host__ __device__ constexpr int jump_row(int m, int c) {
  return c * (m - 1) * (m - 2) / 2 + (m - 1);
}

// Where things lie in dynamic shared memory, in bytes, and how the walk is cut.
struct Plan {
  int chunks;       // K
  int chunk_parts;  // L: chunk k walks parts k L + 1 .. (k + 1) L
  int walks;        // all chunks, each from c k L + 1 drifts: one thread a walk
  int starts;       // int32 [B + 1]: W
  int at;           // int32 [P + 1]: the request in which each part starts
  int offset;       // int32 [P + 1]: blocks of that request before the part
  int cuts;         // uint32 [32]: bit p: part p starts inside a request
  int jump;         // bytes
  int jump_bytes;
  int path;  // uint16 [L, walks]: drifts along each walk
  int bytes;

  // The first walk of chunk k.
  __host__ __device__ int walk(int k, int c) const { return c * chunk_parts * k * (k - 1) / 2 + k; }

  __host__ __device__ Plan(int requests, int parts, int c, int wanted_chunks)
      : chunks(wanted_chunks),
        chunk_parts((parts - 1 + chunks - 1) / chunks),
        walks(walk(chunks, c)),
        starts(0),
        at(4 * (requests + 1)),
        offset(at + 4 * (parts + 1)),
        cuts(offset + 4 * (parts + 1)),
        jump((cuts + 4 * 32 + 15) / 16 * 16),
        jump_bytes((jump_row(parts, c) + 15) / 16 * 16),
        path(jump + jump_bytes),
        bytes(path + 2 * chunk_parts * walks) {}
};

struct KernelParams {
  MetadataParams given;
  Plan plan;
  FastDivisor block;
  FastDivisor parts;
};

// Quotients below 2^16 by one divisor: a float estimate is off by one at most.
class SmallDivisor {
 public:
  __device__ explicit SmallDivisor(int divisor)
      : divisor_(divisor), inverse_(1.0F / static_cast<float>(divisor)) {}
  __device__ int quotient(int dividend) const {
    const int estimate = static_cast<int>(static_cast<float>(dividend) * inverse_);
    const int rest = dividend - estimate * divisor_;  // in -divisor .. 2 divisor - 1
    return rest < 0 ? estimate - 1 : rest >= divisor_ ? estimate + 1 : estimate;
  }

 private:
  int divisor_;
  float inverse_;
};

// The last index in 0 .. last whose value is <= x; values ascend and values[0] <= x.
__device__ inline int last_up_to(const int* values, int last, int x) {
  int low = 0;
  for (int half = last == 0 ? 0 : 1 << (31 - __clz(last)); half > 0; half /= 2) {
    const int probe = low + half;
    if (probe <= last && values[probe] <= x) low = probe;
  }
  return low;
}

__device__ inline int scheduled(int length, const KernelParams& params) {
  const int blocks =
      length > 0 ? static_cast<int>(params.block.quotient(static_cast<unsigned>(length - 1))) + 1
                 : 0;
  return params.given.dialect == ScheduleDialect::kTokens ? blocks : max(1, blocks);
}

// W of all requests; returns W[B]. Clears the jump table while the lengths are under way.
__device__ inline int lay_out(const KernelParams& params, int* starts, unsigned char* jump) {
  using Scan = cub::BlockScan<int, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage scan_storage;
  const int requests = params.given.requests;
  const int thread = static_cast<int>(threadIdx.x);
  int total = 0;
  for (int tile = 0; tile == 0 || tile < requests; tile += kTile) {
    const int first = tile + thread * kItems;
    int cost[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      cost[i] = first + i < requests ? params.given.lengths[first + i] : 0;
    }
    if (tile == 0) {
      auto* words = reinterpret_cast<int4*>(jump);
      for (int i = thread; i < params.plan.jump_bytes / 16; i += kThreads) {
        words[i] = int4{0, 0, 0, 0};
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      cost[i] =
          first + i < requests ? params.given.overhead_blocks + scheduled(cost[i], params) : 0;
    }
    int sum = 0;
    Scan(scan_storage).ExclusiveSum(cost, cost, sum);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (first + i < requests) starts[first + i] = total + cost[i];
    }
    total += sum;
    if (thread == 0) starts[requests] = total;
    __syncthreads();
  }
  return total;
}

// Every request's start W into the rows of the parts whose step may reach it. A group of threads
// shares a request: when there are few, each reaches many rows.
__device__ inline void fill_jumps(unsigned char* jump, const int* starts, int requests, int parts,
                                  int c, int step, const SmallDivisor& by_step) {
  const int shift = requests >= kThreads ? 0 : 31 - __clz(kThreads / max(1, requests));
  const int group = 1 << shift;
  for (int i = static_cast<int>(threadIdx.x); i < requests << shift; i += kThreads) {
    const int before = starts[1 + (i >> shift)] - 1;
    int m = min(by_step.quotient(before), parts - 1) - (i & (group - 1));
    // e: the drift at which a step of part m ends one block before the start.
    for (int e = before - m * step; m >= 1 && e < c * m; m -= group, e += group * step) {
      unsigned char* row = jump + jump_row(m, c);
      const int most = min(e, c * (m - 1));
      for (int d = max(0, e - c + 1); d <= most; ++d) {
        row[d] = static_cast<unsigned char>(e - d + 1);
      }
    }
  }
}

// path[s][walk]: the drift after s + 1 parts, for the walk of every chunk from every drift.
__device__ inline void walk_chunks(unsigned short* path, const unsigned char* jump,
                                   const Plan& plan, int parts, int c) {
  for (int walk = static_cast<int>(threadIdx.x); walk < plan.walks; walk += kThreads) {
    int k = 0;
    while (k + 1 < plan.chunks && walk >= plan.walk(k + 1, c)) ++k;
    const int first = k * plan.chunk_parts + 1;
    const int last = min(first + plan.chunk_parts, parts);
    int drift = walk - plan.walk(k, c);
    int index = jump_row(first, c) + drift;
    int width = c * (first - 1) + 1;  // of the row
    unsigned short* out = path + walk;
#pragma unroll 4
    for (int m = first; m < last; ++m) {
      const int grown = jump[index];
      index += width + grown;
      width += c;
      drift += grown;
      *out = static_cast<unsigned short>(drift);
      out += plan.walks;
    }
  }
}

// The drift of part p, 0 <= p < P: through the ends of the chunks before its own.
__device__ inline int drift_of(int p, const unsigned short* path, const Plan& plan, int c) {
  if (p == 0) return 0;
  int drift = 0;
  int k = 0;
  int s = p - 1;
  for (; s >= plan.chunk_parts; s -= plan.chunk_parts, ++k) {
    drift = path[(plan.chunk_parts - 1) * plan.walks + plan.walk(k, c) + drift];
  }
  return path[s * plan.walks + plan.walk(k, c) + drift];
}

// `lengths`: of the requests, in global or shared memory.
__device__ inline void write_part(const KernelParams& params, int p, const int* lengths,
                                  const int* at, const int* offset, const SmallDivisor& by_step) {
  const MetadataParams& given = params.given;
  const bool tokens = given.dialect == ScheduleDialect::kTokens;
  const int unit = tokens ? given.block : 1;
  const int begin = at[p];
  const int next = at[p + 1];
  const int cut = offset[p + 1];
  int end = cut * unit;
  if (cut == 0 && next > 0) {
    const int length = max(0, lengths[next - 1]);
    end = tokens || length == 0 ? length : scheduled(length, params);
  }
  const int split = offset[p] == 0 ? 0 : by_step.quotient(offset[p] - 1) + 1;
  auto* row = reinterpret_cast<int4*>(given.parts + p * static_cast<int>(kPartFields));
  row[0] = int4{begin == given.requests && !tokens ? -1 : begin, offset[p] * unit,
                cut > 0 ? next : next - 1, end};
  row[1] = int4{split, 0, 0, 0};
}

// num_splits[j] = j + the cuts inside requests before j.
__device__ inline void write_splits(const MetadataParams& given, const int* at,
                                    const unsigned* cuts) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) given.num_splits[0] = 0;
#pragma unroll 4
  for (int j = 1 + thread; j <= given.requests; j += static_cast<int>(blockDim.x)) {
    const int p = last_up_to(at, given.num_parts - 1, j - 1);
    int sum = j + __popc(cuts[p / 32] & (0xffffffffU >> (31 - p % 32)));
    for (int w = 0; w < p / 32; ++w) sum += __popc(cuts[w]);
    given.num_splits[j] = sum;
  }
}

// Where part `thread` of the block starts, "part P" behind the last request: into at, offset and
// the bits of cuts.
__device__ inline void locate_part(int position, bool exists, const int* starts, int requests,
                                   int* at, int* offset, unsigned* cuts) {
  const int thread = static_cast<int>(threadIdx.x);
  bool cut = false;
  if (exists) {
    const int request = last_up_to(starts, requests, position);
    at[thread] = request;
    offset[thread] = position - starts[request];
    cut = position > starts[request];
  }
  const unsigned ballot = __ballot_sync(0xffffffffU, cut);
  if (thread % 32 == 0) cuts[thread / 32] = ballot;
}

__global__ void __launch_bounds__(kThreads)
    metadata_kernel(const __grid_constant__ KernelParams params) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Plan& plan = params.plan;
  auto* starts = reinterpret_cast<int*>(shared + plan.starts);
  auto* at = reinterpret_cast<int*>(shared + plan.at);
  auto* offset = reinterpret_cast<int*>(shared + plan.offset);
  auto* cuts = reinterpret_cast<unsigned*>(shared + plan.cuts);
  auto* path = reinterpret_cast<unsigned short*>(shared + plan.path);
  unsigned char* jump = shared + plan.jump;
  const int thread = static_cast<int>(threadIdx.x);
  const int requests = params.given.requests;
  const int parts = params.given.num_parts;
  const int c = params.given.overhead_blocks;
  wait_for_upstream_grid();
  allow_dependent_grid();

  const int total = lay_out(params, starts, jump);
  const int step = max(1, (total - 1) / parts + 1);
  const SmallDivisor by_step(step);
  fill_jumps(jump, starts, requests, parts, c, step, by_step);
  __syncthreads();
  walk_chunks(path, jump, plan, parts, c);
  __syncthreads();

  const int position =
      thread < parts ? min(total, thread * step + drift_of(thread, path, plan, c)) : total;
  locate_part(position, thread <= parts, starts, requests, at, offset, cuts);
  __syncthreads();

  // Parts from the last thread down, requests from the first up: few of both run side by side.
  const int part = kThreads - 1 - thread;
  if (part < parts) write_part(params, part, params.given.lengths, at, offset, by_step);
  write_splits(params.given, at, cuts);
}

// --- Few requests
//
// A part that starts at W[k] is followed by parts at W[k] + i S until one ends at a start again:
// for the smallest i >= 1 with a W[j] in (W[k] + i S, W[k] + i S + c]. No window holds two, as
// starts lie at least c apart. All pairs of starts are tried at once; then hops are doubled, and
// each part takes the binary digits of its number of hops from the first start.

inline constexpr int kFewRequests = 256;
inline constexpr int kFewThreads = 512;
inline constexpr int kFewParts = kFewThreads - 1;
inline constexpr int kHopLevels = 9;  // 2^9 hops and more: no chain has as many as 257 starts
inline constexpr int kNoHop = 0x7FFF;

// A hop to start `to` past `parts` parts, or kNoHop parts when there is none.
struct Hop {
  int packed;
  __device__ Hop(int parts, int to) : packed(min(parts, kNoHop) << 16 | to) {}
  __device__ explicit Hop(int p) : packed(p) {}
  __device__ int parts() const { return packed >> 16; }
  __device__ int to() const { return packed & 0xFFFF; }
};

struct FewShared {
  int4 residue[kFewRequests / 4 + 1];  // W[j] mod S, in fours
  int starts[kFewRequests + 4];
  int lengths[kFewRequests];
  int hop[kHopLevels][kFewRequests + 1];
  int at[kFewThreads];
  int offset[kFewThreads];
  unsigned cuts[kFewThreads / 32];
  int warp_cost[kFewRequests / 32];
};

// W of all requests into shared.starts, the lengths into shared.lengths; returns W[B].
__device__ inline int lay_out_few(const KernelParams& params, FewShared& shared) {
  const int requests = params.given.requests;
  const int thread = static_cast<int>(threadIdx.x);
  int cost = 0;
  if (thread < requests) {
    const int length = params.given.lengths[thread];
    shared.lengths[thread] = length;
    cost = params.given.overhead_blocks + scheduled(length, params);
  }
  int sum = cost;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int before = __shfl_up_sync(0xffffffffU, sum, lanes);
    if (thread % 32 >= lanes) sum += before;
  }
  if (thread % 32 == 31 && thread < kFewRequests) shared.warp_cost[thread / 32] = sum;
  __syncthreads();
  int total = 0;
  int start = sum - cost;
#pragma unroll
  for (int w = 0; w < kFewRequests / 32; ++w) {
    const int of_warp = shared.warp_cost[w];
    if (w < thread / 32) start += of_warp;
    total += of_warp;
  }
  if (thread <= requests) shared.starts[thread] = thread < requests ? start : total;
  return total;
}

// The first start that a chain from start k ends a part at.
__device__ inline Hop find_hop(const FewShared& shared, int k, int slice, int slices, int requests,
                               int c, int step, const SmallDivisor& by_step) {
  const int own = reinterpret_cast<const int*>(shared.residue)[k];
  const int reach = shared.starts[k] + step;
  // Windows as wide as a step leave no gap: every start beyond the first step is in one.
  const unsigned width = step <= c ? 0xffffffffU : static_cast<unsigned>(c);
  int first = requests + 1;
  for (int four = (k + 1) / 4 + slice; 4 * four <= requests && first > requests; four += slices) {
    const int4 r = shared.residue[four];
    const int residue[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int e = 3; e >= 0; --e) {
      const int apart = residue[e] - own;
      const bool in_window = static_cast<unsigned>(apart - 1) < width ||
                             static_cast<unsigned>(apart + step - 1) < width;
      const int j = 4 * four + e;
      if (in_window && j <= requests && shared.starts[j] > reach) first = j;
    }
  }
  for (int lanes = slices / 2; lanes > 0; lanes /= 2) {
    first = min(first, __shfl_xor_sync(0xffffffffU, first, lanes));
  }
  if (first > requests) return {kNoHop, requests};
  const int beyond = shared.starts[first] - shared.starts[k] - c;
  return {beyond > 0 ? by_step.quotient(beyond - 1) + 1 : 1, first};
}

__global__ void __launch_bounds__(kFewThreads)
    metadata_few_kernel(const __grid_constant__ KernelParams params) {
  __shared__ FewShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int requests = params.given.requests;
  const int parts = params.given.num_parts;
  const int c = params.given.overhead_blocks;
  wait_for_upstream_grid();
  allow_dependent_grid();

  const int total = lay_out_few(params, shared);
  const int step =
      total > 0 ? static_cast<int>(params.parts.quotient(static_cast<unsigned>(total - 1))) + 1 : 1;
  const SmallDivisor by_step(step);
  if (thread <= requests) {
    const int start = shared.starts[thread];  // its own
    reinterpret_cast<int*>(shared.residue)[thread] = start - by_step.quotient(start) * step;
  }
  __syncthreads();

  const int slices = requests <= kFewThreads / 4 ? 4 : 2;  // threads that share a start
  for (int k = thread / slices; k < (requests + 31) / 32 * 32; k += kFewThreads / slices) {
    const Hop hop =
        find_hop(shared, min(k, requests), thread % slices, slices, requests, c, step, by_step);
    if (thread % slices == 0 && k < requests) shared.hop[0][k] = hop.packed;
  }
  if (thread == 0) shared.hop[0][requests] = Hop(kNoHop, requests).packed;
  __syncthreads();
  const int levels = 32 - __clz(min(requests, parts));
  for (int level = 1; level < levels; ++level) {
    if (thread <= requests) {
      const Hop near(shared.hop[level - 1][thread]);
      const Hop far(shared.hop[level - 1][near.to()]);
      shared.hop[level][thread] = Hop(near.parts() + far.parts(), far.to()).packed;
    }
    __syncthreads();
  }

  int start = 0;
  int passed = 0;
  if (thread < parts) {
    for (int level = levels - 1; level >= 0; --level) {
      const Hop hop(shared.hop[level][start]);
      if (passed + hop.parts() <= thread) {
        passed += hop.parts();
        start = hop.to();
      }
    }
  }
  const int position =
      thread < parts ? min(total, shared.starts[start] + (thread - passed) * step) : total;
  locate_part(position, thread <= parts, shared.starts, requests, shared.at, shared.offset,
              shared.cuts);
  __syncthreads();

  const int part = kFewThreads - 1 - thread;
  if (part < parts) {
    write_part(params, part, shared.lengths, shared.at, shared.offset, by_step);
  }
  write_splits(params.given, shared.at, shared.cuts);
}

}  // namespace mladcp::metadata
