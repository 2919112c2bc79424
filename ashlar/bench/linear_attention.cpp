#include "ashlar/bench/linear_attention.h"

#include <algorithm>
#include <list>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/rng.h"
#include "ashlar/kernels/copy.h"

namespace ashlar::bench {
namespace {

using kernels::Decay;
using kernels::Matrix;

struct Kind {
  std::string_view name;
  kernels::RecurrenceShape shape;
  Decay decay;
  bool beta;
  double strongest = -0.1;  // log a is uniform between it and 0
};
constexpr double kStrong = -20;
constexpr Kind kKinds[] = {
    {"plain", {16, 16, 64, 64}, Decay::kNone, false},
    {"head decay", {16, 16, 64, 64}, Decay::kHead, false},
    {"token decay", {16, 16, 64, 64}, Decay::kToken, false},
    {"strong decay", {16, 16, 64, 64}, Decay::kToken, false, kStrong},
    {"channel gates", {16, 16, 64, 64}, Decay::kChannel, false},
    {"delta", {8, 16, 64, 64}, Decay::kToken, true},
    {"delta strong", {8, 16, 64, 64}, Decay::kToken, true, kStrong},
    {"delta 128", {8, 16, 128, 128}, Decay::kToken, true},
};

// The tensors of one recurrence, and the clock.
class LinearCase {
 public:
  LinearCase(Threads& threads, DType compute, const Kind& kind, int64_t num_tokens)
      : compute_(compute), kind_(kind), T_(num_tokens), chunk_{0, num_tokens} {
    context_.threads = &threads;
    context_.workspace = &workspace_;
    context_.trace = &trace_;
    trace_.start();
    const auto& [K, H, dk, dv, scale] = kind.shape;
    for (Tensor* x : {&q_, &k_}) *x = random(compute, {T_, K * dk}, 0);
    v_ = random(compute, {T_, H * dv}, 0);
    dout_ = random(DType::kF32, {T_, H * dv}, 0);
    if (kind.decay == Decay::kHead) decay_ = random(DType::kF32, {H}, -1);
    if (kind.decay == Decay::kToken) decay_ = random(DType::kF32, {T_, H}, -1);
    if (kind.decay == Decay::kChannel) decay_ = random(DType::kF32, {T_, H * dk}, -1);
    if (kind.beta) beta_ = random(DType::kF32, {T_, H}, 1);
    out_ = zeros(DType::kF32, {T_, H * dv});
    kept_ = zeros(DType::kF32, {kernels::Recurrence::num_kept(T_), H, dk, dv});
    for (Tensor* x : {&dq_, &dk_}) *x = zeros(DType::kF32, {T_, K * dk});
    dv_ = zeros(DType::kF32, {T_, H * dv});
    if (kind.decay == Decay::kToken || kind.decay == Decay::kChannel)
      ddecay_ = zeros(DType::kF32, decay_.shape);
    if (kind.beta) dbeta_ = zeros(DType::kF32, beta_.shape);
  }

  using Visit = function_ref<void(const RecurrenceRow& row, double flop, function_ref<void()>)>;
  void show(Visit visit) {
    const kernels::Recurrence x{.shape = kind_.shape,
                                .sequence = sequence_,
                                .chunks = {&chunk_, 1},
                                .decay = kind_.decay,
                                .q = Matrix::of(q_),
                                .k = Matrix::of(k_),
                                .v = Matrix::of(v_),
                                .log_decay = decay_,
                                .beta_TH = beta_,
                                .kept = kept_};
    show("forward", visit, [&] { recurrence_forward(context_, compute_, x, Matrix::of(out_)); });
    const kernels::RecurrenceGradients g{.dout = Matrix::of(dout_),
                                         .dq = Matrix::of(dq_),
                                         .dk = Matrix::of(dk_),
                                         .dv = Matrix::of(dv_),
                                         .dlog_decay = ddecay_,
                                         .dbeta_TH = dbeta_};
    show("backward", visit, [&] { recurrence_backward(context_, compute_, x, g); });
  }

