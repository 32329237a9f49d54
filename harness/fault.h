// Known faults, injected: each a changed plan or a decorator, none a hook in production code. What
// the harness can see is measured by them (docs/faults.md).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/backend.h"
#include "harness/scenario.h"
#include "harness/variation.h"

namespace mladcp {

struct OpFunctions;

struct Fault {
  static constexpr int kEveryRank = -1;

  std::string name;       // kebab-case
  std::string imitates;   // what people met, in a line
  std::string stage;      // the stage that must be the first to fail
  int rank = kEveryRank;  // the rank it is injected on, and which must be named
  Scenario scenario;
  std::vector<std::string> probes;  // tried in this order until one catches it
  std::shared_ptr<const Variation> variation;
};

// What became of one fault.
struct FaultFinding {
  std::string name;
  std::string imitates;
  std::string caught_by;  // the probe, or "error" when the run itself refused; empty: not caught
  std::string stage;      // the first that failed
  int rank = -1;
  std::string stage_expected;
  bool localised = false;               // right stage, and right rank where one is named
  bool loose_tolerance_caught = false;  // by rtol = atol = 0.05 on random data
  std::string message;                  // of the first failure
};

// The whole catalogue; names are unique.
std::vector<Fault> fault_catalogue();

// The scenario and probes of a fault without it, and with time for every rank to come: some faults
// wait for one that never does.
Scenario clean_scenario(const Fault& fault);

// Runs the probes of a fault until one catches it, on `backend` where one is given: a card's is
// slow to make.
FaultFinding try_fault(const Fault& fault, Backend& backend);
FaultFinding try_fault(const Fault& fault);

// The scenario on another device. CUDA has no kernels for the small model of the catalogue and runs
// it in the widths of DeepSeek's.
Scenario scenario_on(Scenario scenario, std::string_view device);

// The scenario most faults are tried on: small, uneven, every edge present.
Scenario fault_scenario();
// The same for chunked prefills: several chunks, requests cut, padding on some ranks, a request
// without new tokens.
Scenario prefill_fault_scenario();

// One operation of a step replaced (harness/fault_variations.h) on `rank`; random data shows it.
Fault op_fault(std::string name, std::string imitates, std::string stage, int rank,
               OpFunctions functions, const Scenario& scenario = fault_scenario());

// Parts of the catalogue, one a room.
std::vector<Fault> plan_faults();
std::vector<Fault> query_faults();
std::vector<Fault> cache_faults();
std::vector<Fault> attention_faults();
std::vector<Fault> combine_faults();
std::vector<Fault> collective_faults();
std::vector<Fault> prefill_plan_faults();
std::vector<Fault> prefill_movement_faults();
std::vector<Fault> prefill_attention_faults();

}  // namespace mladcp
