// Checks of an attention call that came from elsewhere (harness/attention_dump.h).
#pragma once

#include <string>
#include <vector>

#include "harness/check.h"

namespace mladcp {

// Stages "attention" and "lse" of every file, the file's place in the list as its rank: output and
// LSE against FP64 within the bounds of the numerics profile, the LSE against the model of the
// tensor core where the profile says so, and which rows are empty. `numerics` empty: sm90_fp8 for
// an e4m3 query, cuda_generic_fp8 or cuda_generic_bf16 by the cache otherwise. InvalidArgument as
// read_attention_dump and profile_from_name, and for a profile of other formats than the file's.
std::vector<Check> judge_dumps(const std::vector<std::string>& files, const std::string& numerics,
                               int threads);

}  // namespace mladcp
