// How it works.  A Subject is a trainer with its own recipe and the times and traffic of its steps.
// An overlap study has three of them in one process, which run in turn for kRounds rounds, so that
// a machine whose speed changes slowly is equally fast for all three.
//   Subject::run begins and ends at a barrier (settle), so its counts hold its own operations and
// none of earlier runs.  The steps in between are not separated, so that work which a step leaves
// to the next, such as gathers of weights, is timed as in training.  Counters of traffic only grow;
// a run adds their growth, warm-up steps included, and means are over all of these.
//   Every rank computes the same report: ranks exchange their traffic as JSON text (all_said).
#include "ashlar/bench/ranks.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/bench/random_batch.h"
#include "ashlar/bench/traffic_floor.h"
#include "ashlar/comm/agree.h"
#include "ashlar/comm/measuring.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/json.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"

namespace ashlar::bench {
namespace {

constexpr int64_t kWarmUp = 3, kRounds = 3;

struct Key {
  std::string group;
  comm::Op op;
  std::string label;
  auto operator<=>(const Key&) const = default;
};

struct Counts {
  double launches = 0, sent_bytes = 0, ran_s = 0, waited_s = 0;
  void add(const Counts& other, double times) {
    launches += times * other.launches;
    sent_bytes += times * other.sent_bytes;
    ran_s += times * other.ran_s;
    waited_s += times * other.waited_s;
  }
};

using Traffic = std::map<Key, Counts>;

// A trainer of this rank, with the steps that it ran.
class Subject {
 public:
  Subject(const Recipe& recipe, const train::RankResources& resources, DType compute)
      : ranks_(resources.ranks),
        threads_(resources.num_threads),
        trainer_(recipe, compute, resources.allocator, threads_, resources.ranks,
                 train::plan_run(recipe, compute, resources.ranks.size(), resources.num_threads,
                                 resources.ranks.rank())
                     .step_memory),
        batch_(trainer_) {
    trainer_.initialize();
    run(kWarmUp, 0);
    traffic_.clear();
    num_counted_ = 0;
  }

  // Runs steps back to back, so that gathers continue into the next one; the first are not timed.
  void run(int64_t warm_up, int64_t steps) {
    settle();
    Traffic before = traffic();
    for (int64_t i = 0; i < warm_up + steps; ++i) {
      const auto start = Clock::now();
      batch_.step(trainer_, num_steps_++);
      if (i >= warm_up) seconds_.push_back(seconds_since(start));
    }
    settle();
    for (const auto& [key, counts] : traffic()) {
      traffic_[key].add(counts, 1);
      traffic_[key].add(before[key], -1);
    }
    num_counted_ += warm_up + steps;
  }

  void delay_bulk(double seconds) { comm::delay(trainer_.model().groups().data(), seconds); }
  const train::Trainer& trainer() const { return trainer_; }
  const std::vector<double>& seconds() const { return seconds_; }
  // The mean over the counted steps.
  Traffic traffic_per_step() const {
    Traffic mean;
    for (const auto& [key, counts] : traffic_) mean[key].add(counts, 1.0 / double(num_counted_));
    return mean;
  }

 private:
  // Waits until all operations that this rank submitted have ended, and those of other ranks too.
  // Operations of the data ranks are in the lane of the barrier; a step waits for other lanes.
  void settle() { ranks_.barrier("bench").wait(); }

  Traffic traffic() const {
    Traffic rows;
    for (const comm::Group* group : trainer_.model().all_groups())
      for (const comm::TrafficRow& row : group->traffic())
        if (group->size() > 1 && row.op != comm::Op::kBarrier)
          rows[{group->name(), row.op, row.label}] = {double(row.launches), double(row.sent_bytes),
                                                      row.ran_s, row.waited_s};
    return rows;
  }

