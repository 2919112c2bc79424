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

void fail_late(const Round& round, std::span<const int> absent, std::span<const int> unfinished) {
  std::string text = fmt::format("{}: waited {:g} s", title_of(round.header), round.timeout_s);
  if (!absent.empty()) text += "; not arrived: " + list_of(absent);
  if (!unfinished.empty()) text += "; arrived but did not finish: " + list_of(unfinished);
  ASHLAR_FAIL(kComm,
              "{}; see what they printed last, whether they still run, and whom they wait for",
              text);
}

Failure failure_of(int rank, const std::exception_ptr& error) {
  const Report report = report_of(error);
  return {rank, report.exit_code, report.message};
}

void fail_because(const Failure& failure) {
  ASHLAR_FAIL(kComm, "rank {} failed: {}", failure.rank, failure.message);
}

}  // namespace ashlar::comm
