#include "reference/schedule_laws.h"

#include <algorithm>

namespace mladcp {
namespace {

// Work of one part on one request, in blocks of that request.
struct Piece {
  std::int64_t part;
  std::int64_t first;
  std::int64_t last;   // one past
  std::int64_t split;  // what the part claims: its begin split, 0 for requests it starts
};

std::string text(std::int64_t value) { return std::to_string(value); }

class Judge {
 public:
  explicit Judge(const ScheduleClaim& claim)
      : claim_(claim),
        requests_(static_cast<std::int64_t>(claim.lengths.size())),
        pieces_(claim.lengths.size()),
        load_(claim.parts.size(), 0) {}

  std::vector<ScheduleViolation> run() {
    const bool sized = claim_.num_splits.size() == claim_.lengths.size() + 1;
    if (!sized) {
      report("shape", -1, -1,
             "num_splits has " + text(static_cast<std::int64_t>(claim_.num_splits.size())) +
                 " entries, must have " + text(requests_ + 1));
    }
    if (claim_.parts.empty()) report("shape", -1, -1, "no parts, must be at least one");
    std::int64_t first_idle = -1;
    for (std::int64_t p = 0; p < static_cast<std::int64_t>(claim_.parts.size()); ++p) {
      if (claims_to_be_idle(claim_.parts[p])) {
        judge_idle(p);
        if (first_idle < 0) first_idle = p;
        continue;
      }
      if (first_idle >= 0) {
        report("idle", -1, p, "works although part " + text(first_idle) + " before it is idle");
      }
      collect_pieces(p);
    }
    for (std::int64_t r = 0; r < requests_; ++r) judge_request(r);
    if (sized) judge_num_splits();
    judge_load();
    return std::move(violations_);
  }

 private:
  bool tokens() const { return claim_.dialect == ScheduleDialect::kTokens; }

  // Blocks of a request; an empty one has a single empty block in the blocks dialect.
  std::int64_t blocks_of(std::int64_t request) const {
    const std::int64_t length = claim_.lengths[request];
    if (length == 0) return tokens() ? 0 : 1;
    return (length - 1) / claim_.block + 1;
  }

  // How the dialect writes the end of a request that is not cut.
  std::int64_t written_end(std::int64_t request) const {
    const std::int64_t length = claim_.lengths[request];
    return tokens() || length == 0 ? length : blocks_of(request);
  }

  bool claims_to_be_idle(const SchedulePart& part) const {
    return part.begin_request == (tokens() ? requests_ : -1);
  }

  void report(std::string_view law, std::int64_t request, std::int64_t part,
              const std::string& what) {
    std::string where;
    if (request >= 0) where += "request " + text(request);
    if (part >= 0) where += (where.empty() ? "part " : ", part ") + text(part);
    violations_.push_back({law, request, part, where.empty() ? what : where + ": " + what});
  }

  // The kernel of the tokens dialect walks begin request .. end request: idle means none.
  void judge_idle(std::int64_t p) {
    const SchedulePart& part = claim_.parts[p];
    if (tokens() && part.end_request >= part.begin_request) {
      report("idle", -1, p,
             "begin request " + text(part.begin_request) + " says idle, end request " +
                 text(part.end_request) + " must be below it");
    }
  }

  void collect_pieces(std::int64_t p) {
    const SchedulePart& part = claim_.parts[p];
    if (part.begin_request < 0 || part.begin_request >= requests_) {
      report("range", -1, p,
             "begin request is " + text(part.begin_request) + ", must be in 0.." +
                 text(requests_ - 1) + " or " + text(tokens() ? requests_ : -1) + " when idle");
      return;
    }
    if (part.end_request < part.begin_request || part.end_request >= requests_) {
      report("range", part.begin_request, p,
             "end request is " + text(part.end_request) + ", must be in " +
                 text(part.begin_request) + ".." + text(requests_ - 1));
      return;
    }
    for (std::int64_t r = part.begin_request; r <= part.end_request; ++r) {
      const bool begins = r == part.begin_request;
      const std::int64_t first = begins ? first_block(p, r, part.begin) : 0;
      const std::int64_t last = r == part.end_request ? end_block(p, r, part.end) : blocks_of(r);
      if (first < 0 || last < 0) continue;
      if (first >= last && blocks_of(r) > 0) {
        report("range", r, p,
               "walks blocks " + text(first) + ".." + text(last) + ", must walk at least one");
        continue;
      }
      pieces_[r].push_back({p, first, last, begins ? part.begin_split : 0});
      load_[p] += last - first + claim_.overhead_blocks;
    }
  }

  // The block at which a part begins a request, or -1 after a report.
  std::int64_t first_block(std::int64_t p, std::int64_t r, std::int64_t begin) {
    const std::int64_t unit = tokens() ? claim_.block : 1;
    if (begin < 0 || begin / unit >= std::max<std::int64_t>(1, blocks_of(r))) {
      report("range", r, p,
             "begin is " + text(begin) + ", must lie in the request's " + text(claim_.lengths[r]) +
                 " keys");
      return -1;
    }
    if (begin % unit != 0) {
      report("cut", r, p,
             "begin is " + text(begin) + ", must be a multiple of " + text(claim_.block));
      return -1;
    }
    return begin / unit;
  }

