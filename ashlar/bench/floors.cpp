#include "ashlar/bench/floors.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ashlar/kernels/peak.h"

namespace ashlar::bench {
namespace {

// A head's products and those of a state, so many at most: a class has one rate, whatever their
// number and however long a document is.
constexpr int64_t kMostGroups = 32, kMostLength = 512, kTile = 64;

}  // namespace

std::string_view name_of(ProductClass kind) {
  constexpr std::string_view kNames[] = {"dense", "narrow", "grouped",       "block-diagonal",
                                         "heads", "states", "Newton-Schulz", "none"};
  return kNames[size_t(kind)];
}

ProductClass class_of(std::string_view op, const TraceDims& dims) {
  if (op.starts_with("linear_forward") || op.starts_with("linear_backward"))
    return std::min(dims.cols, dims.depth) >= 128 ? ProductClass::kDense : ProductClass::kNarrow;
  if (op.starts_with("grouped_linear_")) return ProductClass::kGrouped;
  if (op.starts_with("blockdiag_linear_")) return ProductClass::kBlockDiagonal;
  if (op.starts_with("attention_forward") || op.starts_with("attention_backward"))
    return ProductClass::kHeads;
  if (op.starts_with("recurrence_") || op.starts_with("unmasked_")) return ProductClass::kStates;
  if (op.starts_with("orthogonalize")) return ProductClass::kNewtonSchulz;
  return ProductClass::kNone;
}

std::vector<ProductShape> products_of(ProductClass kind, const TraceDims& d) {
  if (d == TraceDims{}) return {};
  const int64_t G = d.groups, T = d.rows, N = d.cols, K = d.depth;
  switch (kind) {
    case ProductClass::kDense:
    case ProductClass::kNarrow:
    case ProductClass::kGrouped:
      return {{G, T, N, K}};
    case ProductClass::kBlockDiagonal:
      return {{G, T, N, K, true}};
    case ProductClass::kHeads: {  // cols: documents
      const int64_t length = std::clamp<int64_t>(T / std::max<int64_t>(N, 1), 1, kMostLength);
      const int64_t groups = std::min(G * std::max<int64_t>(N, 1), kMostGroups);
      return {{groups, groups * length, length, K}, {groups, groups * length, K, length}};
    }
    case ProductClass::kStates: {
      const int64_t groups = std::clamp<int64_t>(G * (T / kTile), 1, kMostGroups);
      return {{groups, groups * kTile, N, K}};
    }
    case ProductClass::kNewtonSchulz: {
      const int64_t m = std::min(T, N), n = std::max(T, N);
      return {{G, G * m, m, n}, {G, G * m, n, m}};
    }
    case ProductClass::kNone:
      break;
  }
  return {};
}

double Floors::flops_of(ProductClass kind) const {
  const double measured = kind == ProductClass::kNone ? 0.0 : flops[size_t(kind)];
  return measured > 0 ? measured : peak_flops;
}

double MemoryRates::at(double bytes) const {
  double rate = list.front().bytes_per_s;
  for (const Rate& r : list)
    if (double(r.bytes) <= bytes) rate = r.bytes_per_s;
  return rate;
}

double Floors::outside_caches(ProductClass kind, double flop, double bytes) const {
  return std::max(flop / flops_of(kind), bytes / memory.outside_caches());
}

double Floors::of(ProductClass kind, double flop, double bytes) const {
  return std::max(flop / flops_of(kind), bytes / memory.at(bytes));
}

void Floors::raise(const Floors& other) {
  peak_flops = std::max(peak_flops, other.peak_flops);
  for (size_t i = 0; i < flops.size(); ++i) flops[i] = std::max(flops[i], other.flops[i]);
  for (size_t i = 0; i < std::min(memory.list.size(), other.memory.list.size()); ++i) {
    double& rate = memory.list[i].bytes_per_s;
    rate = std::max(rate, other.memory.list[i].bytes_per_s);
  }
}

void Floors::raise(const Trace& trace) {
  for (const TraceEvent& event : trace.events()) {
    if (event.kind != TraceEvent::Kind::kKernel || event.end_s <= event.start_s) continue;
    const ProductClass kind = class_of(trace.text(event.name), trace.dims(event));
    if (!is_product(kind)) continue;
    double& best = flops[size_t(kind)];
    best = std::max(best, double(event.flop) / (event.end_s - event.start_s));
  }
}

std::string Floors::text() const {
  std::string text = fmt::format("peak {:.0f} GFLOP/s; best products", peak_flops * 1e-9);
  for (size_t i = 0; i < flops.size(); ++i)
    if (flops[i] > 0) text += fmt::format(" {} {:.0f}", name_of(ProductClass(i)), flops[i] * 1e-9);
  text += "; memory, GB/s by MiB of a call:";
  for (const MemoryRates::Rate& at : memory.list)
    text +=
        fmt::format(" {:.4g}: {:.1f}", double(at.bytes) / double(1 << 20), at.bytes_per_s * 1e-9);
  return text;
}

ClassShapes shapes_of(const Trace& trace) {
  constexpr size_t kMost = 4;
  std::array<std::map<ProductShape, double>, kNumProductClasses> found;  // flop of all calls
  for (const TraceEvent& event : trace.events()) {
    if (event.kind != TraceEvent::Kind::kKernel) continue;
    const ProductClass kind = class_of(trace.text(event.name), trace.dims(event));
    for (const ProductShape& shape : products_of(kind, trace.dims(event)))
      found[size_t(kind)][shape] += double(event.flop);
  }
  ClassShapes shapes;
  for (size_t i = 0; i < found.size(); ++i) {
    std::vector<std::pair<ProductShape, double>> list(found[i].begin(), found[i].end());
    std::stable_sort(list.begin(), list.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    if (list.size() > kMost) list.resize(kMost);
    for (const auto& [shape, flop] : list) shapes[i].push_back(shape);
  }
  return shapes;
}

Floors measure_floors(Threads& threads, DType compute, const ClassShapes& shapes) {
  kernels::Context context;
  context.threads = &threads;
  Floors floors;
  floors.peak_flops = kernels::measure_peak_flops(context, compute);
  floors.memory = measure_memory(threads);
  if (compute == DType::kF64) return floors;  // the reference's products would take minutes
  for (size_t i = 0; i < shapes.size(); ++i)
    for (const ProductShape& shape : shapes[i])
      floors.flops[i] = std::max(floors.flops[i], measure_product(threads, compute, shape));
  return floors;
}

}  // namespace ashlar::bench
