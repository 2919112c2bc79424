#include "ashlar/train/records/traced_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ashlar/comm/agree.h"
#include "ashlar/core/text.h"

namespace ashlar::train {
namespace {

// The numbers of all ranks, in their order.
std::vector<double> numbers_of(comm::Group& ranks, double mine) {
  std::vector<double> numbers;
  for (const std::string& text : comm::all_said(ranks, fmt::format("{}", mine), "trace"))
    numbers.push_back(std::stod(text));
  return numbers;
}

}  // namespace

double clock_ahead_s(comm::Group& ranks, function_ref<double()> now_s) {
  constexpr size_t kExchanges = 9;
  std::vector<double> ahead;
  for (size_t i = 0; i < kExchanges; ++i) {
    ranks.barrier("clocks").wait();
    const double mine = now_s();
    ahead.push_back(mine - numbers_of(ranks, mine)[0]);
  }
  std::nth_element(ahead.begin(), ahead.begin() + kExchanges / 2, ahead.end());
  return ahead[kExchanges / 2];
}

TracedSteps::TracedSteps(const Recipe& recipe, FileSystem& files, Log& log,
                         const parallel::Groups& groups, const TraceRoom& of_a_step,
                         int local_ranks, const ComputeDevice& on)
    : recipe_(recipe),
      files_(files),
      log_(log),
      groups_(groups),
      trace_(groups.world().trace()),
      of_a_step_(of_a_step),
      one_clock_(local_ranks == groups.world().size()),
      on_(on) {}

void TracedSteps::begin_step(int64_t number) {
  const int64_t wanted = recipe_.train.trace_steps;
  if (wanted == 0 || written_) return;
  if (!std::exchange(warm_, true)) return;
  if (steps_.empty()) {
    steps_.reserve(size_t(wanted));
    if (on_.stream) device_ = std::make_unique<kernels::gpu::EventClock>(*on_.stream);
    trace_.follow(device_.get());
    const auto room = [&](int64_t of_a_step) { return wanted * (of_a_step + of_a_step / 4 + 64); };
    trace_.start(TraceRoom{room(of_a_step_.events), room(of_a_step_.lane_events),
                           room(of_a_step_.messages), room(of_a_step_.dims)});
  } else {
    trace_.resume();
  }
  steps_.push_back({.number = number, .before_s = last_end_s_, .start_s = Trace::now_s()});
}

void TracedSteps::end_step(double loader_wait_s) {
  last_end_s_ = Trace::now_s();
  if (!trace_.recording()) return;
  trace_.stop();
  steps_.back().end_s = last_end_s_;
  steps_.back().loader_wait_s = loader_wait_s;
  if (int64_t(steps_.size()) == recipe_.train.trace_steps) write();
}

void TracedSteps::finish() {
  const int64_t wanted = recipe_.train.trace_steps;
  if (wanted == 0 || written_) return;
  log_.warn("train.trace_steps is {} but the run ends after {} that could be recorded{}", wanted,
            steps_.size(), steps_.empty() ? ": no trace is written" : "");
  if (!steps_.empty()) write();
}

void TracedSteps::write() {
  written_ = true;
  trace_.read_device();
  comm::Group& ranks = groups_.world();
  // After these barriers all recorded operations have ended.
  for (comm::Group* group : {&ranks, &groups_.cp(), &groups_.tsp(), &groups_.tp()})
    group->barrier("trace").wait();
  TraceFile file{.rank = ranks.rank(), .num_ranks = ranks.size(), .steps = steps_};
  if (on_.spec) file.device = on_.spec->name;
  file.tokens = recipe_.train.global_batch * recipe_.data.sequence_length;
  if (!one_clock_) file.clock_ahead_s = clock_ahead_s(ranks, [] { return Trace::now_s(); });
  const std::vector<double> starts =
      numbers_of(ranks, steps_.front().before_s - file.clock_ahead_s);
  file.origin_s = *std::min_element(starts.begin(), starts.end());
  const std::string directory = join(recipe_.train.run_dir, "trace");
  make_own_directory(files_, directory);
  const std::string steps = fmt::format("steps-{}-{}", steps_.front().number, steps_.back().number);
  write_text(files_, join(directory, fmt::format("{}-rank-{}.json", steps, file.rank)),
             to_chrome_json(trace_, file));
  std::array<int64_t, 2> sums = {int64_t(trace_.events().size()), trace_.num_dropped()};
  for (int lane = 0; lane < trace_.num_lanes(); ++lane)
    sums[0] += int64_t(trace_.lane_events(lane).size());
  comm::add_up(ranks, sums, "trace");
  log_.info("trace of steps {} to {}: {} events of {} rank{} in {}/{}-rank-*.json",
            steps_.front().number, steps_.back().number, format_thousands(sums[0]), ranks.size(),
            ranks.size() == 1 ? "" : "s", directory, steps);
  if (sums[1] > 0)
    log_.warn("the trace lacks {} events that had no room", format_thousands(sums[1]));
  trace_.release();
  trace_.follow(nullptr);
  device_.reset();
}

}  // namespace ashlar::train
