// Times the layers of a step other than products: causal attention over the length of a document
// and the size of a head, recurrences of linear attention, norms, and the updates of AdamW and
// Muon.  Ranks compute at once.
//
// The floor of a row is max(flop / peak of the registers, bytes / rate of memory for calls of so
// many bytes), both measured first, on all ranks at once (bench/floors.h has the rules of memory).
// Flop and bytes are those that the kernels report to a trace.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/bench/floors.h"
#include "ashlar/bench/linear_attention.h"
#include "ashlar/bench/machine/rate_table.h"
#include "ashlar/bench/product_case.h"
#include "ashlar/core/json.h"
#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/newton_schulz.h"
#include "ashlar/kernels/norm.h"
#include "ashlar/kernels/peak.h"
#include "ashlar/kernels/update.h"

namespace ashlar::bench {
namespace {

// The rates that no call can beat, of a rank while all compute.
class LayerFloors {
 public:
  explicit LayerFloors(const Rig& rig) {
    kernels::Context context;
    context.threads = &rig.threads;
    rig.ranks.barrier("floors").wait();
    floors_.peak_flops = kernels::measure_peak_flops(context, rig.products());
    floors_.memory = measure_memory(rig.threads, int64_t{1} << (rig.quick ? 26 : 28));
    floors_.peak_flops = repeats_of(of_ranks(rig.ranks, floors_.peak_flops)).median;
    for (MemoryRates::Rate& rate : floors_.memory.list)
      rate.bytes_per_s = repeats_of(of_ranks(rig.ranks, rate.bytes_per_s)).median;
  }
  double of_us(double flop, double bytes) const {
    return 1e6 * floors_.of(ProductClass::kNone, flop, bytes);
  }
  std::string text() const {
    return fmt::format(
        "floors: peak {:.0f} GFLOP/s, memory {:.1f} GB/s outside of caches, of a "
        "rank\n",
        1e-9 * floors_.peak_flops, 1e-9 * floors_.memory.outside_caches());
  }

 private:
  Floors floors_;
};

// The flop and bytes of the calls that a body makes once.
struct LayerWork {
  double flop = 0, bytes = 0;
};
LayerWork work_of(ProductCase& c, function_ref<void()> body) {
  Trace trace;
  trace.start();
  c.record(&trace);
  body();
  c.record(nullptr);
  LayerWork work;
  for (const TraceEvent& event : trace.events()) {
    work.flop += double(event.flop);
    work.bytes += double(event.bytes);
  }
  return work;
}

// A table of one unit; its rows are measured unless the session wants others only.
class LayerTable {
 public:
  enum class Kind { kCompute, kMemory };
  LayerTable(const Rig& rig, Findings& findings, const LayerFloors& floors, Kind kind,
             const std::string& at_unit)
      : floors_(floors),
        kind_(kind),
        table_(rig, findings, at_unit, kind == Kind::kCompute ? "TFLOP/s" : "GB/s",
               kind == Kind::kCompute ? 1e12 : 1e9, kSubjectWidth, true) {}

  bool wants(const std::string& subject) const { return table_.wants(subject); }
  // Microseconds of a call; nothing for a row that is not wanted, or once time is up.
  std::optional<double> row(const std::string& subject, double at, const LayerWork& work,
                            function_ref<void()> body) {
    const double counted = kind_ == Kind::kCompute ? work.flop : work.bytes;
    const double units = kind_ == Kind::kCompute ? 1e12 : 1e9;
    if (!wants(subject) ||
        !table_.row(subject, at, counted, body, floors_.of_us(work.flop, work.bytes)))
      return {};
    return counted / (table_.last().median * units) * 1e6;
  }
  std::optional<double> row(const std::string& subject, double at, ProductCase& c,
                            function_ref<void()> body) {
    if (!wants(subject)) return {};
    return row(subject, at, work_of(c, body), body);
  }

 private:
  static constexpr int kSubjectWidth = 34;
  const LayerFloors& floors_;
  const Kind kind_;
  RateTable table_;
};

// One document of that length, 4 heads of queries and 2 of keys.
class AttentionCase {
 public:
  AttentionCase(const Rig& rig, int64_t length, int64_t D)
      : case_(rig.threads),
        sequence_(kernels::Sequence::rows(1, length)),
        x_{.shape = {.N = kQueries, .K = kKeys, .D = D, .V = D, .scale = 1 / std::sqrt(double(D))},
           .q = case_.random(rig.products(), {length, kQueries * D}),
           .k = case_.random(rig.products(), {length, kKeys * D}),
           .v = case_.random(rig.products(), {length, kKeys * D}),
           .out = case_.zeros(rig.products(), {length, kQueries * D}),
           .lse_TN = case_.zeros(DType::kF32, {length, kQueries})},
        g_{.dout = case_.random(rig.products(), {length, kQueries * D}),
           .dq = case_.zeros(DType::kF32, {length, kQueries * D}),
           .dk = case_.zeros(DType::kF32, {length, kKeys * D}),
           .dv = case_.zeros(DType::kF32, {length, kKeys * D})} {
    forward();  // fills what backward reads
  }
  void forward() { attention_forward(case_.context(), sequence_, sequence_.segments(), x_); }
  void backward() { attention_backward(case_.context(), sequence_, sequence_.segments(), x_, g_); }
  ProductCase& tensors() { return case_; }

