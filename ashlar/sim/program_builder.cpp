#include "ashlar/sim/program_builder.h"

#include <algorithm>

#include "ashlar/core/error.h"

namespace ashlar::sim {

ProgramBuilder::ProgramBuilder(int num_ranks, int ranks_for_each) {
  programs_.ranks_for_each = ranks_for_each;
  programs_.ranks.resize(size_t(num_ranks));
  pending_.resize(size_t(num_ranks));
  text("");
}

int ProgramBuilder::lane(int rank, std::string_view name) {
  if (name.empty()) return -1;
  auto& lanes = programs_.ranks[size_t(rank)].lanes;
  for (size_t i = 0; i < lanes.size(); ++i)
    if (lanes[i].name == name) return int(i);
  lanes.push_back({std::string(name), {}});
  pending_[size_t(rank)].tickets.emplace_back();
  return int(lanes.size()) - 1;
}

int ProgramBuilder::group(std::string_view name, std::span<const int> ranks) {
  std::pair key(std::string(name), std::vector<int>(ranks.begin(), ranks.end()));
  const auto [found, is_new] = groups_.try_emplace(key, int32_t(programs_.groups.size()));
  if (is_new) programs_.groups.push_back({key.first, key.second, {}});
  return found->second;
}

int ProgramBuilder::text(std::string_view text) {
  const auto [found, is_new] = texts_.try_emplace(std::string(text), programs_.texts.size());
  if (is_new) programs_.texts.emplace_back(text);
  return found->second;
}

int ProgramBuilder::place(const ProgramPlace& place) {
  const auto [found, is_new] = places_.try_emplace(place, int32_t(programs_.places.size()));
  if (is_new) programs_.places.push_back(place);
  return found->second;
}

void ProgramBuilder::kernel(int rank, const KernelWork& work, const ProgramPlace& place) {
  const TraceDims& d = work.dims;
  const auto [found, is_new] =
      kernels_.try_emplace({work.op, work.dtype, d.groups, d.rows, d.cols, d.depth, work.flop,
                            work.bytes, work.varies, work.count},
                           int32_t(programs_.kernels.size()));
  if (is_new) programs_.kernels.push_back(work);
  add(rank, {ProgramEvent::Kind::kKernel, -1, found->second, this->place(place)});
}

void ProgramBuilder::post(int rank, RankOperation operation, int64_t ticket,
                          std::span<const TraceMessage> messages, const ProgramPlace& place) {
  const auto& members = programs_.groups[size_t(operation.group)].ranks;
  const auto member = std::find(members.begin(), members.end(), rank);
  ASHLAR_REQUIRE(member != members.end(), kData,
                 "rank {} calls {}, but is not one of the group's {} ranks", rank,
                 programs_.name_of(operation), members.size());
  operation.member = int32_t(member - members.begin());
  post_as_member(rank, operation, ticket, messages, this->place(place));
}

void ProgramBuilder::post_as_member(int rank, RankOperation operation, int64_t ticket,
                                    std::span<const TraceMessage> messages, int place) {
  RankProgram& program = programs_.ranks[size_t(rank)];
  operation.first_message = int32_t(program.messages.size());
  operation.num_messages = int32_t(messages.size());
  program.messages.insert(program.messages.end(), messages.begin(), messages.end());
  const int32_t index = int32_t(program.operations.size());
  if (operation.lane >= 0) {
    pending_[size_t(rank)].tickets[size_t(operation.lane)].push_back(ticket);
    program.lanes[size_t(operation.lane)].operations.push_back(index);
  }
  program.operations.push_back(operation);
  add(rank, {ProgramEvent::Kind::kPost, -1, index, place});
}

void ProgramBuilder::wait_at(int rank, int lane, int64_t ticket, int place) {
  pending_[size_t(rank)].waits.push_back({programs_.ranks[size_t(rank)].events.size(), ticket});
  add(rank, {ProgramEvent::Kind::kWait, int16_t(lane), 0, place});
}

void ProgramBuilder::end_step(int rank) {
  ++programs_.ranks[size_t(rank)].num_steps;
  add(rank, {ProgramEvent::Kind::kEndOfStep, -1, 0, place({})});
}

void ProgramBuilder::resolve_waits(int rank) {
  auto& events = programs_.ranks[size_t(rank)].events;
  std::vector<std::vector<std::pair<int64_t, int32_t>>> lanes;  // ticket, position
  for (const std::vector<int64_t>& tickets : pending_[size_t(rank)].tickets) {
    auto& lane = lanes.emplace_back();
    for (size_t i = 0; i < tickets.size(); ++i) lane.push_back({tickets[i], int32_t(i)});
    std::sort(lane.begin(), lane.end());
  }
  std::vector<size_t> unknown;
  for (const Wait& wait : pending_[size_t(rank)].waits) {
    ProgramEvent& event = events[wait.event];
    const auto& lane = lanes[size_t(event.lane)];
    const auto found = std::lower_bound(lane.begin(), lane.end(), std::pair{wait.ticket, 0});
    if (found != lane.end() && found->first == wait.ticket)
      event.value = found->second;
    else if (!lane.empty() && wait.ticket < lane[0].first)
      event.value = int32_t(wait.ticket - lane[0].first);
    else
      unknown.push_back(wait.event);
  }
  pending_[size_t(rank)] = {};
  for (size_t i = unknown.size(); i-- > 0;) events.erase(events.begin() + int64_t(unknown[i]));
}

// Recordings of the same steps begin with the same collective of a group on all its ranks.
void ProgramBuilder::check_groups() const {
  std::vector<std::pair<int, int64_t>> first(programs_.groups.size(), {-1, 0});  // rank, number
  for (int rank = 0; rank < int(programs_.ranks.size()); ++rank) {
    std::vector<bool> seen(programs_.groups.size());
    for (const RankOperation& operation : programs_.ranks[size_t(rank)].operations) {
      const size_t group = size_t(operation.group);
      if (operation.number < 0 || operation.lane < 0 || seen[group]) continue;
      seen[group] = true;
      if (first[group].first < 0) first[group] = {rank, operation.number};
      ASHLAR_REQUIRE(first[group].second == operation.number, kData,
                     "rank {} begins with number {} of group {}, rank {} with number {}: record "
                     "the same steps of all ranks",
                     first[group].first, first[group].second, programs_.groups[group].name, rank,
                     operation.number);
    }
  }
}

// Tells every operation its number among the ranks of its group that have programs.
void ProgramBuilder::number_simulated() {
  std::vector<std::vector<int32_t>> numbers;  // by group and member
  for (RankGroup& group : programs_.groups) {
    std::vector<int32_t>& of_group = numbers.emplace_back();
    for (const int rank : group.ranks) {
      of_group.push_back(int32_t(group.simulated.size()));
      if (programs_.simulates(rank)) group.simulated.push_back(rank);
    }
  }
  for (RankProgram& program : programs_.ranks)
    for (RankOperation& operation : program.operations)
      operation.member = numbers[size_t(operation.group)][size_t(operation.member)];
}

RankPrograms ProgramBuilder::finish() {
  for (int rank = 0; rank < int(programs_.ranks.size()); ++rank) {
    if (programs_.ranks_for_each > 1 && !programs_.simulates(rank)) continue;
    resolve_waits(rank);
    ASHLAR_REQUIRE(programs_.ranks[size_t(rank)].num_steps > 0, kData,
                   "the program of rank {} has no step that ends", rank);
  }
  check_groups();
  number_simulated();
  return std::move(programs_);
}

}  // namespace ashlar::sim
