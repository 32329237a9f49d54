#include "collectives/in_process_group.h"

#include <string>
#include <utility>
#include <vector>

#include "collectives/placement.h"
#include "collectives/rank_threads.h"
#include "collectives/rendezvous.h"
#include "core/error.h"
#include "core/forwarding_device.h"
#include "core/owned_handles.h"

namespace mladcp {

// Entry r of each vector belongs to rank r's thread between two meetings; the peers read it between
// the next two. The rendezvous' mutex orders both.
struct InProcessGroup::State {
  State(int world_size, const InProcessOptions& options, Device& group_device)
      : device(group_device),
        rendezvous(world_size, options.timeout),
        inputs(static_cast<std::size_t>(world_size)) {
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      ready.emplace_back(device);
      done.emplace_back(device);
    }
  }

  int world_size() const { return static_cast<int>(inputs.size()); }

  Device& device;
  Rendezvous rendezvous;
  std::vector<TensorView> inputs;
  // They end with the last handle: a peer may still be about to wait for those of a rank that left.
  std::vector<OwnedEvent> ready;  // the input of the rank is complete
  std::vector<OwnedEvent> done;   // the rank has read its peers' inputs
};

class InProcessGroup::Handle final : public Collective {
 public:
  Handle(std::shared_ptr<State> state, int rank)
      : state_(std::move(state)), rank_(rank), placement_(rank, state_->world_size()) {
    state_->rendezvous.join(rank);
  }

  ~Handle() override { state_->rendezvous.leave(rank_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  int rank() const override { return rank_; }
  int world_size() const override { return state_->world_size(); }
  void synchronize(Stream stream) override { state_->device.synchronize(stream); }

 private:
  void run(const CollectiveCall& call, const TensorView& out, const TensorView& in,
           Stream stream) override {
    expect_on_device(call, out);
    expect_on_device(call, in);
    try {
      exchange(call, out, in, stream);
    } catch (const std::exception& error) {
      state_->rendezvous.abort(rank_, error.what());
      throw;
    }
  }

  void exchange(const CollectiveCall& call, const TensorView& out, const TensorView& in,
                Stream stream) {
    Device& device = state_->device;
    state_->inputs[rank_] = in;
    device.record(state_->ready[rank_], stream);
    state_->rendezvous.meet(rank_, call);
    wait_for_peers(state_->ready, stream);
    placement_.apply(call, out, state_->inputs, stream);
    device.record(state_->done[rank_], stream);
    state_->rendezvous.meet(rank_, call);
    wait_for_peers(state_->done, stream);
  }

  void wait_for_peers(const std::vector<OwnedEvent>& events, Stream stream) {
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer != rank_) state_->device.wait(stream, events[peer]);
    }
  }

  void expect_on_device(const CollectiveCall& call, const TensorView& view) const {
    if (on_device(view, state_->device)) return;
    throw InvalidArgument(describe(call) + " on rank " + std::to_string(rank_) + ": " +
                          describe(view) + " is not on the group's device, " +
                          std::string(state_->device.description()));
  }

  std::shared_ptr<State> state_;
  int rank_;
  Placement placement_;
};

InProcessGroup::InProcessGroup(int world_size, InProcessOptions options, Device& device) {
  if (world_size <= 0) {
    throw InvalidArgument("world_size = " + std::to_string(world_size) + ": must be at least 1");
  }
  state_ = std::make_shared<State>(world_size, options, device);
}

InProcessGroup::~InProcessGroup() = default;

int InProcessGroup::world_size() const { return state_->world_size(); }

std::unique_ptr<Collective> InProcessGroup::join(int rank) {
  if (rank < 0 || rank >= world_size()) {
    throw InvalidArgument("rank = " + std::to_string(rank) + ": must be in [0, " +
                          std::to_string(world_size()) + "), the world size");
  }
  return std::make_unique<Handle>(state_, rank);
}

void InProcessGroup::abort(int rank, const std::string& reason) {
  state_->rendezvous.abort(rank, reason);
}

void InProcessGroup::run(const std::function<void(Collective&)>& body) {
  state_->rendezvous.expect_usable();
  // All have joined before the first one starts: nobody takes a late start for a departure.
  std::vector<std::unique_ptr<Collective>> handles;
  handles.reserve(static_cast<std::size_t>(world_size()));
  for (int rank = 0; rank < world_size(); ++rank) handles.push_back(join(rank));

  const auto run_rank = [&](int rank) {
    const std::unique_ptr<Collective> handle = std::move(handles[rank]);
    try {
      body(*handle);
    } catch (const std::exception& error) {
      abort(rank, error.what());  // before the handle is destroyed, which would be a mere departure
      throw;
    }
  };
  run_ranks(world_size(), run_rank,
            [this](int rank, const std::string& reason) { abort(rank, reason); });
}

}  // namespace mladcp
