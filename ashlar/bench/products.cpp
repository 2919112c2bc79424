#include "ashlar/bench/products.h"

#include <list>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/rng.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/newton_schulz.h"

namespace ashlar::bench {
namespace {

using kernels::Matrix;

struct Dims {
  std::string_view name;
  int64_t G, T, N, K;
};
// The products of zaya1-nano (2,048 tokens) and zaya1-small (1,024); experts with even loads.
constexpr Dims kProducts[] = {
    {"nano qkv", 1, 2048, 512, 256},      {"nano o", 1, 2048, 256, 256},
    {"nano gate_up", 8, 2048, 1024, 256}, {"nano down", 8, 2048, 256, 512},
    {"nano head", 1, 512, 8192, 256},     {"small gate_up", 16, 1024, 1536, 768},
    {"small down", 16, 1024, 768, 768},   {"small head", 1, 512, 32768, 768}};
constexpr Dims kStacks[] = {{"nano gate_up", 8, 0, 1024, 256},
                            {"nano down", 8, 0, 256, 512},
                            {"nano qkv", 1, 0, 512, 256},
                            {"small gate_up", 2, 0, 1536, 768}};

// One shape's tensors, and the clock.
class ProductCase {
 public:
  ProductCase(Threads& threads, DType compute) : compute_(compute) {
    context_.threads = &threads;
    context_.workspace = &workspace_;
  }
  const kernels::Context& context() const { return context_; }

  Tensor random(DType dtype, const Shape& shape) {
    const Tensor from = zeros(DType::kF32, shape),
                 to = dtype == DType::kF32 ? from : zeros(dtype, shape);
    const Rng rng(1, "products");
    for (int64_t i = 0; i < from.numel(); ++i)
      from.as<float>()[i] = float(rng.uniform(uint64_t(i)) - 0.5);
    if (dtype != DType::kF32) kernels::copy(context_, from, to);
    return to;
  }
  Tensor zeros(DType dtype, const Shape& shape) {
    return owned_.emplace_back(make_tensor(allocator_, dtype, shape, Tag::kInput)).tensor;
  }
  kernels::Operand operand(int64_t G, int64_t N, int64_t K) {
    kernels::Operand w{random(DType::kF32, {G, N, K}), {}, {}};
    const auto layout = kernels::operand_layout(context_, G, N, K, compute_, true);
    if (layout.forward_numel) w.forward = zeros(layout.dtype, {layout.forward_numel});
    if (layout.backward_numel) w.backward = zeros(layout.dtype, {layout.backward_numel});
    kernels::pack(context_, w);
    return w;
  }

  ProductRow time(const Dims& d, std::string op, double flop, function_ref<void()> body) const {
    constexpr double kSeconds = 0.1;
    return {
        std::string(d.name), std::move(op), d.G, d.T, d.N, d.K, time_kernel(flop, kSeconds, body)};
  }

 private:
  DType compute_;
  Allocator allocator_{Device::kCpu};
  Arena workspace_{allocator_, int64_t{256} << 20, Tag::kWorkspace};
  std::list<OwnedTensor> owned_;
  kernels::Context context_;
};

void measure_product(Threads& threads, DType compute, const Dims& d,
                     std::vector<ProductRow>& rows) {
  ProductCase c(threads, compute);
  const kernels::Operand w = c.operand(d.G, d.N, d.K);
  const Matrix x = Matrix::of(c.random(compute, {d.T, d.K})),
               dy = Matrix::of(c.random(compute, {d.T, d.N}));
  const Matrix y = Matrix::of(c.zeros(DType::kF32, {d.T, d.N})),
               dx = Matrix::of(c.zeros(DType::kF32, {d.T, d.K}));
  const Tensor dw = c.zeros(DType::kF32, {d.G, d.N, d.K});
  const Tensor groups = c.zeros(DType::kI32, {d.G + 1});
  for (int64_t g = 0; g <= d.G; ++g) groups.as<int32_t>()[g] = int32_t(d.T * g / d.G);
  const double flop = 2.0 * double(d.T) * double(d.N) * double(d.K);
  rows.push_back(c.time(d, "forward", flop,
                        [&] { grouped_linear_forward(c.context(), compute, x, w, groups, y); }));
  rows.push_back(c.time(d, "backward_input", flop, [&] {
    grouped_linear_backward_input(c.context(), compute, dy, w, groups, dx);
  }));
  rows.push_back(c.time(d, "backward_weight", flop, [&] {
    grouped_linear_backward_weight(c.context(), compute, dy, x, groups, dw);
  }));
}

void measure_newton_schulz(Threads& threads, DType compute, const Dims& d,
                           std::vector<ProductRow>& rows) {
  ProductCase c(threads, compute);
  const Tensor x = c.random(DType::kF32, {d.G, d.N, d.K});
  constexpr int kSteps = 5;
  const double flop =
      double(d.G * kernels::newton_schulz_flop(c.context(), compute, d.N, d.K, kSteps));
  rows.push_back(
      c.time(d, "newton_schulz", flop, [&] { orthogonalize(c.context(), compute, x, kSteps); }));
}

}  // namespace

ProductReport measure_products(int num_threads, DType compute) {
  ProductReport report;
  report.machine = measure_beside_peak(num_threads, compute, [&](Threads& threads) {
    for (const Dims& d : kProducts) measure_product(threads, compute, d, report.rows);
    for (const Dims& d : kStacks) measure_newton_schulz(threads, compute, d, report.rows);
  });
  return report;
}

std::string to_text(const ProductReport& report) {
  std::string text = fmt::format(
      "{}\n{:<14} {:<16} {:>3} {:>5} {:>6} {:>5} "
      "{:>9} {:>9} {:>5} {:>8} {:>6}\n",
      report.machine.text(), "shape", "op", "G", "T", "N", "K", "median_us", "min_us", "n",
      "GFLOP/s", "share");
  for (const ProductRow& r : report.rows)
    text += fmt::format(
        "{:<14} {:<16} {:>3} {:>5} {:>6} {:>5} {:>9.1f} {:>9.1f} {:>5} {:>8.1f} {:>5.0f}%\n",
        r.name, r.op, r.G, r.T, r.N, r.K, r.time.median_s * 1e6, r.time.min_s * 1e6, r.time.repeats,
        r.time.flops() * 1e-9, 100 * r.time.flops() / report.machine.peak_flops);
  return text;
}

std::string to_json_line(const ProductReport& report) {
  Ordered rows = Ordered::array();
  for (const ProductRow& r : report.rows)
    rows.push_back({{"shape", r.name},
                    {"op", r.op},
                    {"groups", r.G},
                    {"tokens", r.T},
                    {"n", r.N},
                    {"k", r.K},
                    {"flop", r.time.flop},
                    {"median_s", r.time.median_s},
                    {"min_s", r.time.min_s},
                    {"repeats", r.time.repeats}});
  return Ordered{{"bench", "products"},
                 {"isa", report.machine.isa},
                 {"compute", report.machine.compute},
                 {"threads", report.machine.threads},
                 {"peak_flops", report.machine.peak_flops},
                 {"products", rows}}
      .dump();
}

}  // namespace ashlar::bench
