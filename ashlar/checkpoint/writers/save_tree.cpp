// How it works.  An attempt is open from its first message until its result:
//
//   part() of this rank, parts of all children --> pass_up(): one message to the parent; the leader
//                                                  keeps them for gathered()
//   decide() at the leader --> result, down to all, which closes the attempt there
//
// A reading begins with the leader's order(): it is split among the children according to the ranks
// below them; the results of this rank (done()) and of the children are added and go up as one.
//   The parent repairs losses: a child's heartbeat lists its open attempts and readings, and what
// it sent for each.  The parent answers with the result if it knows one, with "send again" if it
// lacks what was sent, and with the order if the child has none.  Results and readings of the last
// kKept saves are kept for that.
#include "ashlar/checkpoint/writers/save_tree.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace ashlar::checkpoint {
namespace {

constexpr size_t kKept = 8;  // results and readings

// Silent ones first, then the earlier phase, then less done, then longer at it.
bool slower(const RankStatus& a, const RankStatus& b) {
  if (a.silent != b.silent) return a.silent;
  if (a.phase != b.phase) return a.phase < b.phase;
  const auto done = [](const RankStatus& s) {
    return s.total_bytes > 0 ? double(s.bytes) / double(s.total_bytes) : 0.0;
  };
  if (done(a) != done(b)) return done(a) < done(b);
  if (a.since != b.since) return a.since < b.since;
  return a.rank < b.rank;
}

}  // namespace

void GatheredParts::add(const GatheredParts& other) {
  count += other.count;
  cover += other.cover;
  entries.insert(entries.end(), other.entries.begin(), other.entries.end());
}

void ReadBackResult::add(const ReadBackResult& other) {
  count += other.count;
  bytes += other.bytes;
  ranks.insert(ranks.end(), other.ranks.begin(), other.ranks.end());
  // Damage says more than a disk that cannot be read.
  if (other.bad_rank < 0) return;
  if (bad_rank < 0 || (other.damaged && !damaged) ||
      (other.damaged == damaged && other.bad_rank < bad_rank)) {
    bad_rank = other.bad_rank;
    damaged = other.damaged;
    why = other.why;
  }
}

SaveTree::SaveTree(std::shared_ptr<const control::Tree> tree, int rank, std::string host,
                   const SaveTreeOptions& options)
    : tree_(std::move(tree)), rank_(rank), host_(std::move(host)), options_(options) {
  for (const int child : children()) heard_[child];
}

std::vector<SaveTree::Outgoing> SaveTree::take_outgoing() {
  return std::exchange(outgoing_, {});
}

SaveTree::Open& SaveTree::open(const Id& attempt, int64_t step, double now) {
  const auto [found, added] = open_.try_emplace(attempt);
  if (added) {
    found->second.step = step;
    found->second.since = now;
  }
  return found->second;
}

void SaveTree::begin(const Id& attempt, int64_t step, double now) {
  if (result(attempt)) return;
  Open& here = open(attempt, step, now);
  if (!here.has_begun) here.since = now;
  here.has_begun = true;
}

void SaveTree::set_status(RankStatus status) {
  status.rank = rank_;
  status.host = host_;
  RankStatus& here = status_[status.attempt];
  if (here.rank == rank_ && here.host == host_ && here.phase == status.phase && here.since > 0)
    status.since = here.since;  // the phase goes on
  here = std::move(status);
}

void SaveTree::part(const Id& attempt, const Id& layout, const CoverHash& cover, Witness witness,
                    std::vector<std::byte> without_boxes, std::vector<std::byte> with_boxes) {
  const auto found = open_.find(attempt);
  if (found == open_.end()) return;  // the result came first
  Open& here = found->second;
  here.layout = layout;
  here.witness = std::move(witness);
  here.with_boxes = std::move(with_boxes);
  here.own = {1, cover, layout == known_layout_ ? std::move(without_boxes) : here.with_boxes};
  pass_up(attempt);
}

void SaveTree::fail(const Id& attempt, int64_t step, const std::string& why, double now) {
  if (result(attempt)) return;
  Open& here = open(attempt, step, now);
  if (here.failure) return;  // the first one counts
  here.failure = {rank_, why};
  if (!leads()) send_failure(attempt, here);
}

std::optional<AttemptResult> SaveTree::result(const Id& attempt) const {
  for (const AttemptResult& result : attempt_results_)
    if (result.attempt == attempt) return result;
  return std::nullopt;
}

std::optional<SaveTree::ToSee> SaveTree::to_see(const Id& attempt) const {
  const auto found = open_.find(attempt);
  if (found == open_.end()) return std::nullopt;
  for (const auto& [child, said] : found->second.children)
    if (!said.seen) return ToSee{child, said.witness};
  return std::nullopt;
}

void SaveTree::seen(const Id& attempt, int child) {
  const auto found = open_.find(attempt);
  if (found == open_.end()) return;
  found->second.children.at(child).seen = true;
  pass_up(attempt);
}

bool SaveTree::has_all_children(const Open& here) const {
  return here.children.size() == children().size() &&
         std::ranges::all_of(here.children, [](const auto& each) { return each.second.seen; });
}

void SaveTree::pass_up(const Id& attempt) {
  Open& here = open_.at(attempt);
  if (!leads() && !here.sent && here.own && has_all_children(here)) send_part(attempt, here);
}

std::optional<SaveTree::Failure> SaveTree::failure(const Id& attempt) const {
  const auto found = open_.find(attempt);
  return found == open_.end() ? std::nullopt : found->second.failure;
}

int SaveTree::parts_there(const Id& attempt) const {
  const auto found = open_.find(attempt);
  return found == open_.end() ? 0 : int(found->second.children.size());
}

