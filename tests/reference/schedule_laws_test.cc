#include "reference/schedule_laws.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace mladcp {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kTokens = ScheduleDialect::kTokens;
constexpr auto kBlocks = ScheduleDialect::kBlocks;

// A schedule as plain numbers that a test may spoil.
struct Numbers {
  ScheduleDialect dialect = kTokens;
  std::vector<std::int32_t> lengths;
  std::vector<SchedulePart> parts;
  std::vector<std::int32_t> num_splits;
  std::int64_t overhead_blocks = 5;

  std::vector<ScheduleViolation> judged() const {
    return judge_schedule({dialect, lengths, parts, num_splits, 64, overhead_blocks});
  }
};

Numbers built(const std::vector<std::int32_t>& lengths, std::int64_t num_parts,
              ScheduleDialect dialect, std::int64_t overhead_blocks = 5) {
  Numbers numbers{dialect, lengths, {}, {}, overhead_blocks};
  ScheduleParams params;
  params.overhead_blocks = overhead_blocks;
  std::vector<std::int32_t> parts(static_cast<std::size_t>(num_parts * kPartFields));
  numbers.num_splits.resize(lengths.size() + 1);
  build_schedule(parts, numbers.num_splits, lengths, dialect, params);
  for (std::int64_t p = 0; p < num_parts; ++p) numbers.parts.push_back(read_part(parts, p));
  return numbers;
}

std::string listed(const std::vector<ScheduleViolation>& violations) {
  std::string all;
  for (const ScheduleViolation& v : violations) {
    all += std::string(v.law) + " (" + v.message + ")\n";
  }
  return all;
}

std::vector<std::int32_t> random_lengths(std::mt19937& random, std::size_t batch) {
  const std::uint32_t longest = 1U << (1 + random() % 17);
  const std::uint32_t empties = random() % 4;  // 0: none
  std::vector<std::int32_t> lengths(batch);
  for (std::int32_t& length : lengths) {
    length =
        empties > 0 && random() % 4 < empties ? 0 : static_cast<std::int32_t>(random() % longest);
  }
  return lengths;
}

std::int64_t random_parts(std::mt19937& random) {
  constexpr std::int64_t kCommon[] = {132, 66, 44, 33, 1, 2, 148, 7};
  return kCommon[random() % 8];
}

TEST(ScheduleLaws, HoldFor50000RandomBatches) {
  std::mt19937 random(20240607);
  for (int i = 0; i < 50000; ++i) {
    const std::size_t batch = i % 1000 == 999 ? 4096 : random() % 40;
    const std::vector<std::int32_t> lengths = random_lengths(random, batch);
    const std::int64_t parts = random_parts(random);
    const ScheduleDialect dialect = random() % 2 == 0 ? kTokens : kBlocks;
    const std::int64_t overhead = random() % 3 == 0 ? static_cast<std::int64_t>(random() % 9) : 5;
    const Numbers numbers = built(lengths, parts, dialect, overhead);
    const std::vector<ScheduleViolation> violations = numbers.judged();
    ASSERT_THAT(violations, IsEmpty()) << "batch " << i << ": " << listed(violations);
  }
}

// A schedule is pinned down: no number of a busy part, nor of num_splits, can be another one.
TEST(ScheduleLaws, SeeEverySingleChangedNumber) {
  std::mt19937 random(11);
  constexpr std::int32_t kChanges[] = {-64, -2, -1, 1, 2, 64, 1000};
  int changed = 0;
  for (int i = 0; i < 400; ++i) {
    const std::vector<std::int32_t> lengths = random_lengths(random, 1 + random() % 30);
    const std::int64_t num_parts = 1 + static_cast<std::int64_t>(random() % 20);
    const Numbers good = built(lengths, num_parts, i % 2 == 0 ? kTokens : kBlocks);
    const auto requests = static_cast<std::int64_t>(lengths.size());
    const auto spoil = [&](std::int32_t& number, Numbers& bad, const std::string& which) {
      const std::int32_t kept = number;
      for (const std::int32_t change : kChanges) {
        number = kept + change;
        ++changed;
        EXPECT_FALSE(bad.judged().empty()) << which << ' ' << kept << " -> " << number;
      }
      number = kept;
    };
    Numbers bad = good;
    for (std::size_t p = 0; p < bad.parts.size(); ++p) {
      SchedulePart& part = bad.parts[p];
      if (is_idle(part, requests, bad.dialect)) continue;
      const std::string name = "batch " + std::to_string(i) + " part " + std::to_string(p);
      spoil(part.begin_request, bad, name + " begin request");
      spoil(part.begin, bad, name + " begin");
      spoil(part.end_request, bad, name + " end request");
      spoil(part.end, bad, name + " end");
      spoil(part.begin_split, bad, name + " begin split");
    }
    for (std::int32_t& entry : bad.num_splits) {
      spoil(entry, bad, "batch " + std::to_string(i) + " num_splits");
    }
    ASSERT_THAT(bad.judged(), IsEmpty());
  }
  EXPECT_GT(changed, 100000);
}

struct Spoiled {
  const char* what;
  Numbers numbers;
  std::string_view law;
  std::int64_t request;
  std::int64_t part;
  const char* message;
};

