#include "harness/byte_codec.h"

#include <array>

namespace mladcp {
namespace {

// A call's stage is a literal; these are all there are.
constexpr std::array<std::string_view, 4> kStages = {"query", "lse", "output", "context"};

}  // namespace

void write_call(ByteWriter& writer, const CallRecord& record) {
  writer.number<std::int32_t>(record.rank);
  writer.number(record.call.op);
  writer.number<std::int32_t>(record.call.dim);
  writer.number(record.call.dtype);
  writer.extents(record.call.in_shape);
  writer.extents(record.call.out_shape);
  writer.text(record.call.stage);
  writer.number(record.call.sequence);
  writer.number(record.in_bytes);
  writer.number(record.out_bytes);
  writer.number(record.wire_bytes);
  writer.number(record.start_us);
  writer.number(record.end_us);
  writer.number(record.completed);
}

CallRecord read_call(ByteReader& reader) {
  CallRecord record;
  record.rank = reader.number<std::int32_t>();
  record.call.op = reader.number<CollectiveOp>();
  record.call.dim = reader.number<std::int32_t>();
  record.call.dtype = reader.number<DType>();
  record.call.in_shape = reader.extents();
  record.call.out_shape = reader.extents();
  const std::string_view stage = reader.text();
  for (const std::string_view known : kStages) {
    if (known == stage) record.call.stage = known;
  }
  record.call.sequence = reader.number<std::int64_t>();
  record.in_bytes = reader.number<std::int64_t>();
  record.out_bytes = reader.number<std::int64_t>();
  record.wire_bytes = reader.number<std::int64_t>();
  record.start_us = reader.number<double>();
  record.end_us = reader.number<double>();
  record.completed = reader.number<bool>();
  return record;
}

}  // namespace mladcp