// The leader's own part never travels: `own` gathers here what the children sent.
const GatheredParts* SaveTree::gathered(const Id& attempt) {
  const auto found = open_.find(attempt);
  if (found == open_.end() || !has_all_children(found->second)) return nullptr;
  Open& here = found->second;
  if (!here.own) {
    here.own.emplace();
    for (const auto& [child, said] : here.children) here.own->add(said.parts);
  }
  return &*here.own;
}

std::map<int, std::vector<std::byte>> SaveTree::boxes(const Id& attempt) const {
  const auto found = open_.find(attempt);
  return found == open_.end() ? std::map<int, std::vector<std::byte>>{} : found->second.boxes;
}

void SaveTree::decide(const AttemptResult& result) {
  settle(result);
}

// The result is known here from now on, and goes down.
void SaveTree::settle(const AttemptResult& result) {
  if (this->result(result.attempt)) return;
  const auto found = open_.find(result.attempt);
  if (found != open_.end()) {
    if (result.committed && found->second.own) known_layout_ = found->second.layout;
    open_.erase(found);
  }
  status_.erase(result.attempt);
  attempt_results_.push_back(result);
  if (attempt_results_.size() > kKept) attempt_results_.pop_front();
  for (const int child : children()) send_attempt_result(child, result);
}

void SaveTree::lost(int neighbour, const std::string& why) {
  break_off(why.empty()
                ? ""
                : fmt::format("rank {} lost its link to rank {}: {}", rank_, neighbour, why));
}

void SaveTree::linked(int neighbour, double now) {
  if (broken_) return send_broken(neighbour);
  if (neighbour != parent()) {
    heard_[neighbour].at = now;
    return;
  }
  heartbeat(now);  // the answer names what the parent lacks
}

void SaveTree::tick(double now) {
  if (now - last_heartbeat_ >= options_.heartbeat_s) heartbeat(now);
}

// The status of ranks that are not done: `own`, if given, and those below each missing
// child.
std::vector<RankStatus> SaveTree::pending(const Id& attempt, std::optional<RankStatus> own,
                                          double since, const std::vector<int>& missing,
                                          Phase phase, double now) const {
  std::vector<RankStatus> all;
  if (own) all.push_back(*own);
  for (const int child : missing) {
    const Heard& heard = heard_.at(child);
    const RankStatus unheard{attempt, child, heard.host, phase, false, since, 0, 0};
    if (now - heard.at >= options_.silent_s) {
      all.push_back(unheard);
      all.back().silent = true;
      all.back().since = heard.at;
      continue;
    }
    const size_t before = all.size();
    for (const RankStatus& each : heard.slowest)
      if (each.attempt == attempt) all.push_back(each);
    if (all.size() == before) all.push_back(unheard);
  }
  std::sort(all.begin(), all.end(), slower);
  if (all.size() > kSlowest) all.resize(kSlowest);
  return all;
}

std::vector<RankStatus> SaveTree::slowest(const Id& attempt, double now) const {
  std::vector<int> missing;
  const auto find_missing = [&](const auto& there) {
    for (const int child : children())
      if (!there.contains(child)) missing.push_back(child);
  };
  const auto own = [&](double since, Phase phase) {
    const auto found = status_.find(attempt);
    return found != status_.end() ? found->second
                                  : RankStatus{attempt, rank_, host_, phase, false, since, 0, 0};
  };
  if (const auto found = open_.find(attempt); found != open_.end()) {
    const Open& here = found->second;
    find_missing(here.children);
    std::optional<RankStatus> mine;
    if (!leads() && !here.own) mine = own(here.since, here.has_begun ? Phase::kCopy : Phase::kWait);
    return pending(attempt, mine, here.since, missing, Phase::kWait, now);
  }
  if (const auto found = readings_.find(attempt); found != readings_.end()) {
    const Reading& here = found->second;
    find_missing(here.children);
    std::optional<RankStatus> mine;
    if (!here.own) mine = own(here.since, Phase::kVerify);
    return pending(attempt, mine, here.since, missing, Phase::kVerify, now);
  }
  return {};
}

void SaveTree::order(const Id& attempt, int64_t step, std::map<int, std::vector<std::byte>> tasks,
                     double now) {
  if (readings_.contains(attempt)) return;
  Reading& reading = readings_[attempt];
  reading.step = step;
  reading.since = now;
  order_of_readings_.push_back(attempt);
  if (order_of_readings_.size() > kKept) {
    readings_.erase(order_of_readings_.front());
    order_of_readings_.pop_front();
  }
  const auto own = tasks.find(rank_);
  tasks_.push_back({attempt, step, own == tasks.end() ? std::vector<std::byte>{} : own->second});
  if (own != tasks.end()) tasks.erase(own);
  reading.tasks = std::move(tasks);
  for (const int child : children()) send_order(child, attempt, reading);
}

std::optional<SaveTree::Task> SaveTree::take_task() {
  if (tasks_.empty()) return std::nullopt;
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void SaveTree::done(const Id& attempt, const ReadBackResult& result) {
  const auto found = readings_.find(attempt);
  if (found == readings_.end()) return;
  status_.erase(attempt);
  found->second.own = result;
  pass_result(attempt);
}

void SaveTree::pass_result(const Id& attempt) {
  Reading& reading = readings_.at(attempt);
  if (!reading.own || reading.children.size() < children().size()) return;
  reading.all = *reading.own;
  for (const auto& [child, result] : reading.children) reading.all->add(result);
  if (!leads()) send_result(attempt, reading);
}

std::optional<ReadBackResult> SaveTree::read_back(const Id& attempt) const {
  const auto found = readings_.find(attempt);
  return found == readings_.end() ? std::nullopt : found->second.all;
}

}  // namespace ashlar::checkpoint
