#include "harness/rank_step.h"

#include <algorithm>
#include <chrono>

namespace mladcp {

RankStep::RankStep(Backend& backend, const Variation* variation, const ParallelConfig& config,
                   Collective& collective)
    : variation_(variation),
      collective_(collective),
      device_(variation == nullptr ? backend.device(collective.rank())
                                   : blank_.emplace(backend.device(collective.rank()))),
      stream_(backend.stream(collective.rank())),
      config_(config),
      plain_ops_(backend.ops(collective.rank())) {
  if (variation == nullptr) return;
  variation->change_config(rank(), config_);
  changed_ops_ = variation->decorate(rank(), plain_ops_);
  changed_group_ = variation->decorate(rank(), collective_);
}

double seconds_of(const RankStep& rank, Collective& group, const std::function<void()>& step) {
  rank.device().synchronize(rank.stream());
  const auto begin = std::chrono::steady_clock::now();
  step();
  group.synchronize(rank.stream());  // a failure of the group is known here at the latest
  rank.device().synchronize(rank.stream());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return seconds.count();
}

double GroupRun::slowest() const { return *std::max_element(seconds.begin(), seconds.end()); }

GroupRun run_ranks(const Scenario& scenario, Backend& backend,
                   const std::function<double(Collective&)>& body) {
  const auto world_size = static_cast<int>(scenario.parallel.dcp);
  GroupRun run;
  run.seconds.resize(static_cast<std::size_t>(world_size), 0.0);
  CallLog log;
  backend.run_group({scenario.collective, world_size, scenario.timeout_s, scenario.validate}, log,
                    [&](Collective& collective) {
                      run.seconds[static_cast<std::size_t>(collective.rank())] = body(collective);
                    });
  run.calls = log.records();
  return run;
}

}  // namespace mladcp
