// What ranks of several processes found, brought together: a prefill is judged where it ran, and
// process 0 reports.
#pragma once

#include <string>
#include <string_view>

#include "harness/backend.h"
#include "harness/probe.h"

namespace mladcp {

// Checks, calls and step_seconds as bytes and back. InvalidArgument when the bytes are none of this
// version.
std::string encode_findings(const ProbeOutcome& findings);
ProbeOutcome decode_findings(std::string_view bytes);

// Every process hands in what its ranks found. Process 0 gets all of it, in rank order; the others
// get nothing. Where all ranks live in one process: `mine`.
ProbeOutcome gathered_at_root(Backend& backend, ProbeOutcome mine);

}  // namespace mladcp
