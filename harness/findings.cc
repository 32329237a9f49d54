#include "harness/findings.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "harness/byte_codec.h"

namespace mladcp {
namespace {

constexpr std::uint32_t kMagic = 0x6D6C6601;  // "mlf", version 1

void write_check(ByteWriter& writer, const Check& check) {
  writer.text(check.stage);
  writer.number<std::int32_t>(check.rank);
  writer.text(check.name);
  writer.number(check.status);
  writer.number(check.measured);
  writer.number(check.bound);
  writer.text(check.message);
  writer.number(check.audited);
  writer.number(check.auditable);
}

Check read_check(ByteReader& reader) {
  Check check;
  check.stage = reader.text();
  check.rank = reader.number<std::int32_t>();
  check.name = reader.text();
  check.status = reader.number<CheckStatus>();
  check.measured = reader.number<double>();
  check.bound = reader.number<double>();
  check.message = reader.text();
  check.audited = reader.number<std::int64_t>();
  check.auditable = reader.number<std::int64_t>();
  return check;
}

}  // namespace

std::string encode_findings(const ProbeOutcome& findings) {
  ByteWriter writer;
  writer.number(kMagic);
  writer.number<std::uint64_t>(findings.checks.size());
  for (const Check& check : findings.checks) write_check(writer, check);
  writer.number<std::uint64_t>(findings.calls.size());
  for (const CallRecord& call : findings.calls) write_call(writer, call);
  writer.number(findings.step_seconds);
  return writer.take();
}

ProbeOutcome decode_findings(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.number<std::uint32_t>() != kMagic) {
    throw InvalidArgument("findings have another version; do all processes run one build?");
  }
  ProbeOutcome findings;
  for (auto count = reader.number<std::uint64_t>(); count > 0; --count) {
    findings.checks.push_back(read_check(reader));
  }
  for (auto count = reader.number<std::uint64_t>(); count > 0; --count) {
    findings.calls.push_back(read_call(reader));
  }
  findings.step_seconds = reader.number<double>();
  return findings;
}

ProbeOutcome gathered_at_root(Backend& backend, ProbeOutcome mine) {
  ProcessLink* link = backend.link();
  if (link == nullptr) return mine;
  ProbeOutcome all;
  for (const std::string& bytes : link->gather_at_root(encode_findings(mine))) {
    ProbeOutcome one = decode_findings(bytes);
    std::move(one.checks.begin(), one.checks.end(), std::back_inserter(all.checks));
    std::move(one.calls.begin(), one.calls.end(), std::back_inserter(all.calls));
    all.step_seconds = std::max(all.step_seconds, one.step_seconds);
  }
  return all;
}

}  // namespace mladcp
