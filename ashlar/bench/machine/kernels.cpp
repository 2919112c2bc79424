#include "ashlar/bench/machine/kernels.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/bench/machine/part.h"
#include "ashlar/bench/random_batch.h"
#include "ashlar/comm/agree.h"
#include "ashlar/comm/measuring.h"
#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/bucket_bytes.h"
#include "ashlar/train/kernel_call.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/product_table.h"
#include "ashlar/train/trainer.h"

namespace ashlar::bench {
namespace {

constexpr int64_t kWarmUpSteps = 2;
// More than the events of a step of any layout on a CPU.
constexpr TraceRoom kRoom{1 << 18, 1 << 16, 1 << 18, 1 << 18};

using KernelTimes = std::map<train::KernelCall, std::vector<double>>;  // microseconds

void add_calls(const Trace& trace, KernelTimes& times) {
  for (const TraceEvent& event : trace.events())
    if (event.kind == TraceEvent::Kind::kKernel)
      times[train::call_of(trace, event)].push_back(1e6 * (event.end_s - event.start_s));
}

// The times of all ranks, on rank 0.
KernelTimes gather(comm::Group& ranks, const KernelTimes& mine) {
  Ordered list = Ordered::array();
  for (const auto& [call, us] : mine) {
    const TraceDims& d = call.dims;
    list.push_back(
        {call.op, call.dtype, d.groups, d.rows, d.cols, d.depth, call.flop, call.bytes, us});
  }
  KernelTimes all;
  for (const std::string& text : comm::all_said(ranks, list.dump(), "kernels"))
    for (const Ordered& row : Ordered::parse(text)) {
      std::vector<double>& us = all[{row[0].get<std::string>(),
                                     row[1].get<DType>(),
                                     {row[2], row[3], row[4], row[5]},
                                     row[6],
                                     row[7]}];
      for (const Ordered& time : row[8]) us.push_back(time);
    }
  return all;
}

// Adds the times of this rank's calls in steps of a layout.
void time_layout(const Recipe& recipe, const train::RankResources& resources, Threads& threads,
                 int64_t steps, KernelTimes& times) {
  comm::Group& ranks = resources.ranks;
  const DType compute = nn::resolve_precision(recipe.train.precision);
  const auto files = posix_files();
  const auto products = train::read_product_table(*files, recipe.train.machine);
  train::Trainer trainer(
      recipe, compute, resources.allocator, threads, ranks,
      train::plan_run(recipe, compute, ranks.size(), resources.num_threads, ranks.rank())
          .step_memory,
      products.get());
  trainer.initialize();
  const RandomBatch batch(trainer);
  for (int64_t step = 0; step < kWarmUpSteps; ++step) batch.step(trainer, step);
  ranks.barrier("kernels").wait();

  comm::mute(ranks, true);  // nothing is in flight
  Trace& trace = ranks.trace();
  trace.start(kRoom);
  for (int64_t step = 0; step < steps; ++step) {
    trace.clear();
    batch.step(trainer, kWarmUpSteps + step);
    ASHLAR_ASSERT(trace.num_dropped() == 0);
    add_calls(trace, times);
  }
  ranks.barrier("kernels").wait();  // so that nothing that was posted ahead runs unmuted
  trace.release();
  comm::mute(ranks, false);
}

}  // namespace

KernelTable measure_kernels(std::span<const Recipe> layouts, const train::RankResources& resources,
                            int64_t steps, int64_t rounds) {
  comm::Group& ranks = resources.ranks;
  Threads threads(resources.num_threads);
  ForeignWatch watch(ranks);
  const auto files = posix_files();
  std::vector<Recipe> recipes;
  for (const Recipe& layout : layouts)
    recipes.push_back(train::with_bucket_bytes(*files, layout, ranks));
  KernelTimes times;
  for (int64_t round = 0; round < rounds; ++round)
    for (const Recipe& recipe : recipes) time_layout(recipe, resources, threads, steps, times);
  KernelTable table;
  table.num_ranks = ranks.size();
  table.foreign = watch.end();
  for (const auto& [call, us] : gather(ranks, times)) {
    const Repeats r = repeats_of(us);
    table.rows.push_back({call.op, std::string(name_of(call.dtype)), call.dims, call.flop,
                          call.bytes, int64_t(us.size()), r.p10, r.median, r.p90});
  }
  std::stable_sort(table.rows.begin(), table.rows.end(), [](const auto& a, const auto& b) {
    return double(a.calls) * a.median_us > double(b.calls) * b.median_us;
  });
  return table;
}

std::string to_text(const KernelTable& table) {
  std::string text = fmt::format(
      "{:<28} {:<5} {:>6} {:>7} {:>7} {:>7} {:>7} {:>10} {:>10} {:>10}\n", "op", "dtype", "groups",
      "rows", "cols", "depth", "calls", "p10_us", "median_us", "p90_us");
  for (const KernelRow& r : table.rows)
    text +=
        fmt::format("{:<28} {:<5} {:>6} {:>7} {:>7} {:>7} {:>7} {:>10.2f} {:>10.2f} {:>10.2f}\n",
                    r.op, r.dtype, r.dims.groups, r.dims.rows, r.dims.cols, r.dims.depth, r.calls,
                    r.p10_us, r.median_us, r.p90_us);
  return text + fmt::format("# {} ranks computed; others took {:.1f} % of the cores{}{}",
                            table.num_ranks, 100 * table.foreign.shown(),
                            table.foreign.neighbour.empty() ? "" : ", most of it ",
                            table.foreign.neighbour);
}

std::string to_tsv(const KernelTable& table) {
  std::string text =
      "op\tdtype\tgroups\trows\tcols\tdepth\tflop\tbytes\tranks\tp10_us\tmedian_us\tp90_us\tn\n";
  for (const KernelRow& r : table.rows)
    text += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:.3f}\t{:.3f}\t{:.3f}\t{}\n", r.op,
                        r.dtype, r.dims.groups, r.dims.rows, r.dims.cols, r.dims.depth, r.flop,
                        r.bytes, table.num_ranks, r.p10_us, r.median_us, r.p90_us, r.calls);
  return text;
}

}  // namespace ashlar::bench
