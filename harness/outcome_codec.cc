#include "harness/outcome_codec.h"

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/device.h"
#include "core/error.h"

namespace mladcp {
namespace {

constexpr std::uint32_t kMagic = 0x6D6C6101;  // "mla", version 1

// A call's stage is a literal; these are all there are.
constexpr std::array<std::string_view, 4> kStages = {"query", "lse", "output", "context"};

class Writer {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(std::string_view value) {
    number<std::uint64_t>(value.size());
    bytes_.append(value);
  }
  template <typename T>
  void list(const std::vector<T>& values) {
    text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
  }
  void extents(const Extents& extents) {
    number<std::int32_t>(extents.rank());
    for (const std::int64_t extent : extents) number(extent);
  }
  void tensor(const TensorView& tensor) {
    number(tensor.dtype);
    extents(tensor.shape);
    text({tensor.as<const char>(), static_cast<std::size_t>(tensor.bytes())});
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view text() { return take(number<std::uint64_t>()); }
  template <typename T>
  std::vector<T> list() {
    const std::string_view raw = text();
    std::vector<T> values(raw.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), raw.data(), values.size() * sizeof(T));
    return values;
  }
  Extents extents() {
    Extents extents;
    const auto rank = number<std::int32_t>();
    for (int dim = 0; dim < rank; ++dim) extents.push_back(number<std::int64_t>());
    return extents;
  }
  Tensor tensor() {
    const auto dtype = number<DType>();
    Tensor result(host_device(), dtype, extents(), "received tensor");
    const std::string_view raw = text();
    if (raw.size() != static_cast<std::size_t>(result.view().bytes())) fail();
    if (!raw.empty()) std::memcpy(result.view().data, raw.data(), raw.size());
    return result;
  }

 private:
  [[noreturn]] static void fail() {
    throw InvalidArgument("a rank's outcome arrived damaged; do all processes run one build?");
  }
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) fail();
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

void write_plan(Writer& writer, const DecodePlan& plan) {
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

DecodePlan read_plan(Reader& reader) {
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

void write_call(Writer& writer, const CallRecord& record) {
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

CallRecord read_call(Reader& reader) {
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

}  // namespace

std::string encode_outcome(const RankOutcome& outcome, const std::vector<CallRecord>& calls,
                           double seconds) {
  Writer writer;
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
  Reader reader(bytes);
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
