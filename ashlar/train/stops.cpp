#include "ashlar/train/stops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ashlar/comm/agree.h"

namespace ashlar::train {
namespace {

constexpr double kBetweenVotes_s = 0.5;

bool can_divide(const Recipe& recipe, const ParallelSpec& parallel) {
  return parallel.pp == 1 && recipe.train.trace_steps == 0;
}

}  // namespace

Stops::Stops(comm::Group& ranks, const StopSignals& signals, const Recipe& recipe,
             const ParallelSpec& parallel)
    : ranks_(ranks),
      signals_(signals),
      num_micro_batches_(recipe.train.global_batch / recipe.train.micro_batch / parallel.dp),
      divides_steps_(can_divide(recipe, parallel)),
      most_s_(recipe.train.max_minutes * 60.0) {
  if (leads()) StopSignals::answer("stops before the first step");
}

bool Stops::asked() {
  std::array<int64_t, 1> votes = {signals_.requested()};
  add_up(ranks_, votes, "stop");
  return votes[0] > 0;
}

void Stops::answer_in_step(double seconds) const {
  const bool divided = divides_steps_ && vote_every_ < num_micro_batches_;
  const char* when = divided ? "leaves this step undone, saves the last one and stops"
                             : "saves and stops after this step";
  if (seconds < 0.0) return StopSignals::answer(when);
  StopSignals::answer(
      when, divided ? seconds * double(vote_every_) / double(num_micro_batches_) : seconds);
}

void Stops::begin_step() {
  if (leads()) answer_in_step(step_s_);
}

void Stops::after_micro_batch(int64_t number) {
  const int64_t done = number + 1;
  if (!divides_steps_ || done == num_micro_batches_ || done % vote_every_ != 0) return;
  if (asked()) throw StepLeft{};
  if (leads()) answer_in_step(step_s_);
}

bool Stops::asked_in_evaluation(int64_t number) {
  return number > 0 && number % vote_every_ == 0 && asked();
}

Stops::Votes Stops::after_step(double seconds, bool wants_second_try) {
  step_s_ = seconds;
  // Follows the leader's clock, so that all ranks vote at the same micro-batches.
  const double micro_batch_s = std::max(seconds / double(num_micro_batches_), 1e-9);
  const double every = std::min(std::ceil(kBetweenVotes_s / micro_batch_s), 1e9);
  std::array<int64_t, 4> votes = {signals_.requested(), seconds_left() <= 0.0, wants_second_try,
                                  leads() ? std::max<int64_t>(1, int64_t(every)) : 0};
  add_up(ranks_, votes, "stop");
  vote_every_ = votes[3];
  return {votes[0] > 0, votes[1] > 0, votes[2] > 0};
}

void Stops::ending() {
  if (leads()) StopSignals::answer("is stopping, once the last save is done");
}

double Stops::seconds_left() const {
  return most_s_ > 0.0 ? most_s_ - seconds_since(start_) : std::numeric_limits<double>::infinity();
}

}  // namespace ashlar::train
