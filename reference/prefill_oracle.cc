#include "reference/prefill_oracle.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/error.h"
#include "reference/host_rows.h"
#include "reference/oracle.h"

namespace mladcp {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;

constexpr std::int64_t kRowBlock = 64;  // query rows of one pass: bounds the logits in memory

// view[begin + i, :] of a [M, X] tensor.
Matrix load(const TensorView& view, std::int64_t begin, std::int64_t count) {
  Eigen::VectorXf row(view.size(1));
  Matrix matrix(count, view.size(1));
  for (std::int64_t i = 0; i < count; ++i) {
    load_row(row.data(), view, offset_of(view, begin + i));
    matrix.row(i) = row.cast<double>();
  }
  return matrix;
}

// One head's keys and values of one request, context first.
struct KeysValues {
  Matrix key;         // [n, P + R]
  Matrix value;       // [n, Vd]
  Vector norm;        // [n] of the latents
  Vector key_norm;    // [P] of W_UK's rows
  Matrix value_size;  // [n, Vd] |v| + |c| |w_v|: what the sums inside a value may reach
};

// rows: [n, D] of one request; weights of one head.
KeysValues project(const Matrix& rows, const TensorView& w_uk, const TensorView& w_uv) {
  const std::int64_t nope = w_uk.size(0);
  const std::int64_t latent = w_uk.size(1);
  const std::int64_t rope = rows.cols() - latent;
  const Matrix up_key = load(w_uk, 0, nope);
  const Matrix up_value = load(w_uv, 0, latent);
  const auto latents = rows.leftCols(latent);
  KeysValues result;
  result.key.resize(rows.rows(), nope + rope);
  result.key.leftCols(nope) = latents * up_key.transpose();
  result.key.rightCols(rope) = rows.rightCols(rope);
  result.value = latents * up_value;
  result.norm = latents.rowwise().norm();
  result.key_norm = up_key.rowwise().norm();
  result.value_size = result.value.cwiseAbs() + result.norm * up_value.colwise().norm();
  return result;
}

// [m, Vd] see PrefillReference::flushed; row i of p sees visible[i] keys.
Matrix flushed_sums(const Matrix& p, const std::vector<std::int64_t>& visible,
                    const Eigen::Ref<const Matrix>& value_size) {
  constexpr double kSmallest = KeyErrors::kSmallestExponential;
  Matrix sums = Matrix::Zero(p.rows(), value_size.cols());
  for (std::int64_t i = 0; i < p.rows(); ++i) {
    for (std::int64_t k = 0; k < visible[static_cast<std::size_t>(i)]; ++k) {
      if (p(i, k) <= kSmallest) sums.row(i) += kSmallest * value_size.row(k);
    }
  }
  return sums;
}

void append(std::vector<double>& to, const Matrix& rows) {
  to.insert(to.end(), rows.data(), rows.data() + rows.size());
}

// query [m, P + R] against keys first .. first + count - 1; row i sees the first visible[i] of
// them.
void attend(const Matrix& query, const KeysValues& kv, std::int64_t first, std::int64_t count,
            const std::vector<std::int64_t>& visible, double scale, PrefillReference& result) {
  const std::int64_t nope = kv.key_norm.size();
  const auto key = kv.key.middleRows(first, count);
  const auto value = kv.value.middleRows(first, count);
  const auto value_size = kv.value_size.middleRows(first, count);
  const Matrix squared_query = query.leftCols(nope).array().square();
  const Matrix squared_key = key.leftCols(nope).array().square();
  Matrix p = scale * (query * key.transpose());
  Matrix sigma2 = scale * scale * (squared_query * squared_key.transpose());
  const Vector query_norm = (query.leftCols(nope) * kv.key_norm.asDiagonal()).rowwise().norm();
  const Matrix a = std::abs(scale) * (query.cwiseAbs() * key.cwiseAbs().transpose() +
                                      query_norm * kv.norm.segment(first, count).transpose());
  for (std::int64_t i = 0; i < p.rows(); ++i) {
    const std::int64_t seen = visible[static_cast<std::size_t>(i)];
    result.keys.push_back(seen);
    p.row(i).tail(p.cols() - seen).setZero();
    if (seen == 0) {
      result.lse.push_back(-std::numeric_limits<double>::infinity());
      continue;
    }
    auto logits = p.row(i).head(seen);
    const double max = logits.maxCoeff();
    logits = (logits.array() - max).exp();
    const double sum = logits.sum();
    logits /= sum;
    result.lse.push_back(max + std::log(sum));
  }
  const Matrix out = p * value;
  const Matrix p2 = p.array().square();
  const Matrix w = p2.cwiseProduct(sigma2);
  const Matrix squared_value = value.array().square();
  const Vector w_sum = w.rowwise().sum();
  // sum w (v - out)^2, expanded; rounding may leave it slightly negative.
  Matrix spread = w * squared_value - 2.0 * out.cwiseProduct(w * value);
  spread += w_sum.asDiagonal() * out.array().square().matrix();
  const Matrix pa = p.cwiseProduct(a);
  append(result.out, out);
  append(result.value_squares, p2 * squared_value);
  append(result.logit_squares, spread.cwiseMax(0.0));
  append(result.magnitude, p * value_size);
  append(result.logit_weighted, pa * value_size);
  append(result.flushed, flushed_sums(p, visible, value_size));
  append(result.lse_squares, w_sum);
  append(result.lse_magnitude, pa.rowwise().sum());
}

void expect_tensors(const TensorView& query, const TensorView& w_uk, const TensorView& w_uv,
                    std::int64_t rows, std::int64_t head) {
  expect_rank(query, 3);
  expect_rank(w_uk, 3);
  expect_rank(w_uv, 3);
  const std::int64_t heads = query.size(1);
  expect_shape(query, {rows, heads, query.size(2)});
  expect_shape(w_uk, {heads, w_uk.size(1), w_uk.size(2)});
  expect_shape(w_uv, {heads, w_uk.size(2), w_uv.size(2)});
  if (head < 0 || head >= heads) {
    throw InvalidArgument("head = " + std::to_string(head) + ": the problem has heads 0 .. " +
                          std::to_string(heads - 1));
  }
}

// view[rows, :] of a [M, X] tensor.
Matrix load_rows(const TensorView& view, std::span<const std::int64_t> rows) {
  Matrix matrix(static_cast<std::int64_t>(rows.size()), view.size(1));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    matrix.row(static_cast<std::int64_t>(i)) = load(view, rows[i], 1);
  }
  return matrix;
}

