#include "ashlar/bench/one_product.h"

#include <array>

namespace ashlar::bench {
namespace {

using kernels::Matrix;

constexpr std::string_view kDirections[] = {"forward", "backward_input", "backward_weight"};

}  // namespace

int64_t ProductSpec::bytes() const {
  const int64_t weight = size_of(direction == Direction::kBackwardWeight ? DType::kF32 : compute);
  return T * column_groups() * (K * size_of(x) + N * size_of(y)) + G * N * K * weight;
}

int64_t ProductSpec::memory_bytes() const {
  // Random numbers are made in fp32.  A weight has its values and both packed forms.
  return T * column_groups() * (K + N) * 8 + G * N * K * 16;
}

std::string ProductSpec::op() const {
  return fmt::format("{}linear_{}",
                     own_columns ? "blockdiag_"
                     : G > 1     ? "grouped_"
                                 : "",
                     kDirections[size_t(direction)]);
}

DType ProductSpec::result() const {
  return direction == Direction::kForward         ? y
         : direction == Direction::kBackwardInput ? x
                                                  : DType::kF32;
}

std::optional<ProductSpec> product_of(const train::KernelCall& call) {
  std::string_view op = call.op;
  ProductSpec spec;
  spec.own_columns = op.starts_with("blockdiag_");
  if (spec.own_columns || op.starts_with("grouped_")) op.remove_prefix(op.find('_') + 1);
  if (!op.starts_with("linear_")) return std::nullopt;
  op.remove_prefix(op.find('_') + 1);
  const auto* const found = std::find(std::begin(kDirections), std::end(kDirections), op);
  if (found == std::end(kDirections)) return std::nullopt;
  spec.direction = Direction(found - std::begin(kDirections));
  spec.compute = call.dtype;
  spec.G = call.dims.groups;
  spec.T = call.dims.rows;
  spec.N = call.dims.cols;
  spec.K = call.dims.depth;
  const DType c = call.dtype, f = DType::kF32;
  using Types = std::array<std::pair<DType, DType>, 4>;  // x, y
  const Types types = spec.direction == Direction::kForward
                          ? Types{{{c, f}, {c, c}, {f, f}, {f, c}}}
                          : Types{{{c, c}, {f, c}, {c, f}, {f, f}}};
  for (const auto& [x, y] : types) {
    spec.x = x;
    spec.y = y;
    if (spec.bytes() == call.bytes) return spec;
  }
  return std::nullopt;
}

OneProduct::OneProduct(Threads& threads, const ProductSpec& spec)
    : case_(threads),
      spec_(spec),
      x_(spec.direction == Direction::kBackwardInput
             ? case_.zeros(spec.x, {spec.T, spec.column_groups() * spec.K})
             : case_.random(spec.x, {spec.T, spec.column_groups() * spec.K})),
      y_(spec.direction == Direction::kForward
             ? case_.zeros(spec.y, {spec.T, spec.column_groups() * spec.N})
             : case_.random(spec.y, {spec.T, spec.column_groups() * spec.N})),
      groups_(case_.groups(spec.G, spec.T)) {
  const Shape shape =
      spec.G == 1 && !spec.own_columns ? Shape{spec.N, spec.K} : Shape{spec.G, spec.N, spec.K};
  if (spec.direction == Direction::kBackwardWeight)
    w_.w = case_.zeros(DType::kF32, shape);
  else
    w_ = case_.operand(spec.compute, shape);
}

void OneProduct::run(const kernels::Context& ctx) {
  const DType compute = spec_.compute;
  const Matrix x = Matrix::of(x_), y = Matrix::of(y_);
  const bool dense = spec_.G == 1 && !spec_.own_columns, columns = spec_.own_columns;
  switch (spec_.direction) {
    case Direction::kForward:
      return dense     ? linear_forward(ctx, compute, x, w_, y)
             : columns ? blockdiag_linear_forward(ctx, compute, x, w_, y)
                       : grouped_linear_forward(ctx, compute, x, w_, groups_, y);
    case Direction::kBackwardInput:
      return dense     ? linear_backward_input(ctx, compute, y, w_, x)
             : columns ? blockdiag_linear_backward_input(ctx, compute, y, w_, x)
                       : grouped_linear_backward_input(ctx, compute, y, w_, groups_, x);
    case Direction::kBackwardWeight:
      return dense     ? linear_backward_weight(ctx, compute, y, x, w_.w, false)
             : columns ? blockdiag_linear_backward_weight(ctx, compute, y, x, w_.w, false)
                       : grouped_linear_backward_weight(ctx, compute, y, x, groups_, w_.w, false);
  }
}

std::span<const std::byte> OneProduct::result() const {
  const Tensor& to = spec_.direction == Direction::kForward         ? y_
                     : spec_.direction == Direction::kBackwardInput ? x_
                                                                    : w_.w;
  return {to.data, size_t(to.bytes())};
}

}  // namespace ashlar::bench
