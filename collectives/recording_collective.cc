#include "collectives/recording_collective.h"

namespace mladcp {

void RecordingCollective::run(const CollectiveCall& call, const TensorView& out,
                              const TensorView& in, Stream stream) {
  CallRecord record = make_record(call, rank(), world_size());
  record.start_us = log_.elapsed_us();
  try {
    forward(call, out, in, stream);
    record.completed = true;
  } catch (...) {
    record.end_us = log_.elapsed_us();
    log_.append(record);
    throw;
  }
  record.end_us = log_.elapsed_us();
  log_.append(record);
}

}  // namespace mladcp
