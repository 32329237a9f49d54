// A scenario as people write it, in JSON or by flags: what is left out keeps its default, and a
// trace of requests may stand for their lengths.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "harness/scenario.h"

namespace mladcp {

struct ScenarioDraft {
  using Keys = std::set<std::string, std::less<>>;

  Scenario scenario;
  std::string lengths;           // FILE[:COLUMN] of a trace: seq_lens, or context_lens of a prefill
  std::int64_t batch = 8;        // rows of it
  Keys given;                    // by file or flag, and still in force
  Phase phase = Phase::kDecode;  // that the sources so far, or the default, have chosen

  bool gives(std::string_view key) const { return given.find(key) != given.end(); }
};

// The one list of keys: visit(key, field, help) for each. Flags are spelled like keys, --page-size
// for page_size.
template <typename Visitor>
void visit_keys(Scenario& scenario, Visitor& visit) {
  ParallelConfig& parallel = scenario.parallel;
  visit("model", scenario.model,
        "deepseek-v3, deepseek-r1, deepseek-v2, ... (default deepseek-v3)");
  visit("heads", parallel.heads, "query heads of the model (default: the model's)");
  visit("tp", parallel.tp, "tensor-parallel ranks (default 8)");
  visit("dcp", parallel.dcp, "N, ranks that share one KV cache; divides tp (default 8)");
  visit("group", scenario.group, "simulate one of the tp/dcp groups (default -1: all)");
  visit("interleave", parallel.interleave, "I, consecutive tokens kept on one rank (default 1)");
  visit("page_size", parallel.page_size, "local tokens a page; a multiple of I (default 64)");
  visit("kv_dtype", parallel.kv_dtype, "cache format: bf16 or fp8 (default fp8)");
  visit("query", parallel.query, "auto, pair or quantized (default auto: quantized with fp8)");
  visit("q_scale", parallel.q_scale, "scale of a quantized query (default 1)");
  visit("k_scale", parallel.k_scale, "scale of an fp8 cache (default 1)");
  visit("combine", parallel.combine, "ag_rs, a2a or a2a_packed (default ag_rs)");
  visit("reduce_dtype", parallel.reduce_dtype, "of ag_rs: bf16 or fp32 (default bf16)");
  visit("project_before_merge", parallel.project_before_merge,
        "apply W_UV to partials: L/Vd times fewer bytes, Hg heads of W_UV a rank");
  visit("replicate_query", parallel.replicate_query,
        "every rank holds the queries of all gathered heads: no query gather");
  visit("phase", scenario.phase, "decode, prefill or both (default decode)");
  visit("seq_lens", scenario.seq_lens,
        "decode, both: global lengths, new tokens included: 1,63,4096");
  visit("q_len", scenario.q_len, "decode, both: new tokens a request in a step (default 1)");
  visit("context_lens", scenario.context_lens, "prefill: cached tokens a request");
  visit("new_tokens", scenario.new_tokens,
        "prefill, both: new tokens a request, or one number for all (default 64)");
  visit("workspace", scenario.workspace_rows,
        "prefill, both: gathered rows a chunk may hold (default about 4096)");
  visit("audit", scenario.audit,
        "prefill, both: heads of a rank judged by fp64: a number, all, or auto (default auto: as "
        "many as take seconds)");
  visit("device", scenario.device, "cpu or cuda (default cpu)");
  visit("collective", scenario.collective, "in_process, fake, mpi or nccl (default in_process)");
  visit("seed", scenario.seed, "of contents, page order and the pick from --lengths (default 0)");
  visit("timeout", scenario.timeout_s, "seconds to wait for a missing rank (default 60)");
  visit("validate", scenario.validate,
        "nccl: compare the ranks' calls before each (in_process and mpi always do)");
  visit("probe", scenario.probes, "numeric, census, scale, ... or all (default numeric)");
}

template <typename Visitor>
void visit_keys(ScenarioDraft& draft, Visitor& visit) {
  visit_keys(draft.scenario, visit);
  visit("lengths", draft.lengths,
        "FILE[:COLUMN] of request lengths (CSV; ContextTokens or input_tokens) instead of "
        "--seq-lens; of --context-lens with prefill");
  visit("batch", draft.batch, "requests taken from --lengths; 0: an empty step (default 8)");
}

// Takes note of what one source, file or flags, has written into the draft: `given` are its keys.
// Lengths and traces of earlier sources end where this one brings its own; where it turns to
// another phase, what they say of requests that this phase does not have. A model brings its heads
// where no source gives any. InvalidArgument when it gives lengths twice.
void accept(ScenarioDraft& draft, const ScenarioDraft::Keys& given);

// Gathered rows of a chunk where nobody asks for any: some thousand, where a context may be cut.
// Throws what validate(config) does.
std::int64_t default_workspace(const ParallelConfig& config);

// JSON of a scenario, or of a report with one. A report has every key: its seed, heads and
// workspace count as given where they are not the default, the model's and the configuration's
// default; new tokens that are all alike are one number, for however many requests there will be.
// Unknown and repeated keys, wrong types and values are InvalidArgument naming the key; `source` (a
// file name) leads every message.
void read_json(ScenarioDraft& draft, std::string_view text, std::string_view source);

// The scenario it stands for: lengths read, defaults filled in, validated. InvalidArgument
// otherwise.
Scenario complete(const ScenarioDraft& draft);

}  // namespace mladcp
