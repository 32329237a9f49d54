#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "reference/host_rows.h"
#include "reference/oracle.h"
#include "reference/oracle_rows.h"
#include "reference/parallel_for.h"

namespace mladcp {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::int64_t kBlockRows = 64;
constexpr std::int64_t kTileKeys = 128;
constexpr std::int64_t kBlockLogits = std::int64_t{1} << 22;  // 112 MiB a thread
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// The power of two at or below the largest magnitude: what is divided by it may be squared in fp32.
double unit_of(const Matrix& matrix) {
  const double largest = matrix.cwiseAbs().maxCoeff();
  return std::isnormal(largest) ? std::exp2(std::ilogb(largest)) : 1.0;
}

// Rows of one request, in the numbering of RowBlock.
struct Unit {
  std::size_t request;
  RowBlock block;
};

// The positions of a request that some row of the unit sees, set by set, ascending inside a set.
struct SortedKeys {
  std::vector<std::int64_t> position;
  std::vector<std::int64_t> set_begin;  // [sets + 1]
};

SortedKeys sort_keys(const OracleProblem& problem, std::size_t request, std::int64_t length) {
  SortedKeys keys;
  keys.set_begin.push_back(0);
  for (std::int64_t set = 0; set < problem.sets; ++set) {
    for (std::int64_t p = 0; p < length; ++p) {
      const std::int64_t owner =
          problem.owner.empty() ? 0 : problem.owner[request][static_cast<std::size_t>(p)];
      if (owner == set) keys.position.push_back(p);
    }
    keys.set_begin.push_back(static_cast<std::int64_t>(keys.position.size()));
  }
  return keys;
}

class BlockAttention {
 public:
  BlockAttention(const OracleProblem& problem, const KeyErrors& errors, const Unit& unit)
      : problem_(problem), errors_(errors), unit_(unit), heads_(problem.query.size(1)) {
    std::int64_t most = 0;
    for (std::int64_t row = 0; row < unit.block.rows; ++row) most = std::max(most, visible(row));
    keys_ = sort_keys(problem, unit.request, most);
    compute_logits();
  }

  std::vector<SetSums> sums() {
    std::vector<SetSums> result;
    for (std::int64_t set = 0; set < problem_.sets; ++set) result.push_back(sums_of_set(set));
    return result;
  }

 private:
  std::int64_t visible(std::int64_t row) const {
    const std::int64_t t = (unit_.block.first + row) / heads_;
    return std::max<std::int64_t>(0, problem_.visible[static_cast<std::size_t>(t)]);
  }

  Matrix load_keys(std::int64_t begin, std::int64_t count) const {
    const TensorView& view = problem_.keys[unit_.request];
    Matrix tile(count, view.size(1));
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t position = keys_.position[static_cast<std::size_t>(begin + k)];
      load_row_fp64(tile.row(k).data(), view, offset_of(view, position), problem_.key_scale);
    }
    return tile;
  }

  void compute_logits() {
    const double scale = problem_.softmax_scale * problem_.query_scale;
    Matrix query(unit_.block.rows, problem_.query.size(2));
    for (std::int64_t row = 0; row < unit_.block.rows; ++row) {
      const std::int64_t at = unit_.block.first + row;
      load_row_fp64(query.row(row).data(), problem_.query,
                    offset_of(problem_.query, at / heads_, at % heads_), scale);
    }
    const double query_unit = unit_of(query);
    const MatrixF query_square = (query / query_unit).cwiseAbs2().cast<float>();
    const auto count = static_cast<std::int64_t>(keys_.position.size());
    logits_.resize(query.rows(), count);
    size_.resize(query.rows(), count);
    for (std::int64_t begin = 0; begin < count; begin += kTileKeys) {
      const std::int64_t width = std::min(kTileKeys, count - begin);
      const Matrix tile = load_keys(begin, width);
      auto z = logits_.middleCols(begin, width);
      z.noalias() = query * tile.transpose();
      const double tile_unit = unit_of(tile);
      const MatrixF tile_square = (tile / tile_unit).cwiseAbs2().cast<float>();
      auto g = size_.middleCols(begin, width);
      g.noalias() = query_square * tile_square.transpose();
      const Matrix root = query_unit * tile_unit * g.cwiseSqrt().cast<double>();
      g = (root + z.cwiseAbs()).cast<float>();
    }
  }

