// N ranks as threads: where their exceptions go.
#pragma once

#include <functional>
#include <string>

namespace mladcp {

// Runs body(rank) once a rank, each on its own thread, and waits for all. When one throws,
// abort(rank, message) is called on its thread at once, so that the others need not wait for it.
// The first exception that is not AbortedByPeer is thrown on; failing that, the first
// AbortedByPeer. A rank that the system gives no thread has failed so, with an Error that says it.
void run_ranks(int world_size, const std::function<void(int)>& body,
               const std::function<void(int, const std::string&)>& abort);

}  // namespace mladcp