 private:
  static constexpr int64_t kQueries = 4, kKeys = 2;
  ProductCase case_;
  kernels::Sequence sequence_;
  kernels::Attention x_;
  kernels::AttentionGradients g_;
};

using LengthTimes = std::vector<std::pair<double, double>>;  // tokens, us

// The length at which time begins to grow like its square: compute, no longer memory, limits.
void add_crossover(const Rig& rig, const LengthTimes& times, const std::string& what,
                   Findings& findings) {
  constexpr double kExponent = 1.5;
  if (times.size() < 2) return;
  std::optional<double> crossover;
  Ordered exponents = Ordered::array();
  std::string text;
  for (size_t i = 1; i < times.size(); ++i) {
    const double exponent = std::log(times[i].second / times[i - 1].second) /
                            std::log(times[i].first / times[i - 1].first);
    exponents.push_back({times[i].first, exponent});
    text += fmt::format(" {:.0f}: {:.2f}", times[i].first, exponent);
    if (exponent > kExponent && !crossover) crossover = times[i].first;
  }
  findings.text +=
      fmt::format("{}, exponent of time at a length:{}; {}\n", what, text,
                  crossover ? fmt::format("above {} from {:.0f} tokens on", kExponent, *crossover)
                            : fmt::format("never above {}", kExponent));
  Ordered json{{"experiment_name", fmt::format("crossover of {}", what)}, {"unit", "tokens"}};
  json["value"] = crossover ? Ordered(*crossover) : Ordered(nullptr);
  json["exponents"] = exponents;
  json["row"] = rig.row();
  json["wrong"] = 0;
  findings.rows.push_back(one_line(json));
}

void measure_attention_lengths(const Rig& rig, const LayerFloors& floors, Findings& findings) {
  std::vector<int64_t> lengths{512, 2048};
  if (!rig.quick) lengths = {128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  std::vector<std::pair<std::string, LengthTimes>> curves;
  {
    LayerTable table(rig, findings, floors, LayerTable::Kind::kCompute, "tokens");
    for (const int64_t D : rig.quick ? std::vector<int64_t>{128} : std::vector<int64_t>{64, 128}) {
      const std::string forward = fmt::format("attention forward D {}", D),
                        backward = fmt::format("attention backward D {}", D);
      if (!table.wants(forward) && !table.wants(backward)) continue;
      LengthTimes forwards, both;
      for (const int64_t length : lengths) {
        AttentionCase attention(rig, length, D);
        const auto at = double(length);
        const auto ahead =
            table.row(forward, at, attention.tensors(), [&] { attention.forward(); });
        const auto back =
            table.row(backward, at, attention.tensors(), [&] { attention.backward(); });
        if (ahead) forwards.emplace_back(at, *ahead);
        if (ahead && back) both.emplace_back(at, *ahead + *back);
      }
      curves.emplace_back(forward, std::move(forwards));
      curves.emplace_back(fmt::format("attention forward and backward D {}", D), std::move(both));
    }
  }
  for (const auto& [what, times] : curves) add_crossover(rig, times, what, findings);
}

void measure_recurrence_kinds(const Rig& rig, const LayerFloors& floors, Findings& findings) {
  LayerTable table(rig, findings, floors, LayerTable::Kind::kCompute, "tokens");
  if (!table.wants("recurrence")) return;
  const int64_t tokens = rig.quick ? 512 : 2048;
  each_recurrence(rig.threads, rig.products(), tokens,
                  [&](const RecurrenceRow& row, double flop, function_ref<void()> body) {
                    table.row(fmt::format("recurrence {} {}", row.name, row.op), double(tokens),
                              {flop, row.bytes}, body);
                  });
}

// Norms alone, and fused with the sum of a branch and the residual.
void measure_norms(const Rig& rig, const LayerFloors& floors, Findings& findings) {
  LayerTable table(rig, findings, floors, LayerTable::Kind::kMemory, "elements");
  if (!table.wants("norm forward") && !table.wants("norm backward") &&
      !table.wants("add and norm forward") && !table.wants("add and norm backward"))
    return;
  constexpr int64_t H = 1024;
  for (const int64_t T :
       rig.quick ? std::vector<int64_t>{1024} : std::vector<int64_t>{256, 1024, 4096, 16384}) {
    ProductCase c(rig.threads);
    const Tensor h = c.random(DType::kF32, {T, H}), w = c.random(DType::kF32, {H}),
                 y = c.zeros(rig.products(), {T, H}), rstd = c.zeros(DType::kF32, {T}),
                 dy = c.random(rig.products(), {T, H}), dh = c.zeros(DType::kF32, {T, H}),
                 dw = c.zeros(DType::kF32, {H}), o = c.random(DType::kF32, {T, H}),
                 sum = c.zeros(DType::kF32, {T, H}), d_o = c.zeros(rig.products(), {T, H});
    const auto at = double(T * H);
    table.row("norm forward", at, c, [&] { rms_norm_forward(c.context(), 1e-5, h, w, y, rstd); });
    const kernels::RmsNormBackward backward{
        .dy_TH = dy, .h_TH = h, .w_H = w, .rstd_T = rstd, .dh_TH = dh, .dw_H = dw};
    table.row("norm backward", at, c, [&] { rms_norm_backward(c.context(), backward); });
    const kernels::MergeNormForward merge{
        .eps = 1e-5, .o_TH = o, .r_TH = h, .w_H = w, .h_TH = sum, .y_TH = y, .rstd_T = rstd};
    table.row("add and norm forward", at, c, [&] { merge_norm_forward(c.context(), merge); });
    const kernels::MergeNormBackward gradients{.dy_TH = dy,
                                               .dh_in_TH = h,
                                               .h_TH = sum,
                                               .rstd_T = rstd,
                                               .w_H = w,
                                               .d_o_TH = d_o,
                                               .dr_TH = dh,
                                               .dw_H = dw};
    table.row("add and norm backward", at, c, [&] { merge_norm_backward(c.context(), gradients); });
  }
}

// The matrices whose updates are measured.
std::vector<std::pair<int64_t, int64_t>> matrices_of(const Rig& rig) {
  if (rig.quick) return {{512, 256}};
  return {{1024, 2048}, {2048, 2048}, {4096, 2048}};
}

void measure_updates(const Rig& rig, const LayerFloors& floors, Findings& findings) {
  LayerTable table(rig, findings, floors, LayerTable::Kind::kMemory, "elements");
  for (const auto& [M, N] : matrices_of(rig)) {
    if (!table.wants("adamw") && !table.wants("muon momentum") && !table.wants("muon apply"))
      return;
    ProductCase c(rig.threads);
    const Tensor g = c.random(DType::kF32, {M, N}), w = c.random(DType::kF32, {M, N}),
                 m = c.zeros(DType::kF32, {M, N}), v = c.zeros(DType::kF32, {M, N});
    const auto at = double(M * N);
    const kernels::AdamW adam{
        .step = {1e-6, 0.9, 0.95, 1e-8, 0.1, 10}, .g = g, .w = w, .m = m, .v = v};
    table.row("adamw", at, c, [&] { kernels::adamw(c.context(), adam); });
    const kernels::MuonMomentum momentum{.mu = 0.95, .nesterov = true, .g = g, .m = m, .x = v};
    table.row("muon momentum", at, c, [&] { kernels::muon_momentum(c.context(), momentum); });
    const kernels::MuonApply apply{.lr = 1e-6, .decay = 0.1, .lambda = 1, .x = v, .w = w};
    table.row("muon apply", at, c, [&] { kernels::muon_apply(c.context(), apply); });
  }
}

void measure_newton_schulz_sizes(const Rig& rig, const LayerFloors& floors, Findings& findings) {
  constexpr int kSteps = 5;
  LayerTable table(rig, findings, floors, LayerTable::Kind::kCompute, "elements");
  for (const auto& [M, N] : matrices_of(rig)) {
    if (!table.wants("Newton-Schulz")) return;
    ProductCase c(rig.threads);
    const DType compute = rig.products();
    const Tensor x = c.random(DType::kF32, {1, M, N});
    table.row("Newton-Schulz", double(M * N), c,
              [&] { kernels::orthogonalize(c.context(), compute, x, kSteps); });
  }
}

}  // namespace

Findings measure_layers(const Rig& rig) {
  Findings findings;
  const LayerFloors floors(rig);
  findings.text = floors.text();
  measure_attention_lengths(rig, floors, findings);
  measure_recurrence_kinds(rig, floors, findings);
  measure_norms(rig, floors, findings);
  measure_updates(rig, floors, findings);
  measure_newton_schulz_sizes(rig, floors, findings);
  ASHLAR_REQUIRE(!findings.rows.empty() || findings.num_left_out > 0, kConfig,
                 "--only {} names no row; expected a part of a subject, as \"recurrence\"",
                 rig.only);
  return findings;
}

}  // namespace ashlar::bench
