// What the program is asked to simulate: every choice a run depends on, and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/decode_plan.h"
#include "core/model.h"

namespace mladcp {

enum class Phase : std::uint8_t { kDecode, kPrefill, kBoth };
std::string_view name(Phase phase);  // "decode", "prefill", "both"
Phase phase_from_name(std::string_view text);

struct Scenario {
  std::string model = "deepseek-v3";
  ParallelConfig parallel;  // heads: the model's unless overridden
  Phase phase = Phase::kDecode;

  // Decode: global lengths S, each including its q_len new tokens. Both: the lengths that
  // conversations reach (harness/conversation.h).
  std::vector<std::int64_t> seq_lens;
  std::int64_t q_len = 1;

  // Prefill: cached context and new tokens per request. Both: new tokens a prefill adds. Workspace:
  // gathered rows a chunk may hold.
  std::vector<std::int64_t> context_lens;
  std::vector<std::int64_t> new_tokens;
  std::int64_t workspace_rows = 0;
  // Heads of a rank that FP64 judges of a prefill: a number, "all", or "auto", as many as take
  // seconds (harness/prefill_sample.h).
  std::string audit = "auto";

  std::int64_t group = -1;  // the DCP group to simulate; -1 for all tp / dcp of them
  std::string device = "cpu";
  std::string collective = "in_process";
  std::uint64_t seed = 0;
  double timeout_s = 60.0;
  // Exchange fingerprints before every call of a collective that compares none.
  bool validate = false;
  std::vector<std::string> probes = {"numeric"};

  ModelConfig model_config() const { return model_from_name(model); }
  // The requests of a decode or prefill step.
  std::vector<StepRequest> step_requests() const;
};

// Throws InvalidArgument naming field, value and remedy: all of ParallelConfig's rules, and group
// in range, timeout above 0, known device, collective and probes, lengths that fit, nothing given
// that means nothing here.
void validate(const Scenario& scenario);

// Every setting as JSON; harness/scenario_draft.h reads it back.
std::string to_json(const Scenario& scenario);

}  // namespace mladcp
