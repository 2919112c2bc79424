// How it works.  The messages of SaveTree: each kind has one send_ and one take_, with the same
// fields.  received() reads a message to its end; a message that cannot be read comes from another
// program or from a fault of this one, and breaks the tree.
#include <fmt/core.h>

#include "ashlar/checkpoint/writers/save_tree.h"

namespace ashlar::checkpoint {
namespace {

using control::WireReader;
using control::WireWriter;

enum Kind : uint16_t {
  kStatus = 1,  // up
  kPart,
  kFailure,
  kBoxes,
  kResult,
  kAttemptResult,  // down
  kAsk,
  kResend,
  kOrder,
  kBroken,  // both ways
};

constexpr double kAskAgain_s = 5;

void put(WireWriter& out, const CoverHash& hash) {
  for (const uint64_t lane : hash.lanes) out.put(lane);
}
CoverHash get_cover(WireReader& in) {
  CoverHash hash;
  for (uint64_t& lane : hash.lanes) lane = in.get<uint64_t>();
  return hash;
}

// Times are sent as ages, since clocks of machines differ.
void put(WireWriter& out, const RankStatus& status, double now) {
  out.put(status.attempt);
  out.put(uint32_t(status.rank));
  out.put_text(status.host);
  out.put(uint8_t(status.phase));
  out.put(uint8_t(status.silent));
  out.put(now - status.since);
  out.put(status.bytes);
  out.put(status.total_bytes);
}
RankStatus get_status(WireReader& in, double now) {
  RankStatus status;
  status.attempt = in.get<Id>();
  status.rank = int(in.get<uint32_t>());
  status.host = in.get_text();
  const auto phase = in.get<uint8_t>();
  ASHLAR_REQUIRE(phase < kNumPhases, kComm, "phase {} is none", phase);
  status.phase = Phase(phase);
  status.silent = in.get<uint8_t>() != 0;
  status.since = now - in.get<double>();
  status.bytes = in.get<int64_t>();
  status.total_bytes = in.get<int64_t>();
  return status;
}

}  // namespace

void SaveTree::send(int to, uint16_t kind, WireWriter body) {
  outgoing_.push_back({to, kind, body.take()});
}

void SaveTree::send_down(uint16_t kind, const std::vector<std::byte>& body) {
  for (const int child : children()) outgoing_.push_back({child, kind, body});
}

void SaveTree::break_off(const std::string& why) {
  if (broken_) return;
  broken_ = why;
  for (const int child : children()) send_broken(child);
  if (!leads()) send_broken(parent());
}

void SaveTree::send_broken(int to) {
  WireWriter out;
  out.put_text(*broken_);
  send(to, kBroken, std::move(out));
}

void SaveTree::ask(const Id& attempt, const std::vector<int>& ranks, double now) {
  const auto found = open_.find(attempt);
  if (found == open_.end()) return;
  Open& here = found->second;
  if (!here.asked.empty() && now - here.asked_at < kAskAgain_s) return;
  here.asked = ranks;
  here.asked_at = now;
  WireWriter out;
  out.put(attempt);
  out.put(uint32_t(ranks.size()));
  for (const int rank : ranks) out.put(uint32_t(rank));
  send_down(kAsk, out.take());
}

void SaveTree::send_part(const Id& attempt, Open& here) {
  GatheredParts all = *here.own;
  for (const auto& [child, said] : here.children) all.add(said.parts);
  WireWriter out;
  out.put(attempt);
  out.put(here.step);
  out.put(all.count);
  put(out, all.cover);
  out.put_text(here.witness.path);
  out.put(here.witness.size_bytes);
  out.put_bytes(all.entries);
  send(parent(), kPart, std::move(out));
  here.sent = true;
}

void SaveTree::send_failure(const Id& attempt, const Open& here) {
  WireWriter out;
  out.put(attempt);
  out.put(here.step);
  out.put(uint32_t(here.failure->rank));
  out.put_text(here.failure->why);
  send(parent(), kFailure, std::move(out));
}

void SaveTree::send_attempt_result(int to, const AttemptResult& result) {
  WireWriter out;
  out.put(result.attempt);
  out.put(result.step);
  out.put(uint8_t(result.committed));
  out.put_text(result.why);
  send(to, kAttemptResult, std::move(out));
}

void SaveTree::send_boxes(const Id& attempt, int rank, std::span<const std::byte> boxes) {
  WireWriter out;
  out.put(attempt);
  out.put(uint32_t(rank));
  out.put_bytes(boxes);
  send(parent(), kBoxes, std::move(out));
}

void SaveTree::send_order(int child, const Id& attempt, const Reading& reading) {
  WireWriter out;
  out.put(attempt);
  out.put(reading.step);
  for (const auto& [rank, what] : reading.tasks) {
    if (rank != child && tree_->next_hop(rank_, rank) != child) continue;
    out.put(uint32_t(rank));
    out.put_block(what);
  }
  send(child, kOrder, std::move(out));
}

void SaveTree::send_result(const Id& attempt, const Reading& reading) {
  WireWriter out;
  out.put(attempt);
  out.put(reading.all->count);
  out.put(reading.all->bytes);
  out.put(int32_t(reading.all->bad_rank));
  out.put(uint8_t(reading.all->damaged));
  out.put_text(reading.all->why);
  for (const RankTimes& times : reading.all->ranks) checkpoint::put(out, times);
  send(parent(), kResult, std::move(out));
}

void SaveTree::heartbeat(double now) {
  last_heartbeat_ = now;
  if (leads()) return;
  if (broken_) return send_broken(parent());
  WireWriter out;
  out.put_text(host_);
  out.put(uint32_t(open_.size()));
  std::vector<RankStatus> slow;
  for (const auto& [attempt, here] : open_) {
    out.put(attempt);
    out.put(here.step);
    out.put(uint8_t(here.sent));
    out.put(uint8_t(here.failure.has_value()));
    if (here.sent) continue;
    const auto those = slowest(attempt, now);
    slow.insert(slow.end(), those.begin(), those.end());
  }
  out.put(uint32_t(readings_.size()));
  for (const auto& [attempt, reading] : readings_) {
    out.put(attempt);
    out.put(uint8_t(reading.all.has_value()));
    if (reading.all) continue;
    const auto those = slowest(attempt, now);
    slow.insert(slow.end(), those.begin(), those.end());
  }
  out.put(uint32_t(slow.size()));
  for (const RankStatus& status : slow) put(out, status, now);
  send(parent(), kStatus, std::move(out));
}

void SaveTree::received(int from, uint16_t kind, std::span<const std::byte> body, double now) {
  if (broken_) {
    if (kind != kBroken) send_broken(from);  // it does not know
    return;
  }
  if (const auto heard = heard_.find(from); heard != heard_.end()) heard->second.at = now;
  const bool down = from == parent();
  ASHLAR_ASSERT(down || heard_.contains(from));
  WireReader in(body);
  try {
    ASHLAR_REQUIRE(kind == kBroken || down == (kAttemptResult <= kind && kind <= kOrder), kComm,
                   "kind {} is not one", kind);
    switch (kind) {
      case kStatus:
        return take_status(from, in, now);
      case kPart:
        return take_part(from, in, now);
      case kFailure:
        return take_failure(in, now);
      case kBoxes:
        return take_boxes(in);
      case kResult:
        return take_result(from, in);
      case kAttemptResult:
        return take_attempt_result(in);
      case kAsk:
        return take_ask(in);
      case kResend:
        return take_resend(in);
      case kOrder:
        return take_order(in, now);
      case kBroken:
        return break_off(in.get_text());
      default:
        ASHLAR_FAIL(kComm, "kind {} is not one", kind);
    }
  } catch (const Error& error) {
    break_off(
        fmt::format("rank {} cannot read a message of rank {}: {}", rank_, from, error.what()));
  }
}

void SaveTree::take_status(int from, WireReader& in, double now) {
  Heard& heard = heard_.at(from);
  heard.host = in.get_text();
  for (auto count = in.get<uint32_t>(); count > 0; --count) {
    const auto attempt = in.get<Id>();
    const auto step = in.get<int64_t>();
    const bool sent = in.get<uint8_t>() != 0, failed = in.get<uint8_t>() != 0;
    if (const auto known = result(attempt)) {
      send_attempt_result(from, *known);
      continue;
    }
    const Open& here = open(attempt, step, now);
    if ((sent && !here.children.contains(from)) || (failed && !here.failure)) {
      WireWriter out;
      out.put(attempt);
      send(from, kResend, std::move(out));
    }
  }
  std::map<Id, bool> known;  // readings of the child, and whether it sent a result
  for (auto count = in.get<uint32_t>(); count > 0; --count) {
    const auto attempt = in.get<Id>();
    known[attempt] = in.get<uint8_t>() != 0;
  }
  for (const auto& [attempt, reading] : readings_) {
    if (reading.children.contains(from)) continue;
    const auto found = known.find(attempt);
    if (found == known.end()) {
      send_order(from, attempt, reading);
    } else if (found->second) {
      WireWriter out;
      out.put(attempt);
      send(from, kResend, std::move(out));
    }
  }
  heard.slowest.clear();
  for (auto count = in.get<uint32_t>(); count > 0; --count)
    heard.slowest.push_back(get_status(in, now));
  in.end();
}

void SaveTree::take_part(int from, WireReader& in, double now) {
  const auto attempt = in.get<Id>();
  const auto step = in.get<int64_t>();
  ChildParts said;
  GatheredParts& parts = said.parts;
  parts.count = in.get<uint32_t>();
  parts.cover = get_cover(in);
  said.witness.path = in.get_text();
  said.witness.size_bytes = in.get<int64_t>();
  said.seen = said.witness.path.empty();
  parts.entries.assign(in.rest().begin(), in.rest().end());
  ASHLAR_REQUIRE(parts.count == uint32_t(tree_->subtree[size_t(from)]), kComm,
                 "it has the parts of {} writers where {} are expected", parts.count,
                 tree_->subtree[size_t(from)]);
  if (const auto known = result(attempt)) return send_attempt_result(from, *known);
  if (!open(attempt, step, now).children.try_emplace(from, std::move(said)).second) return;
  pass_up(attempt);
}

void SaveTree::take_failure(WireReader& in, double now) {
  const auto attempt = in.get<Id>();
  const auto step = in.get<int64_t>();
  const int rank = int(in.get<uint32_t>());
  const std::string why = in.get_text();
  in.end();
  if (result(attempt)) return;
  Open& here = open(attempt, step, now);
  if (here.failure) return;
  here.failure = {rank, why};
  if (!leads()) send_failure(attempt, here);
}

void SaveTree::take_boxes(WireReader& in) {
  const auto attempt = in.get<Id>();
  const int rank = int(in.get<uint32_t>());
  if (!leads()) return send_boxes(attempt, rank, in.rest());
  const auto found = open_.find(attempt);
  if (found != open_.end()) found->second.boxes[rank] = {in.rest().begin(), in.rest().end()};
}

void SaveTree::take_result(int from, WireReader& in) {
  const auto attempt = in.get<Id>();
  ReadBackResult result;
  result.count = in.get<uint32_t>();
  result.bytes = in.get<int64_t>();
  result.bad_rank = in.get<int32_t>();
  result.damaged = in.get<uint8_t>() != 0;
  result.why = in.get_text();
  while (!in.rest().empty()) result.ranks.push_back(get_rank_times(in));
  const auto found = readings_.find(attempt);
  if (found == readings_.end() || !found->second.children.try_emplace(from, result).second) return;
  pass_result(attempt);
}

void SaveTree::take_attempt_result(WireReader& in) {
  AttemptResult result;
  result.attempt = in.get<Id>();
  result.step = in.get<int64_t>();
  result.committed = in.get<uint8_t>() != 0;
  result.why = in.get_text();
  in.end();
  settle(result);
}

void SaveTree::take_ask(WireReader& in) {
  const auto body = in.rest();
  const auto attempt = in.get<Id>();
  bool here = false;
  for (auto count = in.get<uint32_t>(); count > 0; --count)
    here |= int(in.get<uint32_t>()) == rank_;
  in.end();
  send_down(kAsk, {body.begin(), body.end()});
  const auto found = open_.find(attempt);
  if (here && found != open_.end() && found->second.own)
    send_boxes(attempt, rank_, found->second.with_boxes);
}

void SaveTree::take_resend(WireReader& in) {
  const auto attempt = in.get<Id>();
  in.end();
  if (const auto found = open_.find(attempt); found != open_.end()) {
    if (found->second.failure) send_failure(attempt, found->second);
    if (found->second.sent) send_part(attempt, found->second);
  }
  if (const auto found = readings_.find(attempt); found != readings_.end() && found->second.all)
    send_result(attempt, found->second);
}

void SaveTree::take_order(WireReader& in, double now) {
  const auto attempt = in.get<Id>();
  const auto step = in.get<int64_t>();
  std::map<int, std::vector<std::byte>> tasks;
  while (!in.rest().empty()) {
    const int rank = int(in.get<uint32_t>());
    const auto what = in.get_block();
    tasks[rank] = {what.begin(), what.end()};
  }
  order(attempt, step, std::move(tasks), now);
}

}  // namespace ashlar::checkpoint
