// The backends of CUDA cards: simulated ranks on one card, and NCCL between cards.
#pragma once

#include <memory>

#include "harness/backend.h"

namespace mladcp {

// All ranks on the first visible card, a stream each; collectives in_process and fake. Unsupported
// without a card, or in a build without CUDA.
std::unique_ptr<Backend> make_cuda_backend(int ranks);

// Rank r alone on its card: card r, a thread a rank, or, where a launcher started several
// processes, this process' rank on the card of its local rank. InvalidArgument when the launcher
// started another number of them than `ranks`; Unsupported with too few cards, or in a build
// without NCCL. `timeout_s` of connecting and of a call.
std::unique_ptr<Backend> make_nccl_backend(int ranks, double timeout_s);

}  // namespace mladcp