  // Logits of the set become P; the per-row numbers follow. Returns P's error and flushed part.
  void settle_row(std::int64_t row, std::int64_t begin, std::int64_t end, SetSums& sums,
                  Matrix& error, MatrixF& flushed, MatrixF& tilt) {
    const auto first = keys_.position.begin() + begin;
    const std::int64_t seen =
        std::lower_bound(first, keys_.position.begin() + end, visible(row)) - first;
    auto p = logits_.row(row).segment(begin, end - begin);
    const std::size_t at = static_cast<std::size_t>(row);
    sums.keys[at] = seen;
    sums.lse[at] = kMinusInfinity;
    sums.max_logit[at] = kMinusInfinity;
    if (seen == 0) {
      p.setZero();
      return;
    }
    const double max = p.head(seen).maxCoeff();
    double total = 0.0, mean = 0.0, mean_size = 0.0;
    const Eigen::RowVectorXd z = p;
    for (std::int64_t k = 0; k < seen; ++k) {
      p[k] = std::exp(z[k] - max);
      total += p[k];
    }
    p.tail(p.size() - seen).setZero();
    p /= total;
    const double largest = 1.0 / total;
    for (std::int64_t k = 0; k < seen; ++k) {
      mean += p[k] * z[k];
      mean_size += p[k] * std::fabs(z[k]);
    }
    double logit_random = 0.0, variance = 0.0, roundoff = 0.0;
    for (std::int64_t k = 0; k < seen; ++k) {
      variance += p[k] * (z[k] - mean) * (z[k] - mean);
      roundoff += std::max(errors_.probability * p[k], errors_.floor * largest);
      const double of_logit = errors_.logit_random * size_(row, begin + k);
      logit_random += (p[k] * of_logit) * (p[k] * of_logit);
      const bool flushes = errors_.flush > 0.0 && p[k] <= errors_.flush * largest;
      if (flushes) {
        if (flushed.size() == 0) flushed.setZero(unit_.block.rows, p.size());
        flushed(row, k) =
            static_cast<float>(std::max<double>(p[k], KeyErrors::kSmallestExponential * largest));
      }
      const double own = p[k] * std::hypot(of_logit, errors_.probability);
      const double of_p = flushes ? p[k] * of_logit : std::max(own, errors_.floor * largest);
      error(row, k) = of_p * of_p;
      tilt(row, k) = static_cast<float>(p[k] * (z[k] - mean));
    }
    sums.max_logit[at] = max;
    sums.lse[at] = max + std::log(total);
    sums.logit_random[at] = static_cast<float>(logit_random);
    sums.mean_logit[at] = static_cast<float>(mean_size);
    sums.deviation[at] = static_cast<float>(std::sqrt(variance));
    sums.roundoff[at] = static_cast<float>(roundoff);
  }

  SetSums sums_of_set(std::int64_t set) {
    const std::int64_t begin = keys_.set_begin[static_cast<std::size_t>(set)];
    const std::int64_t end = keys_.set_begin[static_cast<std::size_t>(set) + 1];
    const std::int64_t rows = unit_.block.rows;
    SetSums sums;
    const auto count = static_cast<std::size_t>(rows);
    sums.lse.resize(count);
    sums.max_logit.resize(count);
    sums.keys.resize(count);
    sums.logit_random.resize(count);
    sums.mean_logit.resize(count);
    sums.deviation.resize(count);
    sums.roundoff.resize(count);
    Matrix error = Matrix::Zero(rows, end - begin);
    MatrixF tilt = MatrixF::Zero(rows, end - begin);
    MatrixF flushed;  // as large as the others once a key flushes
    for (std::int64_t row = 0; row < rows; ++row) {
      settle_row(row, begin, end, sums, error, flushed, tilt);
    }
    multiply_values(begin, end, sums, error, flushed, tilt);
    return sums;
  }

  template <typename Element>
  auto matrix_of(std::vector<Element>& values) const {
    using M = Eigen::Matrix<Element, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    values.assign(static_cast<std::size_t>(unit_.block.rows * problem_.latent), Element{0});
    return Eigen::Map<M>(values.data(), unit_.block.rows, problem_.latent);
  }

