#include "ashlar/bench/step.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/bench/random_batch.h"
#include "ashlar/comm/self/self.h"
#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/core/statistics.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/product_table.h"
#include "ashlar/train/trainer.h"
#include "ashlar/train/training_flop.h"

namespace ashlar::bench {
namespace {

struct StepCall {
  ProductClass kind;
  double flop, bytes;
};
struct StepOp {
  std::vector<StepCall> calls;  // of one step, the same in each
  std::vector<double> seconds;  // of all calls, by step
};

// Adds a step to `ops`; end_s: when it ended.
void add_step(const Trace& trace, double end_s, std::map<std::string, StepOp>& ops) {
  std::vector<const TraceEvent*> calls;
  for (const TraceEvent& event : trace.events())
    if (event.kind == TraceEvent::Kind::kKernel) calls.push_back(&event);
  std::map<std::string, double> seconds;
  const bool first = ops.empty();
  for (size_t i = 0; i < calls.size(); ++i) {
    const TraceEvent& call = *calls[i];
    const std::string name(trace.text(call.name));
    const double until = i + 1 < calls.size() ? calls[i + 1]->start_s : end_s;
    seconds[name] += until - call.start_s;
    if (first)
      ops[name].calls.push_back(
          {class_of(name, trace.dims(call)), double(call.flop), double(call.bytes)});
  }
  for (const auto& [name, s] : seconds) ops[name].seconds.push_back(s);
}

OpRow row_of(const std::string& name, const StepOp& op, const Floors& floors) {
  OpRow row{.op = name, .calls = int64_t(op.calls.size()), .seconds = summarize(op.seconds).median};
  for (const StepCall& call : op.calls) {
    row.flop += call.flop;
    row.bytes += call.bytes;
    row.floor_s += floors.of(call.kind, call.flop, call.bytes);
    row.outside_caches_s += floors.outside_caches(call.kind, call.flop, call.bytes);
  }
  return row;
}

}  // namespace

double StepReport::floor_s() const {
  double sum = 0;
  for (const OpRow& row : rows) sum += row.floor_s;
  return sum;
}

double StepReport::outside_caches_s() const {
  double sum = 0;
  for (const OpRow& row : rows) sum += row.outside_caches_s;
  return sum;
}

std::vector<OpRow> StepReport::most_above() const {
  constexpr size_t kMost = 3;
  std::vector<OpRow> most = rows;
  std::stable_sort(most.begin(), most.end(),
                   [](const OpRow& a, const OpRow& b) { return a.above_s() > b.above_s(); });
  most.resize(std::min(most.size(), kMost));
  return most;
}

StepReport measure_step(const Recipe& recipe, int64_t steps, train::Binding binding) {
  const DType compute = nn::resolve_precision(recipe.train.precision);
  const train::RunPlan plan = train::plan_run(recipe, compute);
  const std::vector<Cpus> usable{usable_cpus()};
  const train::Placed placed = train::place_host(train::topology_for(binding), usable,
                                                 int(recipe.train.threads), binding)[0];
  const BoundThread bound = train::bind_to(placed);
  Threads threads(placed.num_threads);
  Allocator allocator(Device::kCpu);
  comm::SelfWorld world(allocator);
  const auto files = posix_files();
  const auto products = train::read_product_table(*files, recipe.train.machine);
  train::Trainer trainer(recipe, compute, allocator, threads, world.group(), plan.step_memory,
                         products.get());
  trainer.initialize();
  const RandomBatch batch(trainer);

  StepReport report;
  report.steps = steps;
  report.tokens = recipe.train.global_batch * recipe.data.sequence_length;
  constexpr int64_t kWarmUp = 3;
  Trace& trace = world.group().trace();
  trace.start();
  std::vector<double> step_times;
  std::map<std::string, StepOp> ops;
  ClassShapes shapes;
  for (int64_t step = 0; step < kWarmUp + steps; ++step) {
    trace.clear();
    const double start = Trace::now_s();
    batch.step(trainer, step);
    const double end = Trace::now_s();
    if (step == kWarmUp - 1) {
      shapes = shapes_of(trace);
      report.floors = measure_floors(threads, compute, shapes);
    }
    if (step < kWarmUp) continue;
    step_times.push_back(end - start);
    report.floors.raise(trace);
    add_step(trace, end, ops);
  }
  report.floors.raise(measure_floors(threads, compute, shapes));
  for (const auto& [name, op] : ops) report.rows.push_back(row_of(name, op, report.floors));
  std::sort(report.rows.begin(), report.rows.end(),
            [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; });
  const Summary summary = summarize(step_times);
  report.step_s = summary.median;
  report.min_s = summary.min;
  report.p99_s = summary.p99;
  report.mfu = report.tokens_per_s() * train::training_flop(recipe) / report.floors.peak_flops;
  return report;
}

std::string to_text(const StepReport& report) {
  std::string text = fmt::format(
      "{}\nmedian of {} steps {:.1f} ms (min {:.1f}, p99 {:.1f}), {} tokens/s, MFU {:.1f}% "
      "(exact-causal)\n{:<32} {:>6} {:>10} {:>8} {:>9} {:>9} {:>7} {:>7}\n",
      report.floors.text(), report.steps, report.step_s * 1e3, report.min_s * 1e3,
      report.p99_s * 1e3, format_thousands(int64_t(report.tokens_per_s())), 100 * report.mfu, "op",
      "calls", "GFLOP", "GB", "time_ms", "floor_ms", "share", "of step");
  for (const OpRow& r : report.rows)
    text +=
        fmt::format("{:<32} {:>6} {:>10.3f} {:>8.3f} {:>9.3f} {:>9.3f} {:>6.0f}% {:>6.1f}%\n", r.op,
                    r.calls, r.flop * 1e-9, r.bytes * 1e-9, r.seconds * 1e3, r.floor_s * 1e3,
                    100 * r.floor_s / r.seconds, 100 * r.seconds / report.step_s);
  return text + closing_lines(report);
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
  Ordered most_above = Ordered::array(), product_flops = Ordered::object(),
          memory = Ordered::array();
  for (const OpRow& r : report.most_above())
    most_above.push_back({{"op", r.op}, {"above_s", r.above_s()}});
  for (size_t i = 0; i < kNumProductClasses; ++i)
    if (report.floors.flops[i] > 0)
      product_flops[std::string(name_of(ProductClass(i)))] = report.floors.flops[i];
  for (const MemoryRates::Rate& at : report.floors.memory.list)
    memory.push_back({{"bytes", at.bytes}, {"bytes_per_s", at.bytes_per_s}});
  return Ordered{{"bench", "step"},
                 {"recipe", recipe.source},
                 {"isa", kernels::name_of(kernels::isa())},
                 {"peak_flops", report.floors.peak_flops},
                 {"product_flops", product_flops},
                 {"memory_bytes_per_s", memory},
                 {"steps", report.steps},
                 {"step_s", report.step_s},
                 {"min_s", report.min_s},
                 {"p99_s", report.p99_s},
                 {"tokens_per_s", report.tokens_per_s()},
                 {"mfu", report.mfu},
                 {"floor_s", report.floor_s()},
                 {"outside_caches_s", report.outside_caches_s()},
                 {"floor_tokens_per_s", double(report.tokens) / report.floor_s()},
                 {"share", report.share()},
                 {"most_above", most_above},
                 {"ops", rows}}
      .dump();
}

std::string closing_lines(const StepReport& report) {
  std::string losses;
  for (const OpRow& row : report.most_above())
    losses +=
        fmt::format("{}{} {:.1f} ms", losses.empty() ? "" : ", ", row.op, row.above_s() * 1e3);
  return fmt::format(
      "floors of all calls: {:.1f} ms a step, {} tokens/s; with every operand from memory {:.1f} "
      "ms\n"
      "reached: {:.1f} ms, {} tokens/s, {:.0f}% of that\n"
      "most above their floors: {}\n",
      report.floor_s() * 1e3, format_thousands(int64_t(double(report.tokens) / report.floor_s())),
      report.outside_caches_s() * 1e3, report.step_s * 1e3,
      format_thousands(int64_t(report.tokens_per_s())), 100 * report.share(), losses);
}

}  // namespace ashlar::bench
