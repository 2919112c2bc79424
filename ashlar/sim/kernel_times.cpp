#include "ashlar/sim/kernel_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::sim {
namespace {

std::optional<DType> type_named(const std::string& name) {
  for (int i = 0; i <= int(DType::kU64); ++i)
    if (name_of(DType(i)) == name) return DType(i);
  return std::nullopt;
}

// Solves the normal equations of the columns in `mask`; false if they have no single solution.
bool solve(std::array<std::array<double, 3>, 3> a, std::array<double, 3> y, int mask,
           std::array<double, 3>& x) {
  std::vector<size_t> columns;
  for (size_t i = 0; i < 3; ++i)
    if (mask >> i & 1) columns.push_back(i);
  for (size_t k = 0; k < columns.size(); ++k) {
    const size_t pivot = columns[k];
    if (a[pivot][pivot] < 1e-12) return false;  // columns are scaled to 1
    for (size_t l = k + 1; l < columns.size(); ++l) {
      const size_t row = columns[l];
      const double factor = a[row][pivot] / a[pivot][pivot];
      for (const size_t column : columns) a[row][column] -= factor * a[pivot][column];
      y[row] -= factor * y[pivot];
    }
  }
  x = {};
  for (size_t k = columns.size(); k-- > 0;) {
    const size_t row = columns[k];
    double rest = y[row];
    for (size_t l = k + 1; l < columns.size(); ++l) rest -= a[row][columns[l]] * x[columns[l]];
    x[row] = rest / a[row][row];
    if (x[row] < 0) return false;
  }
  return true;
}

bool is_product(const KernelWork& work) {
  return work.flop > work.bytes;  // bound by arithmetic on every machine
}

}  // namespace

std::array<double, 3> fit_law(const std::vector<std::array<double, 3>>& rows) {
  // Columns 1, flop and bytes, each over the time, scaled to length 1.
  std::array<double, 3> scale{}, best{};
  const auto column = [](const std::array<double, 3>& row, size_t i) {
    return (i == 0 ? 1.0 : row[i - 1]) / row[2];
  };
  for (const auto& row : rows)
    for (size_t i = 0; i < 3; ++i) scale[i] += column(row, i) * column(row, i);
  for (double& s : scale) s = s > 0 ? 1 / std::sqrt(s) : 0;
  std::array<std::array<double, 3>, 3> normal{};
  std::array<double, 3> y{};
  for (const auto& row : rows)
    for (size_t i = 0; i < 3; ++i) {
      y[i] += column(row, i) * scale[i];
      for (size_t j = 0; j < 3; ++j)
        normal[i][j] += column(row, i) * scale[i] * column(row, j) * scale[j];
    }
  double least = std::numeric_limits<double>::infinity();
  for (int mask = 1; mask < 8; ++mask) {
    std::array<double, 3> x{};
    if (!solve(normal, y, mask, x)) continue;
    double sum = 0;
    for (const auto& row : rows) {
      double value = -1;
      for (size_t i = 0; i < 3; ++i) value += x[i] * scale[i] * column(row, i);
      sum += value * value;
    }
    if (sum >= least * (1 - 1e-9)) continue;
    least = sum;
    for (size_t i = 0; i < 3; ++i) best[i] = x[i] * scale[i];
  }
  return best;
}

