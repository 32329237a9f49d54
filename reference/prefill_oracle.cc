#include "reference/prefill_oracle.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
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
  Matrix key;    // [n, P + R]
  Matrix value;  // [n, Vd]
};

KeysValues project(const PrefillProblem& problem, std::int64_t head, std::int64_t context_begin,
                   std::int64_t context, std::int64_t new_begin, std::int64_t new_rows) {
  const std::int64_t latent = problem.w_uk.size(2);
  const std::int64_t nope = problem.w_uk.size(1);
  const std::int64_t width = problem.new_rows.size(1);
  Matrix rows(context + new_rows, width);
  rows.topRows(context) = load(problem.context_rows, context_begin, context);
  rows.bottomRows(new_rows) = load(problem.new_rows, new_begin, new_rows);
  KeysValues result{Matrix(rows.rows(), nope + width - latent), Matrix()};
  const Matrix w_uk = load(problem.w_uk.select(0, head), 0, nope);
  const Matrix w_uv = load(problem.w_uv.select(0, head), 0, latent);
  result.key.leftCols(nope) = rows.leftCols(latent) * w_uk.transpose();
  result.key.rightCols(width - latent) = rows.rightCols(width - latent);
  result.value = rows.leftCols(latent) * w_uv;
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
  Matrix a = std::abs(scale) * (query.cwiseAbs() * kv.key.cwiseAbs().transpose());
  for (std::int64_t i = 0; i < p.rows(); ++i) {
    const std::int64_t seen = visible[static_cast<std::size_t>(i)];
    auto logits = p.row(i).head(seen);
    const double max = logits.maxCoeff();
    logits = (logits.array() - max).exp();
    const double sum = logits.sum();
    logits /= sum;
    p.row(i).tail(p.cols() - seen).setZero();
    result.lse.push_back(max + std::log(sum));
    result.keys.push_back(seen);
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
  append(result.magnitude, p * kv.value.cwiseAbs());
  append(result.logit_weighted, pa * kv.value.cwiseAbs());
  append(result.lse_squares, w_sum);
  append(result.lse_magnitude, pa.rowwise().sum());
}

void expect_problem(const PrefillProblem& problem, std::int64_t head) {
  std::int64_t context = 0;
  std::int64_t rows = 0;
  for (const PrefillRequest& request : problem.requests) {
    context += request.context;
    rows += request.new_tokens;
  }
  expect_rank(problem.query, 3);
  expect_rank(problem.w_uk, 3);
  expect_rank(problem.w_uv, 3);
  expect_rank(problem.new_rows, 2);
  const std::int64_t heads = problem.query.size(1);
  const std::int64_t nope = problem.w_uk.size(1);
  const std::int64_t latent = problem.w_uk.size(2);
  const std::int64_t width = latent + problem.query.size(2) - nope;
  expect_shape(problem.query, {rows, heads, problem.query.size(2)});
  expect_shape(problem.context_rows, {context, width});
  expect_shape(problem.new_rows, {rows, width});
  expect_shape(problem.w_uk, {heads, nope, latent});
  expect_shape(problem.w_uv, {heads, latent, problem.w_uv.size(2)});
  if (head < 0 || head >= heads) {
    throw InvalidArgument("head = " + std::to_string(head) + ": the problem has heads 0 .. " +
                          std::to_string(heads - 1));
  }
}

}  // namespace

PrefillReference prefill_reference(const PrefillProblem& problem, std::int64_t head,
                                   std::span<const std::int64_t> rows) {
  expect_problem(problem, head);
  const TensorView query = problem.query.select(1, head);
  PrefillReference result;
  std::int64_t context_begin = 0;
  std::int64_t new_begin = 0;
  auto row = rows.begin();
  for (const PrefillRequest& request : problem.requests) {
    const std::int64_t new_end = new_begin + request.new_tokens;
    const auto last = std::find_if(row, rows.end(), [&](std::int64_t t) { return t >= new_end; });
    if (row != last) {
      const KeysValues kv =
          project(problem, head, context_begin, request.context, new_begin, request.new_tokens);
      while (row != last) {
        const std::int64_t count = std::min<std::int64_t>(kRowBlock, last - row);
        Matrix block(count, query.size(1));
        std::vector<std::int64_t> visible;
        for (std::int64_t i = 0; i < count; ++i, ++row) {
          block.row(i) = load(query, *row, 1);
          visible.push_back(request.context + *row - new_begin + 1);
        }
        attend(block, kv, visible, problem.w_uk.size(1), problem.softmax_scale, result);
      }
    }
    context_begin += request.context;
    new_begin = new_end;
  }
  if (row != rows.end()) {
    throw InvalidArgument("row " + std::to_string(*row) + ": the problem has rows 0 .. " +
                          std::to_string(new_begin - 1) + ", and they must rise");
  }
  return result;
}

}  // namespace mladcp
