// Scenarios: every rule refused by field, value and remedy; JSON there and back, strictly.
#include "harness/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

using testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
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
      {R"({"seed": -1})", "key 'seed'"},
      {R"({"kv_dtype": "int8"})", "key 'kv_dtype'"},
      {R"({"combine": "ring"})", "key 'combine'"},
      {R"({"seq_lens": 5})", "key 'seq_lens'"},
      {R"({"seq_lens": [1, null]})", "key 'seq_lens'"},
      {R"({"model": 3})", "key 'model'"},
      {R"([1])", "one JSON object"},
      {R"({"dcp": )", "not JSON"},
      {R"({"q_scale": 1e999})", "not JSON"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal);
    const std::string message = message_of([&] { scenario_from_json(refusal.json, "some.json"); });
    EXPECT_THAT(message, HasSubstr("some.json"));
    EXPECT_THAT(message, HasSubstr(refusal.names));
  }
}

TEST(Scenario, RefusesJsonTooDeepToPrint) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(message_of([&] { scenario_from_json("{\"dcp\": " + deep + "}", "some.json"); }),
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
  EXPECT_EQ(to_json(scenario_from_json(json, "copy")), json);
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
      {"seq_lens[1] = -1",
       [](Scenario& s) {
         s.seq_lens = {1, -1};
       }},
      {"context_lens has 1", [](Scenario& s) { s.context_lens = {1}; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.names);
    Scenario scenario;
    c.spoil(scenario);
    EXPECT_THAT(message_of([&] { validate(scenario); }), HasSubstr(c.names));
  }
}

TEST(Scenario, WithoutAProbeNothingWouldBeJudged) {
  Scenario scenario;
  scenario.seq_lens = {3};
  scenario.probes = {};
  EXPECT_THROW(validate(scenario), InvalidArgument);
}

}  // namespace
}  // namespace mladcp
