// The one way the CPU code uses several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace mladcp {

// The threads one of `ranks` simulated ranks may use on this machine: cores / ranks, at least 1.
int threads_per_rank(int ranks);

// Calls body(i) once for every i in [0, count), on up to `threads` threads, the calling one among
// them; returns when all calls have. Which thread takes which i is open, so body(i) must write what
// no other call touches: rows and heads are split here, never a reduction, and results do not
// depend on the number of threads. Threads take `grain` consecutive i at a time; work that fits one
// grain stays on the calling thread. An exception stops the handing out of further work and is
// rethrown here (the first one, when several are thrown).
void parallel_for(int threads, std::int64_t count, const std::function<void(std::int64_t)>& body,
                  std::int64_t grain = 1);

}  // namespace mladcp
