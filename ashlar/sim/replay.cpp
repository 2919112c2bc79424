#include "ashlar/sim/replay.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/sim/replayer.h"

namespace ashlar::sim {

using EventKind = ProgramEvent::Kind;

Replayed replay(const RankPrograms& programs, Costs& costs, const ReplayOptions& options) {
  return Replayer(programs, costs, options).run();
}

Replayer::Replayer(const RankPrograms& programs, Costs& costs, const ReplayOptions& options)
    : programs_(programs), costs_(costs), options_(options), spans_(programs.ranks.size()) {
  costs_.build(sets_);
  for (const RankProgram& program : programs.ranks)
    ranks_.emplace_back().lanes.resize(program.lanes.size());
  for (const RankGroup& group : programs.groups) num_begun_.emplace_back(group.simulated.size());
  open_meetings_.resize(programs.groups.size());
}

Replayed Replayer::run() {
  for (int rank = 0; rank < int(ranks_.size()); ++rank) {
    if (!programs_.simulates(rank)) continue;
    begin_read(rank);
    ready_.push_back({Then::Kind::kAdvance, rank});
  }
  run_ready();
  while (problem_.empty()) {
    // Before time goes on, rates are solved for all that has happened.
    if (moments_.empty() || moments_.top().at_s > now_s_) plan_sets();
    if (moments_.empty()) break;
    const Moment moment = moments_.top();
    moments_.pop();
    std::erase_if(recent_, [&](const Moment& other) { return other.list == moment.list; });
    for (size_t i = 0; i < lists_[size_t(moment.list)].size() && problem_.empty(); ++i) {
      const Planned planned = lists_[size_t(moment.list)][i];
      if (planned.set >= 0) {
        if (sets_.version(planned.set) != planned.version) continue;
        sets_.end(planned.set, moment.at_s);
      }
      now_s_ = moment.at_s;
      act(planned.then);
      run_ready();
    }
    lists_[size_t(moment.list)].clear();
    free_lists_.push_back(moment.list);
  }
  return result();
}

void Replayer::run_ready() {
  while (!ready_.empty()) {
    const Then then = ready_.front();
    ready_.pop_front();
    act(then);
  }
}

// Much happens at the same moments, since ranks do alike.
void Replayer::plan(double at_s, const Planned& planned) {
  constexpr size_t kRecent = 4;
  for (const Moment& moment : recent_)
    if (moment.at_s == at_s) return lists_[size_t(moment.list)].push_back(planned);
  if (free_lists_.empty()) {
    free_lists_.push_back(int32_t(lists_.size()));
    lists_.emplace_back();
  }
  const Moment moment{at_s, order_++, free_lists_.back()};
  free_lists_.pop_back();
  lists_[size_t(moment.list)].push_back(planned);
  moments_.push(moment);
  if (recent_.size() == kRecent) recent_.erase(recent_.begin());
  recent_.push_back(moment);
}

void Replayer::plan_sets() {
  for (const int set : sets_.take_changed())
    plan(sets_.end_s(set), {then_of_set_[size_t(set)], set, sets_.version(set)});
}

void Replayer::start_set(double work, double limit, std::span<const ResourceUse> uses,
                         const Then& then) {
  const size_t set = size_t(sets_.start(work, limit, uses, now_s_));
  if (set >= then_of_set_.size()) then_of_set_.resize(set + 1);
  then_of_set_[set] = then;
  if (then.kind == Then::Kind::kKernel) ranks_[size_t(then.a)].kernel_set = int(set);
}

void Replayer::act(const Then& then) {
  switch (then.kind) {
    case Then::Kind::kAdvance:
      return advance(then.a);
    case Then::Kind::kStartLane:
      return start_lane(then.a, then.b);
    case Then::Kind::kKernel:
      ranks_[size_t(then.a)].kernel_set = -1;
      return unblock(then.a);
    case Then::Kind::kKernels:
      ranks_[size_t(then.a)].block = Block::kNone;
      return advance(then.a);
    case Then::Kind::kRead:
      ranks_[size_t(then.a)].reading = false;
      if (ranks_[size_t(then.a)].block == Block::kStall) unblock(then.a);
      return;
    case Then::Kind::kLatency:
      return start_part(then.a);
    case Then::Kind::kLinks:
      return end_part_of(then.a);
    case Then::Kind::kWoken:
      return start_core(then.a, then.b);
    case Then::Kind::kCore:
      return end_member(then.a, then.b);
    case Then::Kind::kMessage:
      return move(then.a);
    case Then::Kind::kMessageCore:
      return receive(then.a);
    case Then::Kind::kMessageDone:
      return end_message(then.a);
  }
}

void Replayer::advance(int rank) {
  while (step_through(rank)) {
  }
}

bool Replayer::step_through(int number) {
  Rank& rank = ranks_[size_t(number)];
  const RankProgram& program = programs_.ranks[size_t(number)];
  if (rank.block != Block::kNone || !problem_.empty()) return false;
  if (rank.at == program.events.size()) {
    if (rank.repeat + 1 >= options_.repeats || program.events.empty()) return false;
    ++rank.repeat;
    rank.at = 0;
  }
  const ProgramEvent& event = program.events[rank.at];
  switch (event.kind) {
    case EventKind::kKernel:
      run_kernel(number, event);
      return false;
    case EventKind::kPost:
      return post(number, event);
    case EventKind::kWait:
      return wait(number, event);
    case EventKind::kEndOfStep:
      return end_step(number);
  }
  return false;
}

void Replayer::run_kernel(int number, const ProgramEvent& event) {
  Rank& rank = ranks_[size_t(number)];
  rank.block = Block::kKernel;
  const CoreShare cores = costs_.cores(number);
  if (cores.resource < 0 && run_alone(number)) return;
  rank.since_s = now_s_;
  const ResourceUse use{cores.resource, cores.threads};
  const double limit = rank.num_moving > 0 ? 1 / costs_.contention(event) : 1;
  start_set(costs_.kernel_s(number, event), limit,
            cores.resource >= 0 ? std::span(&use, 1) : std::span<const ResourceUse>(),
            {Then::Kind::kKernel, number});
}

// Kernels that nothing else can slow down take their times, one after another: their end is one
// moment.
bool Replayer::run_alone(int number) {
  Rank& rank = ranks_[size_t(number)];
  const auto& events = programs_.ranks[size_t(number)].events;
  const size_t first = rank.at;
  double at_s = now_s_;
  for (; rank.at < events.size() && events[rank.at].kind == EventKind::kKernel; ++rank.at) {
    const ProgramEvent& event = events[rank.at];
    if (costs_.contention(event) != 1) break;
    const double end_s = at_s + costs_.kernel_s(number, event);
    rank.share.compute_s += end_s - at_s;
    keep(number, {.kind = ReplaySpan::Kind::kKernel,
                  .index = int32_t(rank.at),
                  .begin_s = at_s,
                  .end_s = end_s});
    at_s = end_s;
  }
  if (rank.at == first) return false;
  plan(at_s, {{Then::Kind::kKernels, number}});
  return true;
}

bool Replayer::post(int number, const ProgramEvent& event) {
  Rank& rank = ranks_[size_t(number)];
  const RankOperation& operation = programs_.ranks[size_t(number)].operations[size_t(event.value)];
  if (operation.lane >= 0) {
    Lane& lane = rank.lanes[size_t(operation.lane)];
    if (lane.posted - lane.ended >= kQueueOfALane) {
      rank.block = Block::kPost;
      rank.lane = operation.lane;
      rank.since_s = now_s_;
      return false;
    }
    ++lane.posted;
    if (!lane.busy) ready_.push_back({Then::Kind::kStartLane, number, operation.lane});
  }
  ++rank.at;
  return true;
}

bool Replayer::wait(int number, const ProgramEvent& event) {
  Rank& rank = ranks_[size_t(number)];
  Lane& lane = rank.lanes[size_t(event.lane)];
  const auto& operations = programs_.ranks[size_t(number)].lanes[size_t(event.lane)].operations;
  const int64_t operation = event.value + int64_t(rank.repeat) * int64_t(operations.size());
  if (operation < lane.ended) {
    ++rank.at;
    return true;
  }
  rank.block = Block::kWait;
  rank.lane = event.lane;
  rank.waits_for = operation;
  rank.since_s = now_s_;
  rank.moved_before_s = moved_s(lane);
  return false;
}

// The rank goes on behind the kernel or the wait that is over; a post is tried again.
void Replayer::unblock(int number) {
  Rank& rank = ranks_[size_t(number)];
  const double took_s = now_s_ - rank.since_s;
  const auto kind = ReplaySpan::Kind(int(rank.block) - 1);
  if (rank.block == Block::kKernel) {
    rank.share.compute_s += took_s;
  } else if (rank.block == Block::kWait) {
    const double exposed_s =
        std::min(took_s, moved_s(rank.lanes[size_t(rank.lane)]) - rank.moved_before_s);
    rank.share.exposed_s += exposed_s;
    rank.share.waiting_s += took_s - exposed_s;
  }
  keep(number, {.kind = rank.block == Block::kStall ? ReplaySpan::Kind::kStall : kind,
                .index = int32_t(rank.at),
                .begin_s = rank.since_s,
                .end_s = now_s_});
  const bool done = rank.block == Block::kKernel || rank.block == Block::kWait;
  rank.block = Block::kNone;
  if (done) ++rank.at;
  ready_.push_back({Then::Kind::kAdvance, number});
}

void Replayer::begin_read(int number) {
  const double bytes = costs_.read_bytes();
  const int disk = costs_.disk(number);
  if (bytes <= 0 || disk < 0) return;
  ranks_[size_t(number)].reading = true;
  const ResourceUse use{disk, 1};
  start_set(bytes, 0, std::span(&use, 1), {Then::Kind::kRead, number});
}

// The next step begins when its batch has been read.
bool Replayer::end_step(int number) {
  Rank& rank = ranks_[size_t(number)];
  if (rank.reading) {
    rank.block = Block::kStall;
    rank.since_s = now_s_;
    return false;
  }
  RankShare& share = rank.share;
  share.step_s = now_s_ - rank.step_began_s;
  share.between_s = share.step_s - share.compute_s - share.exposed_s - share.waiting_s;
  rank.step_ends_s.push_back(now_s_);
  ++rank.at;
  const size_t num_steps =
      size_t(options_.repeats) * size_t(programs_.ranks[size_t(number)].num_steps);
  if (rank.step_ends_s.size() < num_steps) {
    rank.step_began_s = now_s_;
    share = {};
    begin_read(number);
  }
  return true;
}

void Replayer::keep(int rank, const ReplaySpan& span) {
  if (options_.keep_spans && ranks_[size_t(rank)].repeat + 1 >= options_.repeats)
    spans_[size_t(rank)].push_back(span);
}

std::string Replayer::describe_stuck(int number) const {
  const Rank& rank = ranks_[size_t(number)];
  const RankProgram& program = programs_.ranks[size_t(number)];
  std::string text = fmt::format("rank {}", number);
  if (rank.block == Block::kWait) {
    const auto& operations = program.lanes[size_t(rank.lane)].operations;
    const int64_t operation = rank.waits_for % int64_t(operations.size());
    text +=
        fmt::format(" waits for {}",
                    programs_.name_of(program.operations[size_t(operations[size_t(operation)])]));
    if (rank.waits_for >= rank.lanes[size_t(rank.lane)].posted) text += ", which it has not posted";
  } else if (rank.block == Block::kPost) {
    text += " waits for room on lane " + program.lanes[size_t(rank.lane)].name;
  }
  for (size_t lane = 0; lane < rank.lanes.size(); ++lane) {
    if (!rank.lanes[lane].busy) continue;
    const RankOperation& operation = operation_of(number, int(lane));
    text += fmt::format("; its lane {} is in {}", program.lanes[lane].name,
                        programs_.name_of(operation));
    std::vector<int> missing;
    if (operation.number >= 0) {
      const auto& members = programs_.groups[size_t(operation.group)].simulated;
      const auto& begun = num_begun_[size_t(operation.group)];
      for (size_t m = 0; m < members.size(); ++m)
        if (begun[m] < begun[size_t(operation.member)]) missing.push_back(members[m]);
    }
    constexpr size_t kShown = 4;
    for (size_t i = 0; i < missing.size() && i <= kShown; ++i)
      text += i == kShown
                  ? fmt::format(" and {} more", missing.size() - kShown)
                  : fmt::format("{} rank {}", i == 0 ? ", where it misses" : ",", missing[i]);
  }
  return text;
}

// A rank is stuck if it is blocked, or if one of its lanes is when nothing can happen any more.
std::string Replayer::stuck() const {
  constexpr int kShown = 8;
  std::string text;
  int num_stuck = 0;
  for (int r = 0; r < int(ranks_.size()); ++r) {
    const Rank& rank = ranks_[size_t(r)];
    bool is_stuck = rank.block != Block::kNone;
    for (const Lane& lane : rank.lanes) is_stuck |= lane.busy;
    if (!is_stuck) continue;
    if (++num_stuck > kShown) continue;
    if (!text.empty()) text += '\n';
    text += describe_stuck(r);
  }
  if (num_stuck > kShown) text += fmt::format("\nand {} more ranks", num_stuck - kShown);
  return text;
}

Replayed Replayer::result() {
  Replayed replayed;
  replayed.problem = problem_.empty() ? stuck() : problem_;
  replayed.end_s = now_s_;
  replayed.spans = std::move(spans_);
  size_t num_steps = SIZE_MAX;
  for (int r = 0; r < int(ranks_.size()); ++r)
    if (programs_.simulates(r))
      num_steps = std::min(num_steps, ranks_[size_t(r)].step_ends_s.size());
  if (num_steps == SIZE_MAX) return replayed;
  double before_s = 0;
  for (size_t step = 0; step < num_steps; ++step) {
    double last_s = 0;
    for (const Rank& rank : ranks_)
      if (step < rank.step_ends_s.size()) last_s = std::max(last_s, rank.step_ends_s[step]);
    replayed.step_s.push_back(last_s - before_s);
    before_s = last_s;
  }
  for (const Rank& rank : ranks_) replayed.ranks.push_back(rank.share);
  return replayed;
}

int32_t Replayer::operation_index(int rank, int lane) const {
  const auto& operations = programs_.ranks[size_t(rank)].lanes[size_t(lane)].operations;
  return operations[size_t(ranks_[size_t(rank)].lanes[size_t(lane)].ended) % operations.size()];
}

const RankOperation& Replayer::operation_of(int rank, int lane) const {
  return programs_.ranks[size_t(rank)].operations[size_t(operation_index(rank, lane))];
}

}  // namespace ashlar::sim