WorkTimes::WorkTimes(const machine::Profile& profile, std::span<const machine::TimedKernel> table)
    : profile_(profile) {
  // Where several numbers of ranks computed, the rows of the most ranks count.
  std::map<Key, int64_t> ranks_of;
  for (const machine::TimedKernel& row : table) {
    const auto type = type_named(row.dtype);
    ASHLAR_REQUIRE(type, kData, "the table of kernels has '{}' of the type '{}', which is none",
                   printable(row.op), printable(row.dtype));
    const Key key{row.op,
                  *type,
                  int32_t(row.groups),
                  int32_t(row.rows),
                  int32_t(row.cols),
                  int32_t(row.depth),
                  row.flop,
                  row.bytes};
    if (const auto known = ranks_of.find(key);
        row.median_us <= 0 || (known != ranks_of.end() && known->second > row.ranks))
      continue;
    ranks_of[key] = row.ranks;
    exact_us_[key] = row.median_us;
    num_ranks_ = std::max(num_ranks_, row.ranks);
  }
  for (const auto& [key, us] : exact_us_)
    ops_[{std::get<0>(key), std::get<1>(key)}].points.push_back(
        {double(std::get<6>(key)), double(std::get<7>(key)), us});
  for (auto& [key, op] : ops_) fit(op);
}

void WorkTimes::fit(Op& op) {
  std::vector<std::array<double, 3>> rows;
  for (const Point& p : op.points) rows.push_back({p.flop, p.bytes, p.us});
  op.law = fit_law(rows);
  for (const Point& p : op.points) {
    const double law_us = op.law[0] + op.law[1] * p.flop + op.law[2] * p.bytes;
    op.errors.push_back({law_us, p.us / law_us});
  }
  std::sort(op.errors.begin(), op.errors.end());
}

double WorkTimes::rate(std::initializer_list<const char*> keys) const {
  for (const char* key : keys)
    if (const machine::Quantity* quantity = profile_.find(key); quantity && quantity->value > 0) {
      used_.insert(key);
      return quantity->value;
    }
  return profile_.need(*keys.begin()).value;
}

double WorkTimes::roofline_us(const KernelWork& work) const {
  double us = 0;
  if (work.flop > 0 && is_product(work)) {
    const bool bf16 = work.dtype == DType::kBF16 || work.dtype == DType::kF16;
    us = 1e-6 * double(work.flop) /
         (bf16 ? rate({"compute.achievable_bf16", "compute.sustained_bf16", "device.peak_bf16"})
               : rate({"compute.achievable_fp32", "compute.sustained_fp32", "device.peak_fp32"}));
  }
  if (work.bytes == 0) return us;
  return std::max(
      us, 1e-3 * double(work.bytes) / rate({"memory.triad", "memory.copy", "device.peak_memory"}));
}

WorkTime WorkTimes::of(const KernelWork& work) const {
  const TraceDims& d = work.dims;
  const auto exact = exact_us_.find(
      {work.op, work.dtype, d.groups, d.rows, d.cols, d.depth, work.flop, work.bytes});
  if (exact != exact_us_.end()) return {exact->second * 1e-6, TimeSource::kExact};
  const auto found = ops_.find({work.op, work.dtype});
  if (found == ops_.end()) return {roofline_us(work) * 1e-6, TimeSource::kLaw};
  const Op& op = found->second;
  if (op.points.size() == 1) {
    const KernelWork known{.op = work.op,
                           .dtype = work.dtype,
                           .flop = int64_t(op.points[0].flop),
                           .bytes = int64_t(op.points[0].bytes)};
    const double law_us = roofline_us(known);
    const double scale = law_us > 0 ? op.points[0].us / law_us : 1;
    return {roofline_us(work) * scale * 1e-6, TimeSource::kLaw};
  }
  const double law_us = op.law[0] + op.law[1] * double(work.flop) + op.law[2] * double(work.bytes);
  const auto above = std::lower_bound(op.errors.begin(), op.errors.end(), std::pair{law_us, 0.0});
  if (above == op.errors.begin() || above == op.errors.end())
    return {law_us * 1e-6, TimeSource::kLaw};
  const auto& [low_us, low_error] = *(above - 1);
  const auto& [high_us, high_error] = *above;
  const double share = high_us > low_us ? (law_us - low_us) / (high_us - low_us) : 0;
  return {law_us * (low_error + share * (high_error - low_error)) * 1e-6, TimeSource::kNeighbour};
}

}  // namespace ashlar::sim
