#include "harness/scenario_draft.h"

#include <optional>
#include <utility>

#include "core/ceil_div.h"
#include "core/chunk_plan.h"
#include "core/error.h"
#include "harness/lengths.h"

namespace mladcp {
namespace {

constexpr std::int64_t kDefaultNewTokens = 64;
constexpr std::int64_t kDefaultWorkspace = 4096;

// Eight lengths of a real service, shipped with the sources.
LengthsSource default_lengths_source() {
  return {std::string(MLADCP_DATA_DIR) + "/azure_llm_code.csv", "ContextTokens"};
}

std::vector<std::int64_t> traced_lengths(const ScenarioDraft& draft) {
  if (draft.gives("batch") && draft.batch == 0) return {};  // ranks still enter every collective
  const LengthsSource source =
      draft.gives("lengths") ? parse_lengths_source(draft.lengths) : default_lengths_source();
  std::optional<std::uint64_t> pick;
  if (draft.gives("seed")) pick = draft.scenario.seed;
  return read_lengths(source, draft.batch, pick);
}

// One number of new tokens stands for every request; a workspace holds some thousand rows.
void complete_prefill(Scenario& scenario, std::size_t requests) {
  if (scenario.new_tokens.empty()) scenario.new_tokens = {kDefaultNewTokens};
  if (scenario.new_tokens.size() == 1) scenario.new_tokens.resize(requests, scenario.new_tokens[0]);
  if (scenario.workspace_rows == 0) scenario.workspace_rows = default_workspace(scenario.parallel);
}

// Where a source turns to another phase, earlier ones may be the report of the phase before: what
// that phase alone has ends, also empty lists, which every report has.
void turn_phase(ScenarioDraft& draft, const ScenarioDraft::Keys& given) {
  Scenario& scenario = draft.scenario;
  if (std::exchange(draft.phase, scenario.phase) == scenario.phase) return;
  const Scenario plain;
  const auto end = [&](const char* key, auto& value, const auto& plain_value) {
    if (given.count(key) != 0) return;
    value = plain_value;
    draft.given.erase(key);
  };
  const auto end_seq_lens = [&] { end("seq_lens", scenario.seq_lens, plain.seq_lens); };
  const auto end_contexts = [&] { end("context_lens", scenario.context_lens, plain.context_lens); };
  const auto end_added = [&] { end("new_tokens", scenario.new_tokens, plain.new_tokens); };
  const bool prefill = scenario.phase == Phase::kPrefill;
  if (!(prefill ? scenario.seq_lens : scenario.context_lens).empty()) {
    if (prefill || scenario.seq_lens.empty()) end_seq_lens();
    if (!prefill || scenario.context_lens.empty()) end_contexts();
    if (scenario.new_tokens.size() > 1) end_added();  // one a length
  }
  if (prefill) {
    ParallelConfig& config = scenario.parallel;
    end("q_len", scenario.q_len, plain.q_len);
    end("query", config.query, plain.parallel.query);
    end("q_scale", config.q_scale, plain.parallel.q_scale);
    end("combine", config.combine, plain.parallel.combine);
    end("reduce_dtype", config.reduce_dtype, plain.parallel.reduce_dtype);
    end("project_before_merge", config.project_before_merge, plain.parallel.project_before_merge);
    end("replicate_query", config.replicate_query, plain.parallel.replicate_query);
  }
  if (scenario.phase != Phase::kDecode) return;
  end_added();
  end("workspace", scenario.workspace_rows, plain.workspace_rows);
  end("audit", scenario.audit, plain.audit);
}

}  // namespace

std::int64_t default_workspace(const ParallelConfig& config) {
  validate(config);
  const std::int64_t cut = ChunkGeometry{config.sharding(), config.page_size, 0}.cut();
  return ceil_div(kDefaultWorkspace, cut) * cut;
}

void accept(ScenarioDraft& draft, const ScenarioDraft::Keys& given) {
  const auto gives = [&](const char* key) { return given.count(key) != 0; };
  const bool lists = gives("seq_lens") || gives("context_lens");
  if (lists && gives("lengths")) {
    throw InvalidArgument("lengths beside seq_lens or context_lens: use one of them");
  }
  if (lists) draft.given.erase("batch");
  if (lists || gives("lengths")) {
    for (const char* key : {"lengths", "seq_lens", "context_lens"}) draft.given.erase(key);
    if (!gives("seq_lens")) draft.scenario.seq_lens.clear();
    if (!gives("context_lens")) draft.scenario.context_lens.clear();
  }
  turn_phase(draft, given);
  draft.given.insert(given.begin(), given.end());
  if (gives("model") && !draft.gives("heads")) {
    draft.scenario.parallel.heads = draft.scenario.model_config().heads;
  }
  if (draft.gives("batch") && !draft.gives("lengths") &&
      (draft.gives("seq_lens") || draft.gives("context_lens"))) {
    throw InvalidArgument("batch = " + std::to_string(draft.batch) +
                          ": needs lengths; seq_lens and context_lens say themselves how many "
                          "requests there are");
  }
}

Scenario complete(const ScenarioDraft& draft) {
  if (draft.batch < 0) {
    throw InvalidArgument("batch = " + std::to_string(draft.batch) + ": must be at least 0");
  }
  Scenario scenario = draft.scenario;
  const bool prefill = scenario.phase == Phase::kPrefill;
  std::vector<std::int64_t>& traced = prefill ? scenario.context_lens : scenario.seq_lens;
  if (!draft.gives(prefill ? "context_lens" : "seq_lens")) traced = traced_lengths(draft);
  if (scenario.phase != Phase::kDecode) complete_prefill(scenario, traced.size());
  validate(scenario);
  return scenario;
}

}  // namespace mladcp