  comm::Group& ranks_;
  Threads threads_;
  train::Trainer trainer_;
  const RandomBatch batch_;
  std::vector<double> seconds_;
  Traffic traffic_;
  int64_t num_counted_ = 0, num_steps_ = 0;
};

// The traffic of every rank, in their order.
std::vector<Traffic> of_all_ranks(comm::Group& ranks, const Traffic& mine) {
  Ordered rows = Ordered::array();
  for (const auto& [key, c] : mine)
    rows.push_back(
        {key.group, int(key.op), key.label, c.launches, c.sent_bytes, c.ran_s, c.waited_s});
  std::vector<Traffic> all;
  for (const std::string& text : comm::all_said(ranks, rows.dump(), "bench")) {
    Traffic& traffic = all.emplace_back();
    for (const Ordered& row : Ordered::parse(text))
      traffic[{row[0], comm::Op(row[1].get<int>()), row[2]}] = {row[3], row[4], row[5], row[6]};
  }
  return all;
}

Ordered times_json(const Summary& s) {
  return {{"median_s", s.median}, {"min_s", s.min}, {"mean_s", s.mean},
          {"p99_s", s.p99},       {"max_s", s.max}, {"steps", s.count}};
}

// The summary of the rank with the longest median.  Muted ranks do not wait for each other, so each
// has a time of its own.
Summary slowest(comm::Group& ranks, const Summary& mine) {
  Summary longest = mine;
  for (const std::string& text : comm::all_said(ranks, times_json(mine).dump(), "bench")) {
    const Ordered s = Ordered::parse(text);
    if (s["median_s"] > longest.median)
      longest = {s["min_s"], s["median_s"], s["mean_s"], s["p99_s"], s["max_s"], s["steps"]};
  }
  return longest;
}

double waited(const std::vector<Traffic>& all) {
  double sum = 0;
  for (const Traffic& traffic : all)
    for (const auto& [key, counts] : traffic) sum += counts.waited_s;
  return sum / double(all.size());
}

void report_traffic(RanksReport& report, const Recipe& recipe, const std::vector<Traffic>& all) {
  Traffic mean;
  for (const Traffic& traffic : all) {
    double sent = 0;
    for (const auto& [key, counts] : traffic) {
      mean[key].add(counts, 1.0 / double(all.size()));
      sent += counts.sent_bytes;
    }
    report.sent_bytes += sent / double(all.size());
    report.max_sent_bytes = std::max(report.max_sent_bytes, sent);
  }
  std::map<Key, double> floors;
  for (const TrafficFloor& f : traffic_floors(recipe, report.parallel, report.compute))
    floors[{f.group, f.op, f.label}] = f.bytes;
  for (const auto& [key, counts] : mean)
    if (counts.launches > 0)
      report.traffic.push_back({key.group, std::string(comm::name_of(key.op)), key.label,
                                counts.launches, counts.sent_bytes, floors[key], counts.ran_s,
                                counts.waited_s});
  std::stable_sort(report.traffic.begin(), report.traffic.end(),
                   [](const auto& a, const auto& b) { return a.sent_bytes > b.sent_bytes; });
  report.waited_s = waited(all);
}

OverlapStudy study_overlap(const Recipe& recipe, const train::RankResources& resources,
                           DType compute, Subject& overlapped, int64_t steps) {
  Recipe without = recipe;
  without.parallel.overlap = false;
  Subject waiting(without, resources, compute), muted(recipe, resources, compute);
  for (int64_t round = 0; round < kRounds; ++round) {
    overlapped.run(1, steps);
    waiting.run(1, steps);
    // Allowed here: run() ended at a barrier, so nothing is in flight.
    comm::mute(resources.ranks, true);
    muted.run(1, steps);
    comm::mute(resources.ranks, false);
  }
  OverlapStudy study;
  study.waiting = summarize(waiting.seconds());
  study.muted = slowest(resources.ranks, summarize(muted.seconds()));
  study.waiting_s = waited(of_all_ranks(resources.ranks, waiting.traffic_per_step()));
  const double communication = study.waiting.median - study.muted.median;
  study.hidden_share =
      (study.waiting.median - summarize(overlapped.seconds()).median) / communication;
  return study;
}

std::string layout_of(const ParallelSpec& p, const RanksOptions& options) {
  std::string text = mesh_text(p);
  if (p.pp > 1) text += fmt::format(", {}", kScheduleNames[size_t(p.schedule)]);
  if (p.dp * p.sequence_ranks() > 1) text += fmt::format(", zero {}", p.zero);
  if (p.dp * p.sequence_ranks() > 1 && p.zero > 0)
    text += p.zero_layout == ShardLayout::kContiguous ? " contiguous" : " bucketed";
  if (p.sequence_ranks() > 1)
    text += fmt::format(", {}, {}", p.cp_layout == CpLayout::kZigzag ? "zigzag" : "contiguous",
                        kCpExchangeNames[size_t(p.cp_exchange)]);
  if (p.sequence_parallel) text += ", sequence_parallel";
  if (!p.overlap) text += ", overlap false";
  if (options.delay_bulk_ms > 0)
    text += fmt::format(", bulk delayed by {:g} ms", options.delay_bulk_ms);
  return options.one_lane ? text + ", one lane" : text;
}

std::string milliseconds(const Summary& s) {
  return fmt::format("{:.1f} ms (min {:.1f}, p99 {:.1f})", s.median * 1e3, s.min * 1e3,
                     s.p99 * 1e3);
}

}  // namespace

RanksReport measure_ranks(const Recipe& recipe, const train::RankResources& resources,
                          const RanksOptions& options) {
  constexpr double kMostDelay_ms = 1e6;
  ASHLAR_REQUIRE(options.delay_bulk_ms >= 0 && options.delay_bulk_ms <= kMostDelay_ms, kConfig,
                 "--delay-bulk-ms is {:g}; expected 0 to {:.0f}", options.delay_bulk_ms,
                 kMostDelay_ms);
  ASHLAR_REQUIRE(!options.overlap_study || resources.ranks.size() > 1, kConfig,
                 "--overlap-study on one rank; expected 2 ranks or more (--ranks, or mpirun)");
  RanksReport report;
  report.options = options;
  report.compute = nn::resolve_precision(recipe.train.precision);
  report.num_ranks = resources.ranks.size();
  report.num_threads = resources.num_threads;
  comm::keep_one_lane(resources.ranks, options.one_lane);
  Subject subject(recipe, resources, report.compute);
  subject.delay_bulk(options.delay_bulk_ms * 1e-3);
  report.parallel = subject.trainer().model().parallel();
  if (options.overlap_study)
    report.study = study_overlap(recipe, resources, report.compute, subject, options.steps);
  else
    subject.run(1, options.steps);
  report.step = summarize(subject.seconds());
  report.tokens_per_s =
      double(recipe.train.global_batch * recipe.data.sequence_length) / report.step.median;
  report_traffic(report, recipe, of_all_ranks(resources.ranks, subject.traffic_per_step()));
  return report;
}

std::string to_text(const RanksReport& r, const Recipe& recipe) {
  std::string text = fmt::format(
      "{}: {}; {} on {}; {} ranks ({}), {} thread{} each\n"
      "median of {} steps {}, {:.0f} tokens/s; a rank sends {:.3f} MB a step ({:.3f} at most), "
      "{:.3f} GB/s, and waits {:.1f} ms\n",
      recipe.name.empty() ? recipe.source : recipe.name, layout_of(r.parallel, r.options),
      name_of(r.compute), kernels::name_of(kernels::isa()), r.num_ranks, r.options.engine,
      r.num_threads, r.num_threads == 1 ? "" : "s", r.step.count, milliseconds(r.step),
      r.tokens_per_s, r.sent_bytes * 1e-6, r.max_sent_bytes * 1e-6,
      r.sent_bytes / r.step.median * 1e-9, r.waited_s * 1e3);
  if (!r.traffic.empty())
    text +=
        fmt::format("{:<6} {:<15} {:<27} {:>8} {:>10} {:>10} {:>7} {:>9} {:>9}\n", "group", "op",
                    "label", "launches", "sent_MB", "floor_MB", "ratio", "ran_ms", "waited_ms");
  for (const TrafficLine& t : r.traffic) {
    const bool known = t.floor_bytes > 0;
    text += fmt::format("{:<6} {:<15} {:<27} {:>8.1f} {:>10.4f} {:>10} {:>7} {:>9.2f} {:>9.2f}\n",
                        t.group, t.op, t.label, t.launches, t.sent_bytes * 1e-6,
                        known ? fmt::format("{:.4f}", t.floor_bytes * 1e-6) : "-",
                        known ? fmt::format("{:.4f}", t.sent_bytes / t.floor_bytes) : "-",
                        t.ran_s * 1e3, t.waited_s * 1e3);
  }
  if (r.study)
    text += fmt::format(
        "overlapped {}, waits {:.1f} ms\noverlap false {}, waits {:.1f} ms\nmuted {}\n"
        "hidden {:.0f}% of the {:.1f} ms that communication adds\n",
        milliseconds(r.step), r.waited_s * 1e3, milliseconds(r.study->waiting),
        r.study->waiting_s * 1e3, milliseconds(r.study->muted), 100 * r.study->hidden_share,
        (r.study->waiting.median - r.study->muted.median) * 1e3);
  return text;
}

std::string to_json_line(const RanksReport& r, const Recipe& recipe) {
  Ordered traffic = Ordered::array();
  for (const TrafficLine& t : r.traffic)
    traffic.push_back({{"group", t.group},
                       {"op", t.op},
                       {"label", t.label},
                       {"launches", t.launches},
                       {"sent_bytes", t.sent_bytes},
                       {"floor_bytes", t.floor_bytes > 0 ? Ordered(t.floor_bytes) : Ordered()},
                       {"ran_s", t.ran_s},
                       {"waited_s", t.waited_s}});
  Ordered line = {{"bench", "ranks"},
                  {"recipe", recipe.source},
                  {"layout", layout_of(r.parallel, r.options)},
                  {"engine", r.options.engine},
                  {"ranks", r.num_ranks},
                  {"threads", r.num_threads},
                  {"isa", kernels::name_of(kernels::isa())},
                  {"compute", name_of(r.compute)},
                  {"step", times_json(r.step)},
                  {"tokens_per_s", r.tokens_per_s},
                  {"sent_bytes", r.sent_bytes},
                  {"max_sent_bytes", r.max_sent_bytes},
                  {"waited_s", r.waited_s},
                  {"traffic", traffic}};
  if (r.study)
    line["overlap_study"] = {{"overlapped", times_json(r.step)},
                             {"waiting", times_json(r.study->waiting)},
                             {"muted", times_json(r.study->muted)},
                             {"waiting_waited_s", r.study->waiting_s},
                             {"hidden_share", r.study->hidden_share}};
  return line.dump();
}

}  // namespace ashlar::bench
