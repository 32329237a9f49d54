// Scenarios: every rule refused by field, value and remedy; JSON there and back, strictly.
#include "harness/scenario_draft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

ScenarioDraft from_json(const std::string& text) {
  ScenarioDraft draft;
  read_json(draft, text, "some.json");
  return draft;
}

struct Refusal {
  const char* json;
  const char* names;  // what the message must contain

  friend std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.json; }
};

TEST(Scenario, RefusesUnknownKeysAndWrongTypesNamingTheKey) {
  const Refusal refusals[] = {
      {R"({"colour": 1})", "key 'colour'"},
      {R"({"dcp": "four"})", "key 'dcp'"},
      {R"({"dcp": 1.5})", "key 'dcp'"},
      {R"({"dcp": true})", "key 'dcp'"},
      {R"({"dcp": 9223372036854775808})", "key 'dcp': is '9223372036854775808'"},
      {R"({"dcp": 99999999999999999999})", "key 'dcp'"},
      {R"({"seq_lens": [1, 18446744073709551615]})", "key 'seq_lens': is '18446744073709551615'"},
      {R"({"q_scale": 1e300})", "key 'q_scale': is '1e+300', must be a number that 32 bits hold"},
      {R"({"q_scale": 1e-60})", "key 'q_scale': is '1e-60', must be a number that 32 bits hold"},
      {R"({"timeout": "1"})", "key 'timeout': is '\"1\"', must be a number that 64 bits hold"},
      {R"({"audit": 3})", "key 'audit': is '3', must be a string, in quotes"},
      {R"({"page-size": 3})", "page_size for --page-size"},
      {R"({"seed": -1})", "key 'seed'"},
      {R"({"seed": 1.0})", "key 'seed'"},
      {R"({"seed": 18446744073709551616})", "key 'seed'"},
      {R"({"validate": 1})", "key 'validate'"},
      {R"({"phase": ""})", "key 'phase': must not be empty"},
      {R"({"dcp": 4, "tp": 4, "dcp": 8})", "key \"dcp\" is named twice"},
      {R"({"lengths": "trace.csv", "seq_lens": [1]})", "lengths beside seq_lens"},
      {R"({"batch": 3, "seq_lens": [1]})", "batch = 3: needs lengths"},
      {R"({"kv_dtype": "int8"})", "key 'kv_dtype': is 'int8', must be bf16 or fp8 for a cache"},
      {R"({"combine": "ring"})", "key 'combine'"},
      {R"({"seq_lens": 5})", "key 'seq_lens'"},
      {R"({"seq_lens": [1, null]})", "key 'seq_lens'"},
      {R"({"model": 3})", "key 'model'"},
      {R"([1])", "one JSON object"},
      {R"({"schema": "mladcp.run/99", "scenario": {}})", "key 'schema': '\"mladcp.run/99\"' is no"},
      {R"({"schema": "mladcp.faults/1"})", "give one of run or plan"},
      {R"({"schema": 1, "scenario": {}})", "key 'schema': '1' is no report"},
      {R"({"schema": "mladcp.plan/1"})", "key 'scenario': missing from the report"},
      {R"({"scenario": {"dcp": 2}, "dcp": 4})", "key 'scenario' without a schema"},
      {R"({"schema": "mladcp.run/1", "scenario": [1]})", "one JSON object"},
      {R"({"dcp": )", "not JSON"},
      {R"({"q_scale": 1e999})", "not JSON"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal);
    const std::string message = message_of([&] { from_json(refusal.json); });
    EXPECT_THAT(message, HasSubstr("some.json"));
    EXPECT_THAT(message, HasSubstr(refusal.names));
  }
}

TEST(Scenario, RefusesJsonTooDeepToPrint) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(message_of([&] { from_json("{\"dcp\": " + deep + "}"); }),
              HasSubstr("some.json: JSON nests deeper than 64"));
}

