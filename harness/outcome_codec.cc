#include "harness/outcome_codec.h"

#include "core/error.h"
#include "harness/byte_codec.h"

namespace mladcp {
namespace {

constexpr std::uint32_t kMagic = 0x6D6C6101;  // "mla", version 1

void write_plan(ByteWriter& writer, const DecodePlan& plan) {
  writer.list(plan.request);
  writer.list(plan.position);
  writer.list(plan.slots);
  writer.list(plan.visible);
  writer.list(plan.row_begin);
  writer.list(plan.lengths);
  writer.list(plan.block_table.pages);
  writer.number(plan.block_table.columns);
  writer.number(plan.max_q_len);
}

DecodePlan read_plan(ByteReader& reader) {
  DecodePlan plan;
  plan.request = reader.list<std::int32_t>();
  plan.position = reader.list<std::int64_t>();
  plan.slots = reader.list<std::int64_t>();
  plan.visible = reader.list<std::int32_t>();
  plan.row_begin = reader.list<std::int32_t>();
  plan.lengths = reader.list<std::int32_t>();
  plan.block_table.pages = reader.list<std::int32_t>();
  plan.block_table.columns = reader.number<std::int64_t>();
  plan.max_q_len = reader.number<std::int64_t>();
  return plan;
}

}  // namespace

std::string encode_outcome(const RankOutcome& outcome, const std::vector<CallRecord>& calls,
                           double seconds) {
  ByteWriter writer;
  writer.number(kMagic);
  write_plan(writer, outcome.plan);
  writer.number<std::uint64_t>(outcome.taps.tensors().size());
  for (const auto& [name, tensor] : outcome.taps.tensors()) {
    writer.text(name);
    writer.tensor(tensor);
  }
  writer.tensor(outcome.cache_after);
  writer.tensor(outcome.output);
  writer.number<std::uint64_t>(calls.size());
  for (const CallRecord& record : calls) write_call(writer, record);
  writer.number(seconds);
  return writer.take();
}

DecodedOutcome decode_outcome(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.number<std::uint32_t>() != kMagic) {
    throw InvalidArgument("a rank's outcome has another version; do all processes run one build?");
  }
  DecodedOutcome decoded;
  decoded.outcome.plan = read_plan(reader);
  for (auto count = reader.number<std::uint64_t>(); count > 0; --count) {
    const std::string name(reader.text());
    decoded.outcome.taps.keep(name, reader.tensor(), {});
  }
  decoded.outcome.cache_after = reader.tensor();
  decoded.outcome.output = reader.tensor();
  for (auto count = reader.number<std::uint64_t>(); count > 0; --count) {
    decoded.calls.push_back(read_call(reader));
  }
  decoded.seconds = reader.number<double>();
  return decoded;
}

}  // namespace mladcp
