#include "ashlar/launch/run_moves.h"

#include <algorithm>

namespace ashlar::launch {

void RunMoves::begin(int64_t step, double now) {
  stepped_s_ = looked_s_ = now;
  stepped_at_ = step;
}

std::optional<NodePlacement::Move> RunMoves::grow(const Progress& progress, double now) {
  if (now - looked_s_ < kLookEvery_s) return std::nullopt;
  looked_s_ = now;
  const std::optional<NodePlacement::Move> move = fleet_.move(-1, 0, now);
  return move && pays(*move, progress, now) ? move : std::nullopt;
}

std::optional<NodePlacement::Move> RunMoves::leave(int slow_rank, double share,
                                                   const Progress& progress, double now) {
  if (!left_ranks_.insert(slow_rank).second) return std::nullopt;
  const std::optional<NodePlacement::Move> move = fleet_.move(slow_rank, share, now);
  return move && pays(*move, progress, now) ? move : std::nullopt;
}

bool RunMoves::pays(const NodePlacement::Move& move, const Progress& progress, double now) const {
  if (progress.num_steps == 0 || now - stepped_s_ < kSettled_s) return false;
  const int64_t done = std::max<int64_t>(1, progress.step - stepped_at_);
  const int64_t left = std::max<int64_t>(0, progress.num_steps - progress.step);
  const double rest_s = double(left) * (now - stepped_s_) / double(done);
  const double restart_s = progress.restart_s > 0 ? progress.restart_s : kUsualRestart_s;
  return move.share * rest_s > 2 * restart_s;
}

}  // namespace ashlar::launch