TEST(Scenario, JsonThereAndBackKeepsEveryField) {
  Scenario scenario;
  scenario.model = "kimi-k2";
  scenario.parallel = {.heads = 96,
                       .tp = 6,
                       .dcp = 3,
                       .interleave = 4,
                       .page_size = 32,
                       .kv_dtype = DType::kBF16,
                       .query = QueryForm::kPair,
                       .q_scale = 0.25F,
                       .k_scale = 2.0F,
                       .combine = Combine::kAllToAllPacked,
                       .reduce_dtype = DType::kF32,
                       .project_before_merge = true,
                       .replicate_query = true};
  scenario.phase = Phase::kBoth;
  scenario.seq_lens = {1, 2, 3};
  scenario.q_len = 2;
  scenario.context_lens = {4, 5};
  scenario.new_tokens = {6, 7};
  scenario.workspace_rows = 1024;
  scenario.group = 1;
  scenario.seed = 18446744073709551615ULL;
  scenario.timeout_s = 2.5;
  scenario.probes = {"census"};
  const std::string json = to_json(scenario);
  EXPECT_EQ(to_json(from_json(json).scenario), json);
}

TEST(Scenario, JsonSpeaksAsFlagsDo) {
  const ScenarioDraft draft =
      from_json(R"({"kv_dtype": "fp8", "batch": 3, "lengths": "tests/data/azure_llm_code.csv"})");
  EXPECT_EQ(draft.scenario.parallel.kv_dtype, DType::kE4M3);
  EXPECT_THAT(complete(draft).seq_lens, ElementsAre(4808, 3180, 110));
  EXPECT_EQ(complete(from_json(R"({"model": "deepseek-v2-lite"})")).parallel.heads, 16);
  EXPECT_THAT(complete(from_json(R"({"seq_lens": []})")).seq_lens, IsEmpty());
  EXPECT_THAT(complete(from_json(R"({"batch": 0})")).seq_lens, IsEmpty());
  EXPECT_THAT(complete(from_json("{}")).seq_lens, SizeIs(8));
}

// Flags, say, behind a file.
TEST(Scenario, ALaterSourceEndsTheLengthsOfAnEarlierOne) {
  ScenarioDraft draft = from_json(R"({"seq_lens": [5], "model": "tiny", "heads": 16})");
  read_json(draft, R"({"batch": 2, "lengths": "tests/data/azure_llm_code.csv"})", "later.json");
  EXPECT_THAT(complete(draft).seq_lens, ElementsAre(4808, 3180));
  read_json(draft, R"({"seq_lens": [6, 7]})", "last.json");
  EXPECT_THAT(complete(draft).seq_lens, ElementsAre(6, 7));
  read_json(draft, R"({"phase": "prefill", "context_lens": [8]})", "prefill.json");
  EXPECT_THAT(complete(draft).context_lens, ElementsAre(8));
}

TEST(Scenario, AModelBringsItsHeadsWhereNoSourceGivesAny) {
  const auto heads_of = [](const char* first, const char* second) {
    ScenarioDraft draft = from_json(first);
    read_json(draft, second, "later.json");
    return draft.scenario.parallel.heads;
  };
  const char* const model = R"({"model": "kimi-k2"})";
  EXPECT_EQ(heads_of("{}", model), 64);
  EXPECT_EQ(heads_of(R"({"model": "tiny"})", model), 64);
  EXPECT_EQ(heads_of(R"({"model": "tiny", "heads": 24})", model), 24);
  EXPECT_EQ(heads_of(R"({"heads": 128})", model), 128);
  EXPECT_EQ(heads_of(model, R"({"heads": 24})"), 24);
  const auto report = [](const char* scenario) {
    return R"({"schema": "mladcp.run/1", "scenario": )" + std::string(scenario) + "}";
  };
  EXPECT_EQ(heads_of(report(R"({"model": "deepseek-v3", "heads": 128})").c_str(), model), 64);
  EXPECT_EQ(heads_of(report(R"({"model": "deepseek-v3", "heads": 24})").c_str(), model), 24);
}

