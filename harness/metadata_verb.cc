// mladcp metadata: build or judge tile schedules.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "core/config.h"
#include "core/error.h"
#include "core/kv_sharding.h"
#include "harness/exit_status.h"
#include "harness/json_output.h"
#include "harness/lengths.h"
#include "harness/metadata_report.h"
#include "harness/verbs.h"

namespace mladcp {
namespace {

std::vector<std::int64_t> parse_seq_lens(std::string_view text) {
  std::vector<std::int64_t> lengths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    std::int64_t value = -1;
    const auto [rest, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || rest != item.data() + item.size() || value < 0 ||
        value > std::numeric_limits<std::int32_t>::max()) {
      throw InvalidArgument(fmt::format(
          "--seq-lens: entry {} is '{}', must be a length 0..2147483647", lengths.size(), item));
    }
    lengths.push_back(value);
    begin = end + 1;
  }
  return lengths;
}

void expect_at_least(const char* flag, std::int64_t value, std::int64_t least) {
  if (value < least) {
    throw InvalidArgument(fmt::format("{} is {}, must be at least {}", flag, value, least));
  }
}

class MetadataVerb {
 public:
  explicit MetadataVerb(CLI::App& command) {
    command.add_option("--seq-lens", seq_lens_, "keys of each request: 4096,0,1");
    command.add_option("--lengths", lengths_,
                       "FILE[:COLUMN] of lengths (CSV; ContextTokens or input_tokens)");
    command.add_option("--batch", batch_, "requests taken from --lengths (default 8)");
    command.add_option("--seed", seed_,
                       "picks --batch rows of --lengths instead of the first ones");
    command.add_option("--rank", rank_,
                       "the lengths are global: schedule what this DCP rank keeps of them");
    command.add_option("--interleave", interleave_, "I, with --rank (default 1)");
    command.add_option("--heads", heads_, "query heads a rank, H (default 16)");
    command.add_option("--dcp", dcp_, "N; the schedule is built for N * H heads (default 1)");
    command.add_option("--q-len", q_len_, "new tokens a request (default 1)");
    command.add_option("--sms", sms_, "SMs of the card (default 132)");
    command.add_option("--dialect", dialect_,
                       "tokens (dense FP8 kernel) or blocks (BF16 kernel) (default tokens)");
    command.add_option("--kv-dtype", kv_dtype_, "cache format: bf16 or fp8 (default fp8)");
    command.add_option("--block", params_.block, "keys a block (default 64)");
    command.add_option("--overhead", params_.overhead_blocks,
                       "blocks that starting a request costs (default 5)");
    command.add_option("--from", from_,
                       "judge the schedules in FILE (one JSON object, or one a line)");
    command.add_option("--svg", svg_, "draw each SM's work, gathered beside local heads, to FILE");
    add_json_option(command, json_);
  }

  int run() const {
    expect_writable(json_);
    return from_ ? judge() : study();
  }

 private:
  int study() const {
    const MetadataReport report = study_schedule(scenario());
    if (svg_) write_svg(to_svg(report));
    write_json(json_, [&] { return to_json(report); });
    if (json_ != "-") print(report, stdout);
    if (json_ == "-" && !report.pass()) print(report, stderr);
    return report.pass() ? kExitPass : kExitCheckFailed;
  }

  int judge() const {
    if (seq_lens_ || lengths_ || svg_) {
      throw InvalidArgument(
          "--from brings its own lengths and is not drawn: leave out --seq-lens, "
          "--lengths and --svg");
    }
    std::optional<std::int64_t> heads_times_q;
    if (heads_) heads_times_q = gathered_heads() * checked_q_len();
    if (!heads_ && (dcp_ || q_len_)) {
      throw InvalidArgument(
          "--dcp and --q-len judge the number of parts together with --heads: "
          "give it too");
    }
    if (sms_) expect_at_least("--sms", *sms_, 1);
    const JudgedFile file = judge_file(*from_, heads_times_q, sms_);
    write_json(json_, [&] { return to_json(file); });
    const bool pass = file.violations() == 0;
    if (json_ != "-") print(file, stdout);
    if (json_ == "-" && !pass) print(file, stderr);
    return pass ? kExitPass : kExitCheckFailed;
  }

  std::int64_t gathered_heads() const {
    const std::int64_t heads = heads_.value_or(16);
    const std::int64_t dcp = dcp_.value_or(1);
    expect_at_least("--heads", heads, 1);
    expect_at_least("--dcp", dcp, 1);
    if (heads > kMostHeads / dcp) {
      throw InvalidArgument(
          fmt::format("--heads {} x --dcp {} is more than {} heads", heads, dcp, kMostHeads));
    }
    return heads * dcp;
  }

  std::int64_t checked_q_len() const {
    const std::int64_t q_len = q_len_.value_or(1);
    expect_at_least("--q-len", q_len, 1);
    if (q_len > kMostHeads) {
      throw InvalidArgument(fmt::format("--q-len is {}, must be at most {}", q_len, kMostHeads));
    }
    return q_len;
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
    scenario.params.num_sms = sms_.value_or(132);
    expect_at_least("--sms", scenario.params.num_sms, 1);
    if (scenario.params.num_sms > kMostSms) {
      throw InvalidArgument(
          fmt::format("--sms is {}, must be at most {}", scenario.params.num_sms, kMostSms));
    }
    expect_at_least("--block", scenario.params.block, 1);
    expect_at_least("--overhead", scenario.params.overhead_blocks, 0);
    for (const std::int64_t length : shard_lengths(scenario.dcp)) {
      scenario.lengths.push_back(static_cast<std::int32_t>(length));
    }
    return scenario;
  }

  DType cache_dtype() const {
    const DType dtype = kv_dtype_ == "fp8" ? DType::kE4M3 : dtype_from_name(kv_dtype_);
    if (dtype != DType::kE4M3 && dtype != DType::kBF16) {
      throw InvalidArgument("--kv-dtype is '" + kv_dtype_ + "', must be bf16 or fp8");
    }
    return dtype;
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
    expect_at_least("--interleave", sharding.interleave, 1);
    if (sharding.interleave > kMostPageSize) {
      throw InvalidArgument(fmt::format("--interleave is {}, must be at most {}",
                                        sharding.interleave, kMostPageSize));
    }
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
      return parse_seq_lens(*seq_lens_);
    }
    expect_at_least("--batch", batch_.value_or(8), 1);
    return read_lengths(parse_lengths_source(*lengths_), batch_.value_or(8), seed_);
  }

  void write_svg(const std::string& text) const {
    std::ofstream file(*svg_, std::ios::binary);
    file << text;
    file.flush();
    if (!file) throw InvalidArgument("--svg " + *svg_ + ": cannot be written");
  }

  static constexpr std::int64_t kMostSms = 1 << 16;

  std::optional<std::string> seq_lens_, lengths_, from_, svg_;
  std::optional<std::int64_t> batch_, rank_, interleave_, heads_, dcp_, q_len_, sms_;
  std::optional<std::uint64_t> seed_;
  std::string dialect_ = "tokens";
  std::string kv_dtype_ = "fp8";
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
