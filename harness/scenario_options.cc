#include "harness/scenario_options.h"

#include <fstream>
#include <optional>
#include <sstream>

#include <CLI/CLI.hpp>

#include "core/chunk_plan.h"
#include "core/error.h"
#include "harness/lengths.h"

namespace mladcp {
namespace {

constexpr std::int64_t kDefaultBatch = 8;
constexpr std::int64_t kDefaultNewTokens = 64;
constexpr std::int64_t kDefaultWorkspace = 4096;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw InvalidArgument("scenario " + path + ": cannot be read");
  return text.str();
}

// Eight lengths of a real service, shipped with the sources.
LengthsSource default_lengths_source() {
  return {std::string(MLADCP_DATA_DIR) + "/azure_llm_code.csv", "ContextTokens"};
}

template <typename T>
void override_with(T& field, const std::optional<T>& flag) {
  if (flag.has_value()) field = *flag;
}

// fp8 is what people call it, e4m3 what it is.
DType cache_dtype(const std::string& text) {
  return text == "fp8" ? DType::kE4M3 : dtype_from_name(text);
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

}  // namespace

struct ScenarioOptions::Flags {
  std::optional<std::string> scenario_file, model, kv_dtype, query, combine, reduce_dtype, phase;
  std::optional<std::string> device, collective, lengths, audit;
  std::optional<std::int64_t> heads, tp, dcp, group, interleave, page_size, batch, q_len, workspace;
  std::optional<float> q_scale, k_scale;
  std::optional<double> timeout;
  std::optional<std::uint64_t> seed;
  std::vector<std::int64_t> seq_lens, context_lens, new_tokens;
  std::vector<std::string> probes;
  bool project_before_merge = false;
  bool replicate_query = false;
  bool validate = false;
};

ScenarioOptions::ScenarioOptions(CLI::App& command) : flags_(std::make_unique<Flags>()) {
  Flags& f = *flags_;
  command.add_option("--scenario", f.scenario_file, "JSON file with any of these settings");
  command.add_option("--model", f.model,
                     "deepseek-v3, deepseek-r1, deepseek-v2, ... (default deepseek-v3)");
  command.add_option("--heads", f.heads, "query heads of the model (default: the model's)");
  command.add_option("--tp", f.tp, "tensor-parallel ranks (default 8)");
  command.add_option("--dcp", f.dcp, "N, ranks that share one KV cache; divides tp (default 8)");
  command.add_option("--group", f.group, "simulate one of the tp/dcp groups (default -1: all)");
  command.add_option("--interleave", f.interleave,
                     "I, consecutive tokens kept on one rank (default 1)");
  command.add_option("--page-size", f.page_size,
                     "local tokens a page; a multiple of I (default 64)");
  command.add_option("--kv-dtype", f.kv_dtype, "cache format: bf16 or fp8 (default fp8)");
  command.add_option("--query", f.query,
                     "auto, pair or quantized (default auto: quantized with fp8)");
  command.add_option("--q-scale", f.q_scale, "scale of a quantized query (default 1)");
  command.add_option("--k-scale", f.k_scale, "scale of an fp8 cache (default 1)");
  command.add_option("--combine", f.combine, "ag_rs, a2a or a2a_packed (default ag_rs)");
  command.add_option("--reduce-dtype", f.reduce_dtype, "of ag_rs: bf16 or fp32 (default bf16)");
  command.add_flag("--project-before-merge", f.project_before_merge,
                   "apply W_UV to partials: L/Vd times fewer bytes, Hg heads of W_UV a rank");
  command.add_flag("--replicate-query", f.replicate_query,
                   "every rank holds the queries of all gathered heads: no query gather");
  command.add_option("--phase", f.phase, "decode, prefill or both (default decode)");
  command.add_option("--seq-lens", f.seq_lens, "global lengths, new tokens included: 1,63,4096")
      ->delimiter(',');
  command.add_option(
      "--lengths", f.lengths,
      "FILE[:COLUMN] of request lengths (CSV; ContextTokens or input_tokens); with prefill "
      "they are the cached contexts");
  command.add_option("--batch", f.batch,
                     "requests taken from --lengths; 0: an empty step (default 8)");
  command.add_option("--q-len", f.q_len, "new tokens a request in a decode step (default 1)");
  command.add_option("--context-lens", f.context_lens, "prefill: cached tokens a request")
      ->delimiter(',');
  command
      .add_option("--new-tokens", f.new_tokens,
                  "prefill: new tokens a request, or one number for all (default 64)")
      ->delimiter(',');
  command.add_option("--workspace", f.workspace,
                     "prefill: gathered rows a chunk may hold (default about 4096)");
  command.add_option("--audit", f.audit,
                     "prefill: heads of a rank judged by fp64: a number, all, or auto (default "
                     "auto: as many as take seconds)");
  command.add_option("--device", f.device, "cpu or cuda (default cpu)");
  command.add_option("--collective", f.collective,
                     "in_process, fake, mpi or nccl (default in_process)");
  command.add_option("--probe", f.probes, "numeric, census, scale, ... or all (default numeric)")
      ->delimiter(',');
  command.add_option("--seed", f.seed,
                     "of contents, page order and the pick from --lengths (default 0)");
  command.add_flag("--validate", f.validate,
                   "nccl: compare the ranks' calls before each (in_process and mpi always do)");
  command.add_option("--timeout", f.timeout, "seconds to wait for a missing rank (default 60)");
}

ScenarioOptions::~ScenarioOptions() = default;

Scenario ScenarioOptions::resolve() const {
  const Flags& f = *flags_;
  Scenario scenario;
  if (f.scenario_file) {
    scenario = scenario_from_json(read_file(*f.scenario_file), *f.scenario_file);
  }
  ParallelConfig& parallel = scenario.parallel;
  override_with(scenario.model, f.model);
  if (f.model || !f.scenario_file) parallel.heads = scenario.model_config().heads;
  override_with(parallel.heads, f.heads);
  override_with(parallel.tp, f.tp);
  override_with(parallel.dcp, f.dcp);
  override_with(scenario.group, f.group);
  override_with(parallel.interleave, f.interleave);
  override_with(parallel.page_size, f.page_size);
  if (f.kv_dtype) parallel.kv_dtype = cache_dtype(*f.kv_dtype);
  if (f.query) parallel.query = query_form_from_name(*f.query);
  override_with(parallel.q_scale, f.q_scale);
  override_with(parallel.k_scale, f.k_scale);
  if (f.combine) parallel.combine = combine_from_name(*f.combine);
  if (f.reduce_dtype) parallel.reduce_dtype = dtype_from_name(*f.reduce_dtype);
  parallel.project_before_merge |= f.project_before_merge;
  parallel.replicate_query |= f.replicate_query;
  if (f.phase) scenario.phase = phase_from_name(*f.phase);
  override_with(scenario.q_len, f.q_len);
  override_with(scenario.workspace_rows, f.workspace);
  override_with(scenario.audit, f.audit);
  override_with(scenario.device, f.device);
  override_with(scenario.collective, f.collective);
  override_with(scenario.seed, f.seed);
  override_with(scenario.timeout_s, f.timeout);
  scenario.validate |= f.validate;
  if (!f.seq_lens.empty()) scenario.seq_lens = f.seq_lens;
  if (!f.context_lens.empty()) scenario.context_lens = f.context_lens;
  if (!f.new_tokens.empty()) scenario.new_tokens = f.new_tokens;
  if (!f.probes.empty()) scenario.probes = f.probes;

  const bool prefill = scenario.phase == Phase::kPrefill;
  const char* lengths_flag = prefill ? "--context-lens" : "--seq-lens";
  if (prefill && !f.seq_lens.empty()) {
    throw InvalidArgument(
        "--seq-lens is for decode: phase prefill takes --context-lens and "
        "--new-tokens");
  }
  if (f.lengths && !(prefill ? f.context_lens : f.seq_lens).empty()) {
    throw InvalidArgument("--lengths and " + std::string(lengths_flag) +
                          " both give lengths: use one of them");
  }
  if (f.batch && *f.batch < 0) {
    throw InvalidArgument("batch = " + std::to_string(*f.batch) + ": must be at least 0");
  }
  // The lengths a trace stands for: contexts of a prefill, else global lengths.
  std::vector<std::int64_t>& traced = prefill ? scenario.context_lens : scenario.seq_lens;
  if (f.batch == 0 && traced.empty()) {
    // A step without requests: its ranks still enter every collective.
  } else if (f.lengths || traced.empty()) {
    const LengthsSource source =
        f.lengths ? parse_lengths_source(*f.lengths) : default_lengths_source();
    traced = read_lengths(source, f.batch.value_or(kDefaultBatch), f.seed);
  } else if (f.batch) {
    throw InvalidArgument("--batch needs --lengths: " + std::string(lengths_flag) +
                          " says how many requests there are");
  }
  if (scenario.phase != Phase::kDecode) complete_prefill(scenario, traced.size());
  validate(scenario);
  return scenario;
}

}  // namespace mladcp
