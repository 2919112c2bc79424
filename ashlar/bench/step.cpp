#include "ashlar/bench/step.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/bench/random_batch.h"
#include "ashlar/comm/self/self.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/json.h"
#include "ashlar/core/statistics.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/peak.h"
#include "ashlar/nn/precision.h"
#include "ashlar/sizing/model.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"

namespace ashlar::bench {
namespace {

struct Sums {
  int64_t calls = 0;
  double flop = 0, bytes = 0, seconds = 0, floor_s = 0;
};

// Calls of one step by op name.
std::map<std::string, Sums> sum_by_op(const Trace& trace, double end_s, double peak_flops,
                                      double triad) {
  std::vector<const TraceEvent*> calls;
  for (const TraceEvent& event : trace.events())
    if (event.kind == TraceEvent::Kind::kKernel) calls.push_back(&event);
  std::map<std::string, Sums> by_op;
  for (size_t i = 0; i < calls.size(); ++i) {
    const TraceEvent& call = *calls[i];
    const double until = i + 1 < calls.size() ? calls[i + 1]->start_s : end_s;
    Sums& sums = by_op[std::string(trace.text(call.name))];
    ++sums.calls;
    sums.flop += double(call.flop);
    sums.bytes += double(call.bytes);
    sums.seconds += until - call.start_s;
    sums.floor_s += std::max(double(call.flop) / peak_flops, double(call.bytes) / triad);
  }
  return by_op;
}

}  // namespace

StepReport measure_step(const Recipe& recipe, int64_t steps) {
  const DType compute = nn::resolve_precision(recipe.train.precision);
  const train::RunPlan plan = train::plan_run(recipe, compute);
  Threads threads(int(recipe.train.threads));
  Allocator allocator(Device::kCpu);
  comm::SelfWorld world(allocator);
  train::Trainer trainer(recipe, compute, allocator, threads, world.group(), plan.step_memory);
  trainer.initialize();

  StepReport report;
  report.steps = steps;
  report.peak_flops = kernels::measure_peak_flops(trainer.context(), compute);
  report.triad_bytes_per_s = measure_triad(threads.size());
  const RandomBatch batch(trainer);

  constexpr int64_t kWarmUp = 3;
  Trace& trace = world.group().trace();
  trace.start();
  std::vector<double> step_times;
  std::map<std::string, std::vector<Sums>> samples;
  for (int64_t step = 0; step < kWarmUp + steps; ++step) {
    trace.clear();
    const double start = Trace::now_s();
    batch.step(trainer, step);
    const double end = Trace::now_s();
    if (step < kWarmUp) continue;
    step_times.push_back(end - start);
    for (const auto& [op, sums] :
         sum_by_op(trace, end, report.peak_flops, report.triad_bytes_per_s))
      samples[op].push_back(sums);
  }
  for (const auto& [op, sums] : samples) {
    std::vector<double> seconds;
    for (const Sums& s : sums) seconds.push_back(s.seconds);
    report.rows.push_back({op, sums[0].calls, sums[0].flop, sums[0].bytes,
                           summarize(seconds).median, sums[0].floor_s});
  }
  std::sort(report.rows.begin(), report.rows.end(),
            [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; });
  const Summary summary = summarize(step_times);
  report.step_s = summary.median;
  report.min_s = summary.min;
  report.p99_s = summary.p99;
  report.tokens_per_s =
      double(recipe.train.global_batch * recipe.data.sequence_length) / summary.median;
  report.mfu = report.tokens_per_s *
               model_flop(model_of(recipe.model), recipe.data.sequence_length).training /
               report.peak_flops;
  return report;
}

std::string to_text(const StepReport& report) {
  std::string text = fmt::format(
      "peak {:.0f} GFLOP/s, triad {:.1f} GB/s; median of {} steps {:.1f} ms (min {:.1f}, p99 "
      "{:.1f}), {} tokens/s, "
      "MFU {:.1f}% (exact-causal)\n{:<32} {:>6} {:>10} {:>8} {:>9} {:>9} {:>7} {:>7}\n",
      report.peak_flops * 1e-9, report.triad_bytes_per_s * 1e-9, report.steps, report.step_s * 1e3,
      report.min_s * 1e3, report.p99_s * 1e3, format_thousands(int64_t(report.tokens_per_s)),
      100 * report.mfu, "op", "calls", "GFLOP", "GB", "time_ms", "floor_ms", "share", "of step");
  for (const OpRow& r : report.rows)
    text +=
        fmt::format("{:<32} {:>6} {:>10.3f} {:>8.3f} {:>9.3f} {:>9.3f} {:>6.0f}% {:>6.1f}%\n", r.op,
                    r.calls, r.flop * 1e-9, r.bytes * 1e-9, r.seconds * 1e3, r.floor_s * 1e3,
                    100 * r.floor_s / r.seconds, 100 * r.seconds / report.step_s);
  return text;
}

std::string to_json_line(const StepReport& report, const Recipe& recipe) {
  Ordered rows = Ordered::array();
  for (const OpRow& r : report.rows)
    rows.push_back({{"op", r.op},
                    {"calls", r.calls},
                    {"flop", r.flop},
                    {"bytes", r.bytes},
                    {"time_s", r.seconds},
                    {"floor_s", r.floor_s}});
  return Ordered{{"bench", "step"},
                 {"recipe", recipe.source},
                 {"isa", kernels::name_of(kernels::isa())},
                 {"peak_flops", report.peak_flops},
                 {"triad_bytes_per_s", report.triad_bytes_per_s},
                 {"steps", report.steps},
                 {"step_s", report.step_s},
                 {"min_s", report.min_s},
                 {"p99_s", report.p99_s},
                 {"tokens_per_s", report.tokens_per_s},
                 {"mfu", report.mfu},
                 {"ops", rows}}
      .dump();
}

double measure_triad(int num_threads) {
  constexpr int64_t kCount = int64_t{16} << 20;  // floats: 64 MiB an array
  std::vector<float> a(kCount), b(kCount, 1.0f), c(kCount, 2.0f);
  Threads threads(num_threads);
  double best = 0.0;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const auto start = Clock::now();
    parallel_for(threads, kCount, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) a[size_t(i)] = b[size_t(i)] + 0.5f * c[size_t(i)];
    });
    best = std::max(best, 12.0 * double(kCount) / seconds_since(start));
  }
  return best;
}

}  // namespace ashlar::bench