 private:
  Tensor zeros(DType dtype, const Shape& shape) {
    return owned_.emplace_back(make_tensor(allocator_, dtype, shape, Tag::kInput)).tensor;
  }
  // Uniform numbers around 0, or of one sign; keys have a length of at most 1.
  Tensor random(DType dtype, const Shape& shape, int sign) {
    const Tensor from = zeros(DType::kF32, shape), to = zeros(dtype, shape);
    const Rng rng(uint64_t(owned_.size()), "linear attention");
    const double width = 2 / std::sqrt(double(kind_.shape.dk));
    for (int64_t i = 0; i < from.numel(); ++i) {
      const double u = rng.uniform(uint64_t(i));
      from.as<float>()[i] = float(sign == 0  ? width * (u - 0.5)
                                  : sign < 0 ? kind_.strongest * u
                                             : u);
    }
    kernels::copy(context_, from, to);
    return to;
  }
  void show(std::string op, Visit visit, function_ref<void()> body) {
    const size_t before = trace_.events().size();
    body();
    const TraceEvent call = trace_.events()[before];
    trace_.stop();
    visit({std::string(kind_.name), std::move(op), T_, kind_.shape, double(call.bytes), {}},
          double(call.flop), body);
    trace_.resume();
  }

  DType compute_;
  Kind kind_;
  int64_t T_;
  kernels::StateChunk chunk_;
  kernels::Sequence sequence_ = kernels::Sequence::rows(1, T_);
  Allocator allocator_{Device::kCpu};
  Arena workspace_{allocator_, int64_t{256} << 20, Tag::kWorkspace};
  std::list<OwnedTensor> owned_;
  Trace trace_;
  kernels::Context context_;
  Tensor q_, k_, v_, decay_, beta_, dout_, out_, kept_, dq_, dk_, dv_, ddecay_, dbeta_;
};

}  // namespace

void each_recurrence(Threads& threads, DType compute, int64_t num_tokens, LinearCase::Visit visit) {
  for (const Kind& kind : kKinds) LinearCase(threads, compute, kind, num_tokens).show(visit);
}

RecurrenceReport measure_recurrences(int num_threads, DType compute, int64_t num_tokens) {
  RecurrenceReport report;
  report.machine = measure_beside_peak(num_threads, compute, [&](Threads& threads) {
    constexpr double kSeconds = 0.3;
    each_recurrence(threads, compute, num_tokens,
                    [&](RecurrenceRow row, double flop, function_ref<void()> body) {
                      row.time = time_kernel(flop, kSeconds, body);
                      report.rows.push_back(std::move(row));
                    });
    report.memory = measure_memory(threads);
  });
  return report;
}

double RecurrenceReport::floor_s(const RecurrenceRow& row) const {
  return std::max(row.time.flop / machine.peak_flops, row.bytes / memory.at(row.bytes));
}

std::string to_text(const RecurrenceReport& report) {
  std::string text = fmt::format(
      "{}, memory {:.1f} GB/s\n{:<14} {:<9} {:>6} {:>3} {:>3} {:>4} {:>4} {:>9} {:>9} {:>4} {:>8} "
      "{:>6} {:>9}\n",
      report.machine.text(), report.memory.outside_caches() * 1e-9, "recurrence", "op", "T", "K",
      "H", "dk", "dv", "median_us", "min_us", "n", "GFLOP/s", "share", "floor_us");
  for (const RecurrenceRow& r : report.rows)
    text += fmt::format(
        "{:<14} {:<9} {:>6} {:>3} {:>3} {:>4} {:>4} {:>9.1f} {:>9.1f} {:>4} {:>8.1f} {:>5.0f}% "
        "{:>9.1f}\n",
        r.name, r.op, r.tokens, r.shape.K, r.shape.H, r.shape.dk, r.shape.dv, r.time.median_s * 1e6,
        r.time.min_s * 1e6, r.time.repeats, r.time.flops() * 1e-9,
        100 * r.time.flops() / report.machine.peak_flops, report.floor_s(r) * 1e6);
  return text;
}

std::string to_json_line(const RecurrenceReport& report) {
  Ordered rows = Ordered::array();
  for (const RecurrenceRow& r : report.rows)
    rows.push_back({{"recurrence", r.name},
                    {"op", r.op},
                    {"tokens", r.tokens},
                    {"key_heads", r.shape.K},
                    {"value_heads", r.shape.H},
                    {"dk", r.shape.dk},
                    {"dv", r.shape.dv},
                    {"flop", r.time.flop},
                    {"bytes", r.bytes},
                    {"median_s", r.time.median_s},
                    {"min_s", r.time.min_s},
                    {"repeats", r.time.repeats},
                    {"floor_s", report.floor_s(r)}});
  return Ordered{{"bench", "linear-attention"},
                 {"isa", report.machine.isa},
                 {"compute", report.machine.compute},
                 {"threads", report.machine.threads},
                 {"peak_flops", report.machine.peak_flops},
                 {"memory_bytes_per_s", report.memory.outside_caches()},
                 {"recurrences", rows}}
      .dump();
}

}  // namespace ashlar::bench
