// A second stream for work that need not stand in line. It may be captured into a CUDA graph with
// the main one: fork and join become edges. On the host everything is one stream.
#pragma once

#include "core/owned_handles.h"

namespace mladcp {

class SideStream {
 public:
  explicit SideStream(Device& device)
      : device_(device), stream_(device), fork_(device), join_(device) {}

  // The point of `main` from which the next run_beside() may run.
  void mark(Stream main) const { device_.record(fork_, main); }

  // enqueue(side) runs after the mark, beside what `main` has got since; what `main` gets from now
  // on follows it.
  template <typename Enqueue>
  void run_beside(Stream main, const Enqueue& enqueue) const {
    device_.wait(stream_, fork_);
    enqueue(stream_);
    device_.record(join_, stream_);
    device_.wait(main, join_);
  }

 private:
  Device& device_;
  OwnedStream stream_;
  OwnedEvent fork_;
  OwnedEvent join_;
};

}  // namespace mladcp