// [4096, 0, 1] on 4 parts: 64 + 1 + 1 blocks, cuts at 21, 42 and 63.
TEST(ScheduleLaws, NameLawRequestAndPart) {
  const auto spoiled = [](auto change, ScheduleDialect dialect = kBlocks) {
    Numbers numbers = built({4096, 0, 1}, 4, dialect);
    change(numbers);
    return numbers;
  };
  const std::vector<Spoiled> cases = {
      {"gap", spoiled([](Numbers& n) { n.parts[1].begin = 22; }), "covered", 0, 1,
       "blocks 21..21 of 64 are walked never"},
      {"overlap", spoiled([](Numbers& n) { n.parts[2].begin = 40; }), "covered", 0, 2,
       "blocks 40..41 of 64 are walked twice"},
      {"lost tail", spoiled([](Numbers& n) {
         n.parts[3] = {-1, 0, 2, 1, 0};
       }),
       "covered", 0, 2, "blocks 63..63 of 64 are walked never"},
      {"lost request", spoiled([](Numbers& n) {
         n.parts[3] = {0, 63, 1, 0, 3};
       }),
       "covered", 2, 3, "no busy part holds the request"},
      {"begin past the end", spoiled([](Numbers& n) { n.parts[3].begin = 64; }), "range", 0, 3,
       "begin is 64"},
      {"begin request", spoiled([](Numbers& n) { n.parts[0].begin_request = 3; }), "range", -1, 0,
       "begin request is 3, must be in 0..2 or -1 when idle"},
      {"end request", spoiled([](Numbers& n) { n.parts[3].end_request = 3; }), "range", 0, 3,
       "end request is 3, must be in 0..2"},
      {"end of an empty request", spoiled([](Numbers& n) {
         n.parts[3] = {0, 63, 1, 1, 3};
       }),
       "range", 1, 3, "end is 1"},
      {"split", spoiled([](Numbers& n) { n.parts[2].begin_split = 1; }), "begin_split", 0, 2,
       "begin split is 1, must be 2"},
      {"num_splits", spoiled([](Numbers& n) { n.num_splits[2] = 6; }), "num_splits", 1, 3,
       "num_splits[2] is 6, must be 5"},
      {"num_splits from 0", spoiled([](Numbers& n) { n.num_splits[0] = 1; }), "num_splits", -1, -1,
       "num_splits[0] is 1"},
      {"cut off a block", spoiled([](Numbers& n) { n.parts[1].begin += 8; }, kTokens), "cut", 0, 1,
       "must be a multiple of 64"},
      {"end off a block", spoiled([](Numbers& n) { n.parts[0].end += 8; }, kTokens), "cut", 0, 0,
       "must be a multiple of 64 or 4096"},
      {"idle with an end",
       spoiled(
           [](Numbers& n) {
             n.parts[3] = {3, 0, 3, 0, 0};
           },
           kTokens),
       "idle", -1, 3, "end request 3 must be below it"},
      {"work after idle", spoiled([](Numbers& n) {
         n.parts[2] = {-1, 0, 2, 1, 0};
       }),
       "idle", -1, 3, "works although part 2 before it is idle"},
      {"shape", spoiled([](Numbers& n) { n.num_splits.pop_back(); }), "shape", -1, -1,
       "num_splits has 3 entries, must have 4"},
      {"no parts", spoiled([](Numbers& n) { n.parts.clear(); }), "shape", -1, -1, "no parts"},
      {"load", spoiled([](Numbers& n) {
         n.parts = {{0, 0, 0, 30, 0}, {0, 30, 0, 42, 1}, {0, 42, 0, 63, 2}, {0, 63, 2, 1, 3}};
       }),
       "load", -1, 0, "costs 35 blocks, must cost at most 26"},
  };
  for (const Spoiled& c : cases) {
    SCOPED_TRACE(c.what);
    const std::vector<ScheduleViolation> violations = c.numbers.judged();
    const auto found = std::find_if(violations.begin(), violations.end(), [&](const auto& v) {
      return v.law == c.law && v.request == c.request && v.part == c.part;
    });
    ASSERT_NE(found, violations.end()) << listed(violations);
    EXPECT_THAT(found->message, HasSubstr(c.message));
  }
}

TEST(ScheduleLaws, OneWrongSplitCountIsOneViolation) {
  Numbers numbers = built(std::vector<std::int32_t>(20, 3000), 7, kTokens);
  ++numbers.num_splits[9];
  EXPECT_EQ(numbers.judged().size(), 1u);
  for (std::size_t b = 10; b < numbers.num_splits.size(); ++b) ++numbers.num_splits[b];
  EXPECT_EQ(numbers.judged().size(), 1u);
}

TEST(ScheduleLaws, EmptyRequestBelongsToOnePart) {
  Numbers numbers = built({0, 0, 0, 0}, 2, kTokens);  // 0..2 | 3
  ASSERT_THAT(numbers.judged(), IsEmpty());
  numbers.parts[1].begin_request = 2;
  EXPECT_THAT(listed(numbers.judged()), HasSubstr("request 2, part 1: the empty request"));
  EXPECT_THAT(built({}, 3, kBlocks).judged(), IsEmpty());
  EXPECT_THAT(built({}, 3, kTokens).judged(), IsEmpty());
}

TEST(PartCount, SeesASchedulesBuiltForLocalHeads) {
  EXPECT_THAT(judge_part_count(66, 132, 128, 1), IsEmpty());
  EXPECT_THAT(judge_part_count(1, 132, 8449, 1), IsEmpty());
  EXPECT_THAT(judge_part_count(33, 132, 128, 4), IsEmpty());
  const std::vector<ScheduleViolation> wrong = judge_part_count(132, 132, 128, 1);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(wrong[0].law, "part_count");
  EXPECT_THAT(wrong[0].message, HasSubstr("132 parts, must be 66"));
}

TEST(PartCount, AgreesWithTheFormula) {
  for (std::int64_t sms : {1, 7, 80, 108, 132, 148}) {
    for (std::int64_t rows = 1; rows < 9000; rows += rows < 300 ? 1 : 61) {
      ASSERT_THAT(judge_part_count(num_sm_parts(sms, rows, 1), sms, rows, 1), IsEmpty())
          << sms << " SMs, " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace mladcp
