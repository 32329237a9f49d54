#include "reference/prefill_oracle.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "reference/host_rows.h"

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

void append(std::vector<double>& to, const Matrix& rows) {
  to.insert(to.end(), rows.data(), rows.data() + rows.size());
}

// query [m, P + R]; visible[i]: row i sees the first visible[i] keys.
void attend(const Matrix& query, const KeysValues& kv, const std::vector<std::int64_t>& visible,
            std::int64_t nope, double scale, PrefillReference& result) {
  const Matrix squared_query = query.leftCols(nope).array().square();
  const Matrix squared_key = kv.key.leftCols(nope).array().square();
  Matrix p = scale * (query * kv.key.transpose());
  Matrix sigma2 = scale * scale * (squared_query * squared_key.transpose());
  const Vector query_norm = (query.leftCols(nope) * kv.key_norm.asDiagonal()).rowwise().norm();
  const Matrix a = std::abs(scale) * (query.cwiseAbs() * kv.key.cwiseAbs().transpose() +
                                      query_norm * kv.norm.transpose());
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
  const Matrix out = p * kv.value;
  const Matrix p2 = p.array().square();
  const Matrix w = p2.cwiseProduct(sigma2);
  const Matrix squared_value = kv.value.array().square();
  const Vector w_sum = w.rowwise().sum();
  // sum w (v - out)^2, expanded; rounding may leave it slightly negative.
  Matrix spread = w * squared_value - 2.0 * out.cwiseProduct(w * kv.value);
  spread += w_sum.asDiagonal() * out.array().square().matrix();
  const Matrix pa = p.cwiseProduct(a);
  append(result.out, out);
  append(result.value_squares, p2 * squared_value);
  append(result.logit_squares, spread.cwiseMax(0.0));
  append(result.magnitude, p * kv.value_size);
  append(result.logit_weighted, pa * kv.value_size);
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

// Width of a cache row, from the query's and the weights'.
std::int64_t row_width(const TensorView& query, const TensorView& w_uk) {
  return w_uk.size(2) + query.size(2) - w_uk.size(1);
}

// The audited rows that lie in [begin, end), and where they stop.
using RowIterator = std::span<const std::int64_t>::iterator;
RowIterator rows_before(RowIterator first, RowIterator last, std::int64_t end) {
  return std::find_if(first, last, [end](std::int64_t t) { return t >= end; });
}

void expect_none_left(RowIterator row, RowIterator last, std::int64_t rows) {
  if (row == last) return;
  throw InvalidArgument("row " + std::to_string(*row) + ": the problem has rows 0 .. " +
                        std::to_string(rows - 1) + ", and they must rise");
}

// Attends the query rows first .. last of one request in blocks; visible_at(t) keys for row t.
template <typename VisibleAt>
void attend_request(RowIterator first, RowIterator last, const TensorView& query,
                    const KeysValues& kv, std::int64_t nope, double scale,
                    const VisibleAt& visible_at, PrefillReference& result) {
  while (first != last) {
    const std::int64_t count = std::min<std::int64_t>(kRowBlock, last - first);
    Matrix block(count, query.size(1));
    std::vector<std::int64_t> visible;
    for (std::int64_t i = 0; i < count; ++i, ++first) {
      block.row(i) = load(query, *first, 1);
      visible.push_back(visible_at(*first));
    }
    attend(block, kv, visible, nope, scale, result);
  }
}

}  // namespace

PrefillReference prefill_reference(const PrefillProblem& problem, std::int64_t head,
                                   std::span<const std::int64_t> rows) {
  std::int64_t contexts = 0;
  std::int64_t total = 0;
  for (const PrefillRequest& request : problem.requests) {
    contexts += request.context;
    total += request.new_tokens;
  }
  expect_tensors(problem.query, problem.w_uk, problem.w_uv, total, head);
  const std::int64_t width = row_width(problem.query, problem.w_uk);
  expect_shape(problem.context_rows, {contexts, width});
  expect_shape(problem.new_rows, {total, width});

  const TensorView query = problem.query.select(1, head);
  PrefillReference result;
  std::int64_t context_begin = 0;
  std::int64_t begin = 0;
  RowIterator row = rows.begin();
  for (const auto& [context, added] : problem.requests) {
    const RowIterator last = rows_before(row, rows.end(), begin + added);
    if (row != last) {
      Matrix keys(context + added, width);
      keys.topRows(context) = load(problem.context_rows, context_begin, context);
      keys.bottomRows(added) = load(problem.new_rows, begin, added);
      const KeysValues kv =
          project(keys, problem.w_uk.select(0, head), problem.w_uv.select(0, head));
      const std::int64_t before = context - begin;
      attend_request(
          row, last, query, kv, problem.w_uk.size(1), problem.softmax_scale,
          [before](std::int64_t t) { return before + t + 1; }, result);
    }
    row = last;
    context_begin += context;
    begin += added;
  }
  expect_none_left(row, rows.end(), total);
  return result;
}

PrefillReference context_reference(const ContextProblem& problem, std::int64_t head,
                                   std::span<const std::int64_t> rows) {
  const std::int64_t total = problem.cu_rows.back();
  expect_tensors(problem.query, problem.w_uk, problem.w_uv, total, head);
  expect_shape(problem.rows, {problem.cu_context.back(), row_width(problem.query, problem.w_uk)});
  const TensorView query = problem.query.select(1, head);
  PrefillReference result;
  RowIterator row = rows.begin();
  for (std::size_t b = 0; b + 1 < problem.cu_rows.size(); ++b) {
    const RowIterator last = rows_before(row, rows.end(), problem.cu_rows[b + 1]);
    const std::int64_t keys = problem.cu_context[b + 1] - problem.cu_context[b];
    if (row != last) {
      const KeysValues kv = project(load(problem.rows, problem.cu_context[b], keys),
                                    problem.w_uk.select(0, head), problem.w_uv.select(0, head));
      attend_request(
          row, last, query, kv, problem.w_uk.size(1), problem.softmax_scale,
          [keys](std::int64_t) { return keys; }, result);
    }
    row = last;
  }
  expect_none_left(row, rows.end(), total);
  return result;
}

}  // namespace mladcp
