// mladcp metadata: build or judge tile schedules.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "core/kv_sharding.h"
#include "harness/exit_status.h"
#include "harness/lengths.h"
#include "harness/metadata_report.h"
#include "harness/options.h"
#include "harness/report_output.h"
#include "harness/verbs.h"

namespace mladcp {
namespace {

constexpr std::int64_t kMostInt32 = std::numeric_limits<std::int32_t>::max();

std::vector<std::int64_t> checked_lengths(const std::vector<std::int64_t>& lengths) {
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] >= 0 && lengths[b] <= kMostInt32) continue;
    throw InvalidArgument(fmt::format("--seq-lens: entry {} is '{}', must be a length 0..{}", b,
                                      lengths[b], kMostInt32));
  }
  return lengths;
}

std::int64_t expect_in(const char* flag, std::int64_t value, std::int64_t least,
                       std::int64_t most) {
  if (value < least) {
    throw InvalidArgument(fmt::format("{} is {}, must be at least {}", flag, value, least));
  }
  if (value > most) {
    throw InvalidArgument(fmt::format("{} is {}, must be at most {}", flag, value, most));
  }
  return value;
}

class MetadataVerb {
 public:
  explicit MetadataVerb(CLI::App& command) : command_(command) {
    add_value(command, "--seq-lens", seq_lens_, "keys of each request: 4096,0,1");
    add_value(command, "--lengths", lengths_,
              "FILE[:COLUMN] of lengths (CSV; ContextTokens or input_tokens)");
    add_value(command, "--batch", batch_, "requests taken from --lengths (default 8)");
    add_value(command, "--seed", seed_,
              "picks --batch rows of --lengths instead of the first ones");
    add_value(command, "--rank", rank_,
              "the lengths are global: schedule what this DCP rank keeps of them");
    add_value(command, "--interleave", interleave_, "I, with --rank (default 1)");
    add_value(command, "--heads", heads_, "query heads a rank, H (default 16)");
    add_value(command, "--dcp", dcp_, "N; the schedule is built for N * H heads (default 1)");
    add_value(command, "--q-len", q_len_, "new tokens a request (default 1)");
    add_value(command, "--sms", sms_, "SMs of the card (default 132)");
    add_value(command, "--dialect", dialect_,
              "tokens (dense FP8 kernel) or blocks (BF16 kernel) (default tokens)");
    add_value(command, "--kv-dtype", kv_dtype_, "cache format: bf16 or fp8 (default fp8)");
    add_value(command, "--block", params_.block, "keys a block (default 64)");
    add_value(command, "--overhead", params_.overhead_blocks,
              "blocks that starting a request costs (default 5)");
    add_value(command, "--from", from_,
              "judge the schedules in FILE (one JSON object, or one a line)");
    add_value(command, "--svg", svg_, "draw each SM's work, gathered beside local heads, to FILE");
    add_json_option(command, json_);
  }

  int run() const {
    std::vector<std::string> others = {from_.value_or("")};
    if (lengths_) others.push_back(parse_lengths_source(*lengths_).path);
    expect_writable("--json", json_, others);
    others.push_back(json_);
    if (svg_) expect_drawable(*svg_, others);
    return from_ ? judge() : study();
  }

 private:
  static void expect_drawable(const std::string& path, const std::vector<std::string>& others) {
    if (path == "-") {
      throw InvalidArgument("--svg is '-': drawings go to a file alone; name one");
    }
    expect_writable("--svg", path, others);
  }

  int study() const {
    const MetadataReport report = study_schedule(scenario());
    give_report(
        json_, [&] { print(report, stdout); }, [&] { return to_json(report); });
    if (json_ == "-" && !report.pass()) print(report, stderr);
    if (svg_) write_file("--svg", *svg_, to_svg(report));
    return report.pass() ? kExitPass : kExitCheckFailed;
  }

  int judge() const {
    for (const char* flag :
         {"--seq-lens", "--lengths", "--batch", "--seed", "--rank", "--interleave", "--dialect",
          "--kv-dtype", "--block", "--overhead", "--svg"}) {
      if (command_.count(flag) == 0) continue;
      throw InvalidArgument(fmt::format(
          "{}: belongs to building a schedule; --from judges one that says all of it: leave it out",
          flag));
    }
    std::optional<std::int64_t> heads_times_q;
    if (heads_) heads_times_q = gathered_heads() * checked_q_len();
    if (!heads_ && (dcp_ || q_len_)) {
      throw InvalidArgument(
          "--dcp and --q-len judge the number of parts together with --heads: "
          "give it too");
    }
    if (sms_) expect_in("--sms", *sms_, 1, kMostSms);
    const JudgedFile file = judge_file(*from_, heads_times_q, sms_);
    const bool pass = file.violations() == 0;
    give_report(
        json_, [&] { print(file, stdout); }, [&] { return to_json(file); });
    if (json_ == "-" && !pass) print(file, stderr);
    return pass ? kExitPass : kExitCheckFailed;
  }