TEST(Scenario, RefusesFieldsByNameValueAndRemedy) {
  struct Case {
    const char* names;
    std::function<void(Scenario&)> spoil;
  };
  const Case cases[] = {
      {"model", [](Scenario& s) { s.model = "gpt-2"; }},
      {"tp = 8", [](Scenario& s) { s.parallel.dcp = 3; }},
      {"page_size = 64", [](Scenario& s) { s.parallel.interleave = 5; }},
      {"group = 1", [](Scenario& s) { s.group = 1; }},
      {"q_len = 0", [](Scenario& s) { s.q_len = 0; }},
      {"timeout", [](Scenario& s) { s.timeout_s = 0.0; }},
      {"device = 'tpu'", [](Scenario& s) { s.device = "tpu"; }},
      {"collective = 'gloo'", [](Scenario& s) { s.collective = "gloo"; }},
      {"probe = 'sonar'",
       [](Scenario& s) {
         s.probes = {"all", "sonar"};
       }},
      {"seq_lens[1] = -1",
       [](Scenario& s) {
         s.seq_lens = {1, -1};
       }},
      {"new_tokens[0] = 1048577: must be between 0 and 1048576",
       [](Scenario& s) {
         s.phase = Phase::kPrefill;
         s.context_lens = {1};
         s.new_tokens = {1048577};
       }},
      {"k_scale means nothing in bf16",  // what is in range there is no question
       [](Scenario& s) {
         s.parallel.kv_dtype = DType::kBF16;
         s.parallel.k_scale = 600.0F;
       }},
      {"q_scale means nothing in prefill",
       [](Scenario& s) {
         s.phase = Phase::kPrefill;
         s.parallel.q_scale = 600.0F;
       }},
      {"seq_lens has 16385 entries: a decode step schedules at most 16384; give fewer requests",
       [](Scenario& s) { s.seq_lens.assign(16385, 1); }},
      {"workspace = 4096 with dcp = 3: ",
       [](Scenario& s) {
         s.phase = Phase::kPrefill;
         s.workspace_rows = 4096;
         s.parallel.heads = 9;
         s.parallel.tp = s.parallel.dcp = 3;
       }},
      {"context_lens has 1",
       [](Scenario& s) {
         s.phase = Phase::kPrefill;
         s.context_lens = {1};
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.names);
    Scenario scenario;
    c.spoil(scenario);
    EXPECT_THAT(message_of([&] { validate(scenario); }), HasSubstr(c.names));
  }
}

// 30,000 requests in as many chunks are 40 GB of index arrays; in larger chunks far fewer.
TEST(Scenario, RefusesMoreChunksThanMemoryHolds) {
  Scenario scenario;
  scenario.phase = Phase::kPrefill;
  scenario.context_lens.assign(30000, 4096);
  scenario.new_tokens.assign(30000, 1);
  scenario.workspace_rows = 4096;
  EXPECT_EQ(message_of([&] { validate(scenario); }),
            "context_lens has 30000 entries, 122880000 tokens: a plan of about 30000 chunks would "
            "take 40 GB, more than 4; give a workspace of at least about 47168 rows, or fewer or "
            "shorter requests");
  scenario.workspace_rows = 47168;
  validate(scenario);
  scenario.workspace_rows = 47104;  // one cut less
  EXPECT_THAT(message_of([&] { validate(scenario); }), HasSubstr("more than 4; give a workspace"));
  scenario.context_lens.assign(30000, 1 << 20);  // their rows alone are too many for any workspace
  EXPECT_THAT(message_of([&] { validate(scenario); }),
              HasSubstr("more than 4; give fewer or shorter requests"));
  scenario.context_lens.assign(30000, 100);
  scenario.workspace_rows = 4096;
  validate(scenario);
  scenario.context_lens.assign(256, 1 << 20);
  scenario.new_tokens.assign(256, 1);
  validate(scenario);
  scenario.phase = Phase::kBoth;
  scenario.seq_lens.assign(256, 1 << 23);
  scenario.context_lens.clear();
  EXPECT_THAT(message_of([&] { validate(scenario); }), HasSubstr("seq_lens has 256 entries"));
}

TEST(Scenario, WithoutAProbeNothingWouldBeJudged) {
  Scenario scenario;
  scenario.seq_lens = {3};
  scenario.probes = {};
  EXPECT_THROW(validate(scenario), InvalidArgument);
}

}  // namespace
}  // namespace mladcp
