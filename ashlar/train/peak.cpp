#include "ashlar/train/peak.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/process.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/peak.h"
#include "ashlar/train/saves.h"

namespace ashlar::train {
namespace {

std::string path_of(const std::string& run_dir) {
  return join(run_dir, "peak.json");
}

}  // namespace

double measure_peak(const kernels::Context& ctx, DType compute, comm::Group& ranks, int local_ranks,
                    int num_cpus) {
  constexpr int kMoments = 3;
  constexpr double kAlone_s = 0.005, kInTurns_s = 0.015;  // a turn on a CPU lasts milliseconds
  const double seconds = local_ranks * ctx.threads->size() > num_cpus ? kInTurns_s : kAlone_s;
  double best = 0.0;
  for (int moment = 0; moment < kMoments; ++moment) {
    // Counts all work, and the time from the first beginning to the last end: a thread that waits
    // for a CPU meanwhile keeps none busy.
    ranks.barrier("peak begins").wait();
    const auto start = Clock::now();
    std::vector<int64_t> found(size_t(1 + ranks.size()));  // flop of all ranks; nanoseconds of each
    found[0] = kernels::flop_within(ctx, compute, seconds);
    ranks.barrier("peak ends").wait();
    found[size_t(1 + ranks.rank())] = std::llround(seconds_since(start) * 1e9);
    add_up(ranks, found, "peak");
    best = std::max(best, double(found[0]) /
                              (double(*std::max_element(found.begin() + 1, found.end())) * 1e-9));
  }
  return best;
}

std::string peak_setup(const kernels::Context& ctx, DType compute, comm::Group& ranks) {
  std::map<std::string, int> counts;
  for (const std::string& rank :
       all_said(ranks,
                fmt::format("{}, {}, {} threads", processor_name(),
                            kernels::name_of(kernels::isa()), ctx.threads->size()),
                "processors"))
    ++counts[rank];
  std::string text(name_of(compute));
  for (const auto& [rank, count] : counts)
    text += fmt::format("; {} rank{} on {}", count, count == 1 ? "" : "s", rank);
  return text;
}

std::optional<double> kept_peak(FileSystem& files, const std::string& run_dir,
                                const std::string& setup) {
  const std::string path = path_of(run_dir);
  if (!files.stat(path)) return std::nullopt;
  try {
    const auto kept = nlohmann::json::parse(read_text(files, path), nullptr, false);
    if (!kept.is_object() || kept.value("setup", "") != setup) return std::nullopt;
    const double peak = kept.value("peak_flops", 0.0);
    if (std::isfinite(peak) && peak > 0.0) return peak;
  } catch (const std::exception&) {  // the peak is measured anew, and the file overwritten
  }
  return std::nullopt;
}

void keep_peak(FileSystem& files, const std::string& run_dir, const std::string& setup,
               double peak_flops) {
  const nlohmann::ordered_json kept = {{"peak_flops", peak_flops}, {"setup", setup}};
  write_text(files, path_of(run_dir), kept.dump(2) + "\n");
}

Peak::Peak(const kernels::Context& ctx, DType compute, const RankResources& resources,
           FileSystem& files, std::string run_dir, std::optional<double> stated)
    : ctx_(ctx),
      compute_(compute),
      resources_(resources),
      files_(files),
      run_dir_(std::move(run_dir)),
      stated_(stated) {}

double Peak::find() {
  if (stated_) return flops_ = *stated_;
  setup_ = peak_setup(ctx_, compute_, resources_.ranks);
  std::optional<double> kept;
  while_leader(resources_.ranks, "kept peak", [&] { kept = kept_peak(files_, run_dir_, setup_); });
  const int64_t flops =
      from_leader(resources_.ranks, std::llround(kept.value_or(0.0)), "kept peak");
  is_kept_ = flops > 0;
  flops_ = is_kept_ ? double(flops) : measure();
  return flops_;
}

double Peak::improve() {
  if (is_kept_ || stated_) return flops_;
  flops_ = std::max(flops_, measure());
  while_leader(resources_.ranks, "peak", [&] { keep_peak(files_, run_dir_, setup_, flops_); });
  return flops_;
}

double Peak::measure() {
  return measure_peak(ctx_, compute_, resources_.ranks, resources_.local_ranks,
                      resources_.num_cpus);
}

}  // namespace ashlar::train
