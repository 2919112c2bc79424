#include "ashlar/core/pulse_hang.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace ashlar {
namespace {

// An operation, as all ranks of its group name it.
struct HangKey {
  uint64_t group = 0;
  int64_t number = -1;
  auto operator<=>(const HangKey&) const = default;
};

HangKey key_of(const PulsePage& page, const PulseOperation& operation) {
  return {page.groups[size_t(operation.group)].id, operation.number};
}

// The operation that holds up the rank's thread: null: it does not wait.
const PulseOperation* blocking(const PulsePage& page) {
  const PulseOperation* const awaited = page.awaited();
  if (!awaited || !awaited->pending()) return nullptr;
  return &*std::ranges::find_if(page.operations, [&](const PulseOperation& operation) {
    return operation.pending() && operation.lane == awaited->lane;
  });
}

// Ranks that are held up by one operation.
struct Held {
  std::vector<int> waiting;
  const PulsePage* page = nullptr;  // of the first of them
  const PulseOperation* operation = nullptr;
};
using HeldBy = std::map<HangKey, Held>;

HeldBy held_ranks(const std::map<int, PulsePage>& pages) {
  HeldBy held;
  for (const auto& [rank, page] : pages) {
    const PulseOperation* const operation = blocking(page);
    if (!operation) continue;
    Held& here = held[key_of(page, *operation)];
    if (here.waiting.empty()) here.page = &page, here.operation = operation;
    here.waiting.push_back(rank);
  }
  return held;
}

// How the ranks of the operation's group stand to it, as far as they have pages.
struct Arrivals {
  std::vector<int> missing;  // have not queued it
  bool all_seen = false;     // every rank has a page
};
Arrivals arrivals_at(const HangKey& key, const Held& held, const std::map<int, PulsePage>& pages) {
  Arrivals arrivals;
  int64_t num_seen = 0;
  for (const auto& [rank, page] : pages) {
    const auto group = std::ranges::find(page.groups, key.group, &PulseGroup::id);
    if (group == page.groups.end()) continue;
    ++num_seen;
    // A rank that waits elsewhere may have no part in an operation without a number.
    const bool queued = key.number < 0 ? blocking(page) != nullptr : group->posted > key.number;
    if (!queued) arrivals.missing.push_back(rank);
  }
  arrivals.all_seen = num_seen >= held.page->groups[size_t(held.operation->group)].size;
  return arrivals;
}

// Ranks may contribute unequal amounts to some operations.
bool same_operation(const PulseOperation& a, const PulseOperation& b) {
  const bool uneven = a.op == "all_to_all" || a.op == "send_receive";
  return a.op == b.op && a.label == b.label && (uneven || a.bytes == b.bytes);
}

// The ranks that have queued something else than the majority does under the number; of two equal
// parts, the one without the lowest rank.
std::vector<int> deviating_ranks(const HangKey& key, const std::map<int, PulsePage>& pages) {
  std::vector<std::pair<const PulseOperation*, std::vector<int>>> kinds;
  for (const auto& [rank, page] : pages)
    for (const PulseOperation& operation : page.operations) {
      if (key_of(page, operation) != key) continue;
      auto kind = std::ranges::find_if(
          kinds, [&](const auto& k) { return same_operation(*k.first, operation); });
      if (kind == kinds.end()) kind = kinds.insert(kind, {&operation, {}});
      kind->second.push_back(rank);
    }
  std::vector<int> ranks;
  if (kinds.size() < 2) return ranks;
  const auto usual =
      std::ranges::max_element(kinds, {}, [](const auto& kind) { return kind.second.size(); });
  for (auto kind = kinds.begin(); kind != kinds.end(); ++kind)
    if (kind != usual) ranks.insert(ranks.end(), kind->second.begin(), kind->second.end());
  std::ranges::sort(ranks);
  return ranks;
}

PulseHang make_hang(PulseHang::Kind kind, std::vector<int> ranks, const Held& held) {
  return {kind, std::move(ranks), held.waiting, *held.operation,
          held.page->groups[size_t(held.operation->group)].name};
}

const Held& largest(const HeldBy& held) {
  return std::ranges::max_element(held, {}, [](const auto& h) { return h.second.waiting.size(); })
      ->second;
}

}  // namespace

PulseHang find_hang(const std::map<int, PulsePage>& pages) {
  const HeldBy held = held_ranks(pages);
  std::set<int> waiting, missing, absent;
  for (const auto& [key, here] : held) waiting.insert(here.waiting.begin(), here.waiting.end());
  HeldBy missed, complete, unseen;  // lack ranks that do not wait; lack none; none that has a page
  for (const auto& [key, here] : held) {
    if (key.number >= 0)
      if (std::vector<int> ranks = deviating_ranks(key, pages); !ranks.empty())
        return make_hang(PulseHang::Kind::kMismatch, std::move(ranks), here);
    const Arrivals arrivals = arrivals_at(key, here, pages);
    if (arrivals.missing.empty()) (arrivals.all_seen ? complete : unseen)[key] = here;
    for (const int rank : arrivals.missing) {
      missing.insert(rank);
      if (waiting.contains(rank)) continue;
      absent.insert(rank);
      missed[key] = here;
    }
  }
  if (!absent.empty())
    return make_hang(PulseHang::Kind::kMissing, {absent.begin(), absent.end()}, largest(missed));
  if (!complete.empty()) return make_hang(PulseHang::Kind::kAllArrived, {}, largest(complete));
  if (!unseen.empty()) return make_hang(PulseHang::Kind::kMissing, {}, largest(unseen));
  if (!missing.empty())
    return make_hang(PulseHang::Kind::kMismatch, {missing.begin(), missing.end()}, largest(held));
  PulseHang working;
  for (const auto& [rank, page] : pages) working.ranks.push_back(rank);
  return working;
}

std::string place_text(const PulsePage& page) {
  std::string text(name_of(page.place));
  if (page.block >= 0) text += fmt::format(" of block {}", page.block);
  return text;
}

std::string format_ranks(std::span<const int> ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("{}{}", last == i + 1 ? ", " : "-", ranks[last]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string describe(const PulseHang& hang, const std::map<int, PulsePage>& pages, int64_t now_ns) {
  using Kind = PulseHang::Kind;
  const PulseOperation& op = hang.operation;
  const std::string what =
      fmt::format("{} '{}' ({}{})", op.op, op.label,
                  op.number < 0 ? "" : fmt::format("number {} of ", op.number), hang.group);
  const std::string who = format_ranks(hang.ranks);
  const std::string waiting =
      fmt::format("{} wait{}", format_ranks(hang.waiting), hang.waiting.size() == 1 ? "s" : "");
  if (hang.kind == Kind::kAllArrived)
    return fmt::format("all ranks have come to {}, and it does not end", what);
  if (hang.ranks.empty())
    return fmt::format("{} for {}; all ranks with a page have come to it, and others have none",
                       waiting, what);
  const PulsePage& first = pages.at(hang.ranks.front());
  const std::string where = fmt::format(
      "silent {:.0f} s in {}", double(now_ns - first.moved_ns()) * 1e-9, place_text(first));
  if (hang.kind == Kind::kWorking) return fmt::format("{}: {}; no rank waits", who, where);
  if (hang.kind == Kind::kMissing)
    return fmt::format("{} did not come to {}, {}; {}", who, what, where, waiting);
  return fmt::format("{} came to something else than {}, {}; {}", who, what, where, waiting);
}

}  // namespace ashlar