void expect_rising(std::span<const std::int64_t> rows, std::int64_t total) {
  std::int64_t least = 0;
  for (const std::int64_t row : rows) {
    if (row < least || row >= total) {
      throw InvalidArgument("row " + std::to_string(row) + ": the problem has rows 0 .. " +
                            std::to_string(total - 1) + ", and they must rise");
    }
    least = row + 1;
  }
}

}  // namespace

struct PrefillHead::Request {
  PrefillRequest size;
  std::vector<std::int64_t> rows;  // asked about, counted within the request
  Matrix query;                    // [rows, P + R]
  KeysValues kv;                   // empty when nothing is asked
};

PrefillHead::PrefillHead(const PrefillProblem& problem, std::int64_t head,
                         std::span<const std::int64_t> rows)
    : scale_(problem.softmax_scale) {
  std::int64_t contexts = 0;
  std::int64_t total = 0;
  for (const PrefillRequest& request : problem.requests) {
    contexts += request.context;
    total += request.new_tokens;
  }
  expect_tensors(problem.query, problem.w_uk, problem.w_uv, total, head);
  const std::int64_t width = problem.w_uk.size(2) + problem.query.size(2) - problem.w_uk.size(1);
  expect_shape(problem.context_rows, {contexts, width});
  expect_shape(problem.new_rows, {total, width});
  expect_rising(rows, total);

  std::int64_t context_begin = 0;
  std::int64_t begin = 0;
  for (const PrefillRequest& size : problem.requests) {
    const auto& [context, added] = size;
    auto request = std::make_shared<Request>();
    request->size = size;
    const auto first = std::lower_bound(rows.begin(), rows.end(), begin);
    const auto last = std::lower_bound(first, rows.end(), begin + added);
    if (first != last) {
      request->query = load_rows(problem.query.select(1, head), {first, last});
      for (auto row = first; row != last; ++row) request->rows.push_back(*row - begin);
      Matrix keys(context + added, width);
      keys.topRows(context) = load(problem.context_rows, context_begin, context);
      keys.bottomRows(added) = load(problem.new_rows, begin, added);
      request->kv = project(keys, problem.w_uk.select(0, head), problem.w_uv.select(0, head));
    }
    context_begin += context;
    begin += added;
    requests_.push_back(std::move(request));
  }
}

PrefillReference PrefillHead::attend(std::span<const KeyRange> ranges) const {
  if (ranges.size() != requests_.size()) {
    throw InvalidArgument(std::to_string(ranges.size()) + " key ranges: the problem has " +
                          std::to_string(requests_.size()) + " requests");
  }
  PrefillReference result;
  for (std::size_t b = 0; b < ranges.size(); ++b) {
    const Request& request = *requests_[b];
    const auto& [context, added] = request.size;
    const auto [begin, end] = ranges[b];
    if (begin < 0 || begin > end || end > context + added) {
      throw InvalidArgument("keys " + std::to_string(begin) + " .. " + std::to_string(end - 1) +
                            ": request " + std::to_string(b) + " has " +
                            std::to_string(context + added));
    }
    const auto rows = static_cast<std::int64_t>(request.rows.size());
    for (std::int64_t row = 0; row < rows; row += kRowBlock) {
      const std::int64_t count = std::min(kRowBlock, rows - row);
      std::vector<std::int64_t> visible;
      for (std::int64_t i = row; i < row + count; ++i) {
        const std::int64_t own = context + request.rows[static_cast<std::size_t>(i)] + 1;
        visible.push_back(std::max<std::int64_t>(0, std::min(end, own) - begin));
      }
      mladcp::attend(request.query.middleRows(row, count), request.kv, begin, end - begin, visible,
                     scale_, result);
    }
  }
  return result;
}

PrefillReference PrefillHead::whole() const {
  std::vector<KeyRange> ranges;
  for (const auto& request : requests_) {
    ranges.push_back({0, request->size.context + request->size.new_tokens});
  }
  return attend(ranges);
}

PrefillReference prefill_reference(const PrefillProblem& problem, std::int64_t head,
                                   std::span<const std::int64_t> rows) {
  return PrefillHead(problem, head, rows).whole();
}

}  // namespace mladcp
