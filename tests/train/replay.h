// Replays what ranks recorded (tensor/trace.h): every rank goes through its posts and waits, and
// every lane through its operations, one at a time and in the order of their posts.
//
//   collective      ends when it stands first in the lanes of all members; members know each
//                   other's by group and number
//   send_receive    ends when all its messages have; the k-th message from a to b of a group is
//                   the k-th that b expects of a, and ends when both operations stand first
//   wait            passes when its operation has ended, or was posted before the recording
//
// Lanes hold any number of operations, where a queue has room for some.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ashlar/tensor/trace.h"

namespace ashlar::train::testing_support {

struct Program {
  const Trace* trace;  // for its names
  std::vector<TraceEvent> events;
};

class Replay {
 public:
  explicit Replay(const std::vector<Program>& programs) : programs_(programs) {
    for (size_t r = 0; r < programs.size(); ++r) {
      Rank& rank = ranks_.emplace_back();
      rank.lanes.resize(size_t(programs[r].trace->num_lanes()));
      for (const TraceEvent& e : programs[r].events)
        if (e.kind == TraceEvent::Kind::kPost) rank.posted.insert({e.lane, e.ticket});
    }
  }

  // "" if every rank came to its end; else what is wrong, or who waits for what.
  std::string run() {
    bool moved = true;
    while (moved && problem_.empty()) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) moved |= advance(r);
      for (size_t r = 0; r < ranks_.size(); ++r)
        for (auto& lane : ranks_[r].lanes) moved |= !lane.empty() && try_end(r, *lane.front());
    }
    if (!problem_.empty()) return problem_;
    std::string text;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      if (rank.at < programs_[r].events.size())
        text += fmt::format("rank {} waits for {} at event {}\n", r,
                            programs_[r].events[rank.at].ticket, rank.at);
      for (const auto& lane : rank.lanes)
        if (!lane.empty()) text += fmt::format("rank {} is in {}\n", r, name_of(r, *lane.front()));
    }
    return text;
  }

 private:
  using Event = TraceEvent;
  using GroupKey = std::pair<std::string, std::vector<int>>;
  using MessageKey = std::tuple<GroupKey, int, int, int64_t>;  // from, to, k
  struct Rank {
    size_t at = 0;
    std::vector<std::deque<const Event*>> lanes;
    std::set<std::pair<int, int64_t>> posted, ended;  // lane, ticket
    std::map<const Event*, std::vector<MessageKey>> under_way;
    std::map<std::tuple<GroupKey, int, int>, int64_t> num_sent, num_received;
  };
  struct Ends {
    int64_t sent_bytes = -1, expected_bytes = -1;
  };

  bool advance(size_t r) {
    Rank& rank = ranks_[r];
    const size_t before = rank.at;
    for (; rank.at < programs_[r].events.size(); ++rank.at) {
      const Event& e = programs_[r].events[rank.at];
      const std::pair<int, int64_t> id{e.lane, e.ticket};
      if (e.kind == Event::Kind::kWait && rank.posted.contains(id) && !rank.ended.contains(id))
        break;
      if (e.kind == Event::Kind::kPost && e.lane >= 0) rank.lanes[size_t(e.lane)].push_back(&e);
    }
    return rank.at > before;
  }

  bool try_end(size_t r, const Event& e) {
    return e.number >= 0 ? try_collective(r, e) : try_messages(r, e);
  }

  bool try_collective(size_t r, const Event& mine) {
    std::vector<std::pair<size_t, const Event*>> members;
    for (const int member : group_of(r, mine).second) {
      const Event* theirs = nullptr;
      for (const auto& lane : ranks_[size_t(member)].lanes)
        if (!lane.empty() && lane.front()->number == mine.number &&
            group_of(size_t(member), *lane.front()) == group_of(r, mine))
          theirs = lane.front();
      if (!theirs) return false;
      members.push_back({size_t(member), theirs});
    }
    for (const auto& [member, theirs] : members) {
      // With counts, sizes may differ.
      const bool uneven = name_of(r, mine).starts_with("all_to_all") && mine.num_items > 0;
      if (name_of(member, *theirs) != name_of(r, mine) || theirs->root != mine.root ||
          theirs->dtype != mine.dtype || (!uneven && theirs->bytes != mine.bytes))
        problem_ =
            fmt::format("rank {}: {} of {} bytes; rank {}: {} of {} bytes", r, name_of(r, mine),
                        mine.bytes, member, name_of(member, *theirs), theirs->bytes);
    }
    for (const auto& [member, theirs] : members) end(member, *theirs);
    return true;
  }

  bool try_messages(size_t r, const Event& e) {
    Rank& rank = ranks_[r];
    if (!rank.under_way.contains(&e)) begin_messages(r, e);
    for (const MessageKey& key : rank.under_way[&e]) {
      const Ends& ends = messages_[key];
      if (ends.sent_bytes < 0 || ends.expected_bytes < 0) return false;
      if (ends.sent_bytes != ends.expected_bytes)
        problem_ = fmt::format("rank {}, {}: {} bytes are sent, {} expected", r, name_of(r, e),
                               ends.sent_bytes, ends.expected_bytes);
    }
    end(r, e);
    return true;
  }

  void begin_messages(size_t r, const Event& e) {
    Rank& rank = ranks_[r];
    const GroupKey group = group_of(r, e);
    std::vector<MessageKey>& keys = rank.under_way[&e];
    for (const TraceMessage& m : programs_[r].trace->messages(e)) {
      const int from = m.sends ? int(r) : m.rank, to = m.sends ? m.rank : int(r);
      auto& counts = m.sends ? rank.num_sent : rank.num_received;
      const MessageKey& key = keys.emplace_back(group, from, to, counts[{group, from, to}]++);
      (m.sends ? messages_[key].sent_bytes : messages_[key].expected_bytes) = m.bytes;
    }
  }

  void end(size_t r, const Event& e) {
    ranks_[r].ended.insert({e.lane, e.ticket});
    ranks_[r].lanes[size_t(e.lane)].pop_front();
  }

  GroupKey group_of(size_t r, const Event& e) const {
    const TraceGroup& group = programs_[r].trace->group(e.group);
    return {group.name, group.world_ranks};
  }
  std::string name_of(size_t r, const Event& e) const {
    const Trace& trace = *programs_[r].trace;
    return fmt::format("{} '{}' (number {} of {})", trace.text(e.name), trace.text(e.label),
                       e.number, trace.group(e.group).name);
  }

  const std::vector<Program>& programs_;
  std::vector<Rank> ranks_;
  std::map<MessageKey, Ends> messages_;
  std::string problem_;
};

}  // namespace ashlar::train::testing_support
