#include "ashlar/comm/transport.h"

#include <algorithm>

#include "ashlar/core/rng.h"

namespace ashlar::comm {
namespace {

constexpr std::string_view kNames[kNumOps] = {"all_reduce",   "reduce_scatter", "all_gather",
                                              "broadcast",    "reduce",         "all_to_all",
                                              "send_receive", "barrier"};

template <size_t kSize>
std::string_view text_of(const char (&text)[kSize]) {
  const std::string_view whole(text, kSize);
  return whole.substr(0, whole.find('\0'));
}

std::string what_of(const Announcement& a) {
  std::string text = title_of(a.header);
  if (a.header.count > 0)
    text += fmt::format(" with {} elements of {}", a.header.count, name_of(a.header.dtype));
  return text + fmt::format(" (root {}, step {}, sends {} bytes in {}, expects {} in {})",
                            a.header.root, a.header.step, a.sends.bytes, a.sends.messages,
                            a.receives.bytes, a.receives.messages);
}

std::string late_text(const Header& header, double waited_s, std::span<const int> absent,
                      std::span<const int> unfinished) {
  std::string text = fmt::format("{}: waited {:.3g} s", title_of(header), waited_s);
  if (!absent.empty()) text += "; not arrived: " + list_of(absent);
  if (!unfinished.empty()) text += "; arrived but did not finish: " + list_of(unfinished);
  return text + "; see what they printed last, whether they still run, and whom they wait for";
}

}  // namespace

std::string_view name_of(Op op) {
  return kNames[int(op)];
}

Op op_of(std::string_view name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  ASHLAR_ASSERT(found != std::end(kNames));
  return Op(found - std::begin(kNames));
}

std::span<const Message> messages_of(std::span<const Message> messages, int peer) {
  const auto begin = std::lower_bound(messages.begin(), messages.end(), peer,
                                      [](const Message& m, int p) { return m.peer < p; });
  auto end = begin;
  while (end != messages.end() && end->peer == peer) ++end;
  return {begin, end};
}

Amount amount_of(std::span<const Message> messages) {
  Amount amount;
  for (const Message& message : messages) {
    ++amount.messages;
    amount.bytes += message.bytes;
    amount.sizes = splitmix64(amount.sizes ^ uint64_t(message.bytes));
  }
  return amount;
}

Announcement announcement_for(const Round& round, int peer) {
  return {round.header, amount_of(messages_of(round.sends, peer)),
          amount_of(messages_of(round.receives, peer))};
}

std::string title_of(const Header& header) {
  return fmt::format("{} '{}' (number {} of group {})", name_of(header.op), text_of(header.label),
                     header.sequence, text_of(header.group_name));
}

std::string list_of(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? " " : ", ", ranks[i]);
  return text;
}

void require_match(const Announcement& mine, int me, const Announcement& theirs, int peer) {
  if (mine.header == theirs.header && mine.sends == theirs.receives &&
      mine.receives == theirs.sends)
    return;
  ASHLAR_FAIL(kComm,
              "rank {} and rank {} do not call the same: rank {} calls {}; rank {} calls {}; all "
              "ranks must call the same operations in the same order",
              me, peer, me, what_of(mine), peer, what_of(theirs));
}

double Awaited::seconds_since(Clock::time_point start) const {
  if (num_waiting_ == 0) return 0;
  const Clock::time_point since{Clock::duration(since_.load())};
  return ashlar::seconds_since(std::max(start, since));
}

LateError::LateError(const Header& header, double waited_s, std::span<const int> absent,
                     std::span<const int> unfinished)
    : Error(ErrorKind::kComm, late_text(header, waited_s, absent, unfinished)) {
  const std::span<const int> ranks = absent.empty() ? unfinished : absent;
  ranks_.assign(ranks.begin(), ranks.end());
}

Failure failure_of(int rank, const std::exception_ptr& error) {
  const Report report = report_of(error);
  Failure failure{rank, report.exit_code, report.message, {}};
  try {
    std::rethrow_exception(error);
  } catch (const LateError& late) {
    failure.awaits = late.ranks();
  } catch (...) {
  }
  return failure;
}

const Failure& cause_of(const Failure& first, std::span<const Failure> others) {
  const auto waits = [&](int rank) {
    return rank == first.rank || std::any_of(others.begin(), others.end(),
                                             [&](const Failure& f) { return f.rank == rank; });
  };
  const auto num_that_wait = [&](const Failure& failure) {
    return std::count_if(failure.awaits.begin(), failure.awaits.end(), waits);
  };
  const Failure* cause = &first;
  for (const Failure& other : others)
    if (num_that_wait(other) < num_that_wait(*cause)) cause = &other;
  return *cause;
}

void fail_because(const Failure& failure) {
  ASHLAR_FAIL(kComm, "rank {} failed: {}", failure.rank, failure.message);
}

}  // namespace ashlar::comm