  void multiply_values(std::int64_t begin, std::int64_t end, SetSums& sums, const Matrix& error,
                       const MatrixF& flushed, const MatrixF& tilt) const {
    auto out = matrix_of(sums.out);
    auto magnitude = matrix_of(sums.magnitude);
    auto square = matrix_of(sums.square);
    auto random = matrix_of(sums.random);
    auto tilted = matrix_of(sums.tilt);
    if (flushed.size() > 0) matrix_of(sums.flushed);
    for (std::int64_t at = begin; at < end; at += kTileKeys) {
      const std::int64_t width = std::min(kTileKeys, end - at);
      const Matrix value = load_keys(at, width).leftCols(problem_.latent);
      const MatrixF v = value.cast<float>();
      const MatrixF v_abs = v.cwiseAbs();
      const Matrix v_square = value.cwiseAbs2();
      const auto p = logits_.middleCols(at, width);
      const MatrixF pf = p.cast<float>();
      out.noalias() += p * value;
      magnitude.noalias() += pf * v_abs;
      square.noalias() += p.cwiseAbs2() * v_square;
      random.noalias() += error.middleCols(at - begin, width) * v_square;
      tilted.noalias() += tilt.middleCols(at - begin, width) * v;
      if (flushed.size() > 0) {
        Eigen::Map<MatrixF>(sums.flushed.data(), out.rows(), out.cols()).noalias() +=
            flushed.middleCols(at - begin, width) * v_abs;
      }
    }
    tilted = tilted.cwiseAbs().eval();
  }

  const OracleProblem& problem_;
  const KeyErrors& errors_;
  const Unit& unit_;
  const std::int64_t heads_;
  SortedKeys keys_;
  Matrix logits_;  // [rows, keys], then P of each set
  MatrixF size_;   // [rows, keys] g
};

void expect_problem(const OracleProblem& problem) {
  expect_rank(problem.query, 3);
  const auto rows = static_cast<std::size_t>(problem.query.size(0));
  const auto fail = [](const std::string& text) { throw InvalidArgument("oracle: " + text); };
  if (problem.request.size() != rows || problem.visible.size() != rows) {
    fail("request and visible must have " + std::to_string(rows) + " entries");
  }
  if (!problem.owner.empty() && problem.owner.size() != problem.keys.size()) {
    fail("owner must be empty or have one entry a request");
  }
  if (problem.latent < 1 || problem.latent > problem.query.size(2)) {
    fail("latent = " + std::to_string(problem.latent) + " must lie in [1, D]");
  }
  for (std::size_t b = 0; b < problem.keys.size(); ++b) {
    expect_shape(problem.keys[b], {problem.keys[b].size(0), problem.query.size(2)});
  }
  for (std::size_t t = 0; t < rows; ++t) {
    const auto b = static_cast<std::size_t>(problem.request[t]);
    if (problem.request[t] < 0 || b >= problem.keys.size() ||
        (t > 0 && problem.request[t] < problem.request[t - 1])) {
      fail("request[" + std::to_string(t) + "] = " + std::to_string(problem.request[t]) +
           " must ascend within the requests that have keys");
    }
    const std::int64_t length = problem.keys[b].size(0);
    if (problem.visible[t] > length) {
      fail("row " + std::to_string(t) + " sees " + std::to_string(problem.visible[t]) + " of " +
           std::to_string(length) + " keys");
    }
    if (!problem.owner.empty() && static_cast<std::int64_t>(problem.owner[b].size()) < length) {
      fail("owner of request " + std::to_string(b) + " must cover its keys");
    }
  }
}

std::vector<Unit> cut_into_units(const OracleProblem& problem) {
  std::vector<Unit> units;
  const std::int64_t heads = problem.query.size(1);
  const std::int64_t rows = problem.query.size(0);
  for (std::int64_t t = 0; t < rows;) {
    std::int64_t end = t;
    while (end < rows && problem.request[static_cast<std::size_t>(end)] ==
                             problem.request[static_cast<std::size_t>(t)]) {
      ++end;
    }
    const auto b = static_cast<std::size_t>(problem.request[static_cast<std::size_t>(t)]);
    const std::int64_t keys = std::max<std::int64_t>(1, problem.keys[b].size(0));
    const std::int64_t step = std::clamp<std::int64_t>(kBlockLogits / keys, 8, kBlockRows);
    for (std::int64_t row = t * heads; row < end * heads; row += step) {
      units.push_back({b, {row, std::min(step, end * heads - row)}});
    }
    t = end;
  }
  return units;
}

}  // namespace

void attend_exactly(const OracleProblem& problem, const KeyErrors& errors, int threads,
                    const std::function<void(const RowBlock&, std::span<const SetSums>)>& visit) {
  expect_problem(problem);
  const std::vector<Unit> units = cut_into_units(problem);
  parallel_for(threads, static_cast<std::int64_t>(units.size()), [&](std::int64_t i) {
    const Unit& unit = units[static_cast<std::size_t>(i)];
    visit(unit.block, BlockAttention(problem, errors, unit).sums());
  });
}

}  // namespace mladcp
