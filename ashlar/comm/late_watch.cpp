#include "ashlar/comm/late_watch.h"

#include <algorithm>
#include <limits>

namespace ashlar::comm {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::string_view label_of(const Header& header) {
  const std::string_view whole(header.label, sizeof header.label);
  return whole.substr(0, whole.find('\0'));
}

// A thousand ranks may wait for a thousand others.
std::string short_list_of(std::span<const int> ranks) {
  constexpr size_t kMost = 8;
  if (ranks.size() <= kMost) return list_of(ranks);
  return fmt::format("{} and {} more", list_of(ranks.first(kMost)), ranks.size() - kMost);
}

}  // namespace

void LateWatch::begin(const Round& round) {
  told_.clear();
  due_s_ = telling_.line ? telling_.after_s : kNever;
  if (long_waits_.empty()) return;
  const auto known = long_waits_.find(label_of(round.header));
  if (known != long_waits_.end())
    due_s_ = std::max(due_s_, 2 * std::min(known->second[0], known->second[1]));
}

void LateWatch::tell(const Round& round, double waited_s, std::span<const int> partners,
                     std::span<const int> late) {
  due_s_ = kNever;
  for (const int partner : partners)
    if (partner < rank_ && std::ranges::find(late, partner) == late.end()) return;  // it reports
  told_ = short_list_of(late);
  waited_s_ = waited_s;
  told_at_ = Clock::now();
  telling_.line(fmt::format("rank {} waits for {}: {}, {:.0f} s; the run ends after {:.4g} s",
                            rank_, told_, title_of(round.header), waited_s, round.timeout_s));
}

void LateWatch::end(const Round& round) {
  if (told_.empty()) return;
  const double waited_s = waited_s_ + seconds_since(told_at_);
  telling_.line(fmt::format("{} came after {:.0f} s, and rank {} goes on", told_, waited_s, rank_));
  auto& last = long_waits_[std::string(label_of(round.header))];
  last = {last[1], waited_s};
  told_.clear();
}

}  // namespace ashlar::comm