  std::int64_t gathered_heads() const {
    const std::int64_t heads = expect_in("--heads", heads_.value_or(16), 1, kMostHeads);
    const std::int64_t dcp = expect_in("--dcp", dcp_.value_or(1), 1, kMostHeads);
    if (heads > kMostHeads / dcp) {
      throw InvalidArgument(
          fmt::format("--heads {} x --dcp {} is more than {} heads", heads, dcp, kMostHeads));
    }
    return heads * dcp;
  }

  std::int64_t checked_q_len() const {
    return expect_in("--q-len", q_len_.value_or(1), 1, kMostHeads);
  }

  MetadataScenario scenario() const {
    MetadataScenario scenario;
    gathered_heads();  // checks the two factors
    scenario.heads = heads_.value_or(16);
    scenario.dcp = dcp_.value_or(1);
    scenario.q_len = checked_q_len();
    scenario.dialect = schedule_dialect_from_name(dialect_);
    scenario.kv_dtype = cache_dtype();
    scenario.params = params_;
    scenario.params.num_sms = expect_in("--sms", sms_.value_or(132), 1, kMostSms);
    expect_in("--block", params_.block, 1, kMostInt32);
    expect_in("--overhead", params_.overhead_blocks, 0, kMostInt32);
    for (const std::int64_t length : shard_lengths(scenario.dcp)) {
      scenario.lengths.push_back(static_cast<std::int32_t>(length));
    }
    return scenario;
  }

  DType cache_dtype() const {
    if (kv_dtype_ != DType::kE4M3 && kv_dtype_ != DType::kBF16) {
      throw InvalidArgument(fmt::format("--kv-dtype is {}, must be bf16 or fp8", name(kv_dtype_)));
    }
    return kv_dtype_;
  }

  std::vector<std::int64_t> shard_lengths(std::int64_t dcp) const {
    std::vector<std::int64_t> lengths = given_lengths();
    if (!rank_) {
      if (interleave_)
        throw InvalidArgument(
            "--interleave needs --rank: without it the lengths "
            "are those of the shard");
      return lengths;
    }
    const KvSharding sharding{dcp, interleave_.value_or(1)};
    expect_in("--interleave", sharding.interleave, 1, kMostPageSize);
    if (*rank_ < 0 || *rank_ >= dcp) {
      throw InvalidArgument(
          fmt::format("--rank is {}, must be in 0..{} (--dcp {})", *rank_, dcp - 1, dcp));
    }
    for (std::int64_t& length : lengths) length = sharding.local_length(length, *rank_);
    return lengths;
  }

  std::vector<std::int64_t> given_lengths() const {
    if (seq_lens_.has_value() == lengths_.has_value()) {
      throw InvalidArgument(
          "give the lengths with one of --seq-lens and --lengths (or a schedule "
          "with --from)");
    }
    if (seq_lens_) {
      if (batch_ || seed_) throw InvalidArgument("--batch and --seed need --lengths");
      return checked_lengths(*seq_lens_);
    }
    expect_in("--batch", batch_.value_or(8), 1, kMostInt32);
    return read_lengths(parse_lengths_source(*lengths_), batch_.value_or(8), seed_);
  }

  static constexpr std::int64_t kMostSms = 1 << 16;

  const CLI::App& command_;
  std::optional<std::vector<std::int64_t>> seq_lens_;
  std::optional<std::string> lengths_, from_, svg_;
  std::optional<std::int64_t> batch_, rank_, interleave_, heads_, dcp_, q_len_, sms_;
  std::optional<std::uint64_t> seed_;
  std::string dialect_ = "tokens";
  DType kv_dtype_ = DType::kE4M3;
  std::string json_;
  ScheduleParams params_;
};

}  // namespace

void add_metadata_verb(CLI::App& program, int& status) {
  CLI::App* command = program.add_subcommand(
      "metadata",
      "build the tile schedule for gathered heads, show what local heads would cost, "
      "or judge a schedule from a file");
  const auto verb = std::make_shared<MetadataVerb>(*command);
  command->callback([verb, &status] { status = verb->run(); });
}

}  // namespace mladcp
