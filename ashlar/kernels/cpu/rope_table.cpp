// How it works.  A table has one list of frequencies, or for type dynamic one for each length of a
// sequence: the rows of the first `length` tokens share a list, and every later row has its own.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

using Type = RopeScaling::Type;

// Llama 3's.
double by_wavelength(double frequency, const RopeScaling& s) {
  const double turns = double(s.original_positions) * frequency / (2 * std::numbers::pi);
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

// The pairs of channels between which YaRN passes from one to the other.
struct YarnRange {
  double low, high;
  YarnRange(const Rope& rope, double rho) {
    const RopeScaling& s = rope.scaling;
    const auto pair_of = [&](double turns) {
      return rho * std::log(double(s.original_positions) / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(rope.theta));
    };
    low = pair_of(s.beta_fast), high = pair_of(s.beta_slow);
    if (s.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, rho - 1);
    if (low == high) high += 0.001;  // no jump
  }
  // How far pair i is on its way to `high`.
  double share(int64_t i) const { return std::clamp((double(i) - low) / (high - low), 0.0, 1.0); }
};

std::vector<double> frequencies(const Rope& rope, int64_t rotary_dim, int64_t length) {
  const RopeScaling& s = rope.scaling;
  const double rho = double(rotary_dim);
  double theta = rope.theta;
  if (s.type == Type::kDynamic && length > s.original_positions)
    theta *= std::pow(s.factor * double(length) / double(s.original_positions) - (s.factor - 1),
                      rho / (rho - 2));
  std::vector<double> list;
  for (int64_t i = 0; i < rotary_dim / 2; ++i)
    list.push_back(std::pow(theta, -2.0 * double(i) / rho));
  for (size_t i = 0; i < list.size(); ++i) {
    double& f = list[i];
    if (s.type == Type::kLinear) f /= s.factor;
    if (s.type == Type::kLlama3) f = by_wavelength(f, s);
    if (s.type != Type::kYarn) continue;
    const double m = YarnRange(rope, rho).share(int64_t(i));
    f = (1 - m) * f + m * f / s.factor;
  }
  return list;
}

double amplitude(const RopeScaling& s) {
  if (s.type != Type::kYarn) return 1.0;
  return s.attention_factor > 0 ? s.attention_factor : 1.0 + 0.1 * std::log(s.factor);
}

}  // namespace

void rope_table(const Context& ctx, const Rope& rope, const Tensor& table_PR) {
  const int64_t rows = table_PR.shape[0], rho = table_PR.shape[1], half = rho / 2;
  const int64_t at_once = rope.length > 0 ? rope.length : rows;
  const bool grows = rope.scaling.type == Type::kDynamic;
  const auto length_of = [&](int64_t row) { return grows ? std::max(at_once, row + 1) : at_once; };
  const double scale = amplitude(rope.scaling);
  with_real(table_PR.dtype, [&]<typename Real>(Real) {
    const Cells<Real> table(table_PR);
    for_tokens(ctx, rows, [&](int64_t begin, int64_t end) {
      int64_t length = length_of(begin);
      std::vector<double> turns = frequencies(rope, rho, length);
      for (int64_t p = begin; p < end; ++p) {
        if (length_of(p) != length) {
          length = length_of(p);
          turns = frequencies(rope, rho, length);
        }
        for (int64_t i = 0; i < half; ++i) {
          const double angle = double(p) * turns[size_t(i)];
          table.set(p * rho + i, Real(scale * std::cos(angle)));
          table.set(p * rho + half + i, Real(scale * std::sin(angle)));
        }
      }
    });
  });
}

}  // namespace ashlar::kernels::cpu