  std::int64_t end_block(std::int64_t p, std::int64_t r, std::int64_t end) {
    if (end == written_end(r)) return blocks_of(r);
    const std::int64_t unit = tokens() ? claim_.block : 1;
    if (end <= 0 || end > written_end(r)) {
      report("range", r, p,
             "end is " + text(end) + ", must be " + text(written_end(r)) +
                 " or a cut inside the request");
      return -1;
    }
    if (end % unit != 0) {
      report("cut", r, p,
             "end is " + text(end) + ", must be a multiple of " + text(claim_.block) + " or " +
                 text(written_end(r)));
      return -1;
    }
    return end / unit;
  }

  // The part whose numbers say where request r should have been, when no part holds it.
  std::int64_t nearest_part(std::int64_t r) const {
    std::int64_t nearest = 0;
    for (std::int64_t p = 0; p < static_cast<std::int64_t>(claim_.parts.size()); ++p) {
      const SchedulePart& part = claim_.parts[p];
      if (!claims_to_be_idle(part) && part.begin_request <= r) nearest = p;
    }
    return nearest;
  }

  void report_blocks(std::int64_t r, std::int64_t p, std::int64_t first, std::int64_t last,
                     const char* what) {
    report("covered", r, p,
           "blocks " + text(first) + ".." + text(last - 1) + " of " + text(blocks_of(r)) +
               " are walked " + what + ", must be walked once");
  }

  void judge_request(std::int64_t r) {
    std::vector<Piece>& pieces = pieces_[r];
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.first < b.first; });
    if (pieces.empty()) {
      report("covered", r, nearest_part(r),
             "no busy part holds the request, exactly one sequence of parts must");
      return;
    }
    std::int64_t next = 0;
    for (const Piece& piece : pieces) {
      if (piece.first > next) report_blocks(r, piece.part, next, piece.first, "never");
      if (piece.first < next) {
        report_blocks(r, piece.part, piece.first, std::min(next, piece.last), "twice");
      }
      next = std::max(next, piece.last);
    }
    if (next < blocks_of(r)) {
      report_blocks(r, pieces.back().part, next, blocks_of(r), "never");
    }
    if (blocks_of(r) == 0 && pieces.size() > 1) {
      report("covered", r, pieces[1].part,
             "the empty request is also in part " + text(pieces[0].part) + ", must be in one part");
    }
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      if (pieces[k].split != static_cast<std::int64_t>(k)) {
        report("begin_split", r, pieces[k].part,
               "begin split is " + text(pieces[k].split) + ", must be " +
                   text(static_cast<std::int64_t>(k)));
      }
    }
  }

  // One report an error: an entry that is off, or from where on all entries are.
  void judge_num_splits() {
    if (claim_.num_splits[0] != 0) {
      report("num_splits", -1, -1,
             "num_splits[0] is " + text(claim_.num_splits[0]) + ", must be 0");
    }
    std::int64_t wanted = 0;
    std::int64_t shift = claim_.num_splits[0];
    for (std::int64_t r = 0; r < requests_; ++r) {
      wanted += static_cast<std::int64_t>(pieces_[r].size());
      const std::int64_t got = claim_.num_splits[r + 1];
      if (got != wanted && got - wanted != shift) {
        report("num_splits", r, pieces_[r].empty() ? -1 : pieces_[r].back().part,
               "num_splits[" + text(r + 1) + "] is " + text(got) + ", must be " + text(wanted) +
                   " (" + text(static_cast<std::int64_t>(pieces_[r].size())) +
                   " parts hold this request)");
      }
      shift = got - wanted;
    }
  }

  void judge_load() {
    if (claim_.parts.empty()) return;
    std::int64_t total = 0;
    for (std::int64_t r = 0; r < requests_; ++r) total += blocks_of(r) + claim_.overhead_blocks;
    const auto parts = static_cast<std::int64_t>(claim_.parts.size());
    const std::int64_t bound =
        total / parts + (total % parts != 0 ? 1 : 0) + claim_.overhead_blocks;
    for (std::int64_t p = 0; p < parts; ++p) {
      if (load_[p] > bound) {
        report("load", -1, p,
               "costs " + text(load_[p]) + " blocks, must cost at most " + text(bound));
      }
    }
  }

  const ScheduleClaim& claim_;
  std::int64_t requests_;
  std::vector<std::vector<Piece>> pieces_;  // [B]
  std::vector<std::int64_t> load_;          // [P], blocks and overhead
  std::vector<ScheduleViolation> violations_;
};

}  // namespace

std::vector<ScheduleViolation> judge_schedule(const ScheduleClaim& claim) {
  return Judge(claim).run();
}

std::vector<ScheduleViolation> judge_part_count(std::int64_t parts, std::int64_t num_sms,
                                                std::int64_t heads_times_q, std::int64_t h_kv) {
  // Query tiles of 64 rows, one SM each, counted rather than divided.
  std::int64_t tiles = 0;
  for (std::int64_t rows = heads_times_q / h_kv; rows > 0; rows -= 64) ++tiles;
  std::int64_t wanted = 1;
  while ((wanted + 1) * tiles * h_kv <= num_sms) ++wanted;
  if (parts == wanted) return {};
  return {{"part_count", -1, -1,
           text(parts) + " parts, must be " + text(wanted) + ": heads * q_len " +
               text(heads_times_q) + " takes " + text(tiles * h_kv) + " of " + text(num_sms) +
               " SMs a part"}};
}

}  // namespace mladcp
