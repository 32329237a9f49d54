#include "harness/scenario_draft.h"

#include <optional>
#include <utility>

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
  if (scenario.workspace_rows != 0) return;
  const ParallelConfig& config = scenario.parallel;
  validate(config);
  const std::int64_t cut = ChunkGeometry{config.sharding(), config.page_size, 0}.cut();
  scenario.workspace_rows = (kDefaultWorkspace + cut - 1) / cut * cut;
}

// Where a source turns to another phase, earlier ones may be the report of the phase before: what
// the requests of that phase alone have ends, also empty lists, which every report has.
void turn_phase(ScenarioDraft& draft, const ScenarioDraft::Keys& given) {
  Scenario& scenario = draft.scenario;
  if (std::exchange(draft.phase, scenario.phase) == scenario.phase) return;
  const Scenario plain;
  const auto end = [&](const char* key, auto Scenario::*field) {
    if (given.count(key) != 0) return;
    scenario.*field = plain.*field;
    draft.given.erase(key);
  };
  const bool prefill = scenario.phase == Phase::kPrefill;
  if (!(prefill ? scenario.seq_lens : scenario.context_lens).empty()) {
    if (scenario.seq_lens.empty()) end("seq_lens", &Scenario::seq_lens);
    if (scenario.context_lens.empty()) end("context_lens", &Scenario::context_lens);
    end(prefill ? "seq_lens" : "context_lens",
        prefill ? &Scenario::seq_lens : &Scenario::context_lens);
    if (scenario.new_tokens.size() > 1) end("new_tokens", &Scenario::new_tokens);  // one a length
  }
  if (prefill) end("q_len", &Scenario::q_len);
  if (scenario.phase != Phase::kDecode) return;
  end("new_tokens", &Scenario::new_tokens);
  end("workspace", &Scenario::workspace_rows);
  end("audit", &Scenario::audit);
}

}  // namespace

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
