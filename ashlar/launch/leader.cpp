#include "ashlar/launch/leader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "ashlar/core/agent.h"
#include "ashlar/core/error.h"
#include "ashlar/launch/launch_files.h"
#include "ashlar/launch/moments.h"

namespace ashlar::launch {
namespace {

constexpr double kRenewEvery_s = 1, kRecent_s = 60;
constexpr double kAbsent_s = 2;  // between two turns: this process did not run

Quarantine read_quarantine(FileSystem& files, const std::string& path, Log& log) {
  if (!files.stat(path)) return {};
  try {
    return Quarantine::from_json(parse_json(read_text(files, path), path, ErrorKind::kCorrupt));
  } catch (const std::exception& error) {
    log.warn("{} is passed over: {}", path, error.what());
    return {};
  }
}

// Nodes of a job that begins come one by one; later only links break.
NodeRules rules_of(const FleetSpec& spec, bool has_run) {
  constexpr double kLink_s = 10;
  return {.num_nodes = spec.num_nodes,
          .elastic = spec.limits.elastic,
          .preflight = spec.limits.preflight,
          .first_check = spec.epoch << 32,
          .patience_s = has_run ? kLink_s : spec.limits.wait_nodes_s / 2};
}

// The starter is a child of this process, and its ranks are on other machines.
class FleetAttempt : public Attempt {
 public:
  FleetAttempt(Leader& leader, const AttemptCommand& command, RankSocket& socket)
      : leader_(leader), starter_(command, socket) {}

  News wait(double seconds) override {
    constexpr double kTurn_s = 0.05;  // the agents are heard between two of them
    News news = starter_.wait(std::min(seconds, kTurn_s));
    leader_.take_news(news);
    return news;
  }
  Watch::Sight look(Watch& watch, double now) override { return leader_.look(watch, now); }
  void terminate() override { leader_.ask_ranks_to_stop(); }
  bool fence() override {
    const bool gone = leader_.ranks_are_gone();
    return starter_.fence() && gone;
  }
  int64_t memory_kills() const override { return leader_.memory_kills(); }
  std::string host_of(int rank) const override { return leader_.node_of(rank); }

 private:
  Leader& leader_;
  LocalAttempt starter_;
};

}  // namespace

Leader::Leader(const FleetSpec& spec, FileSystem& files, Log& log)
    : spec_(spec),
      files_(files),
      log_(log),
      epochs_(files, spec.directory),
      tenure_(spec.epoch),
      star_(control::Listener(control::Reach::kNetwork, spec.interface_name),
            epochs_.key_of(spec.epoch, spec.job)),
      quarantine_(read_quarantine(files, join(spec.directory, "quarantine.json"), log)),
      attempt_(next_attempt(files, join(spec.directory, "ranks")) - 1),
      placement_(rules_of(spec, attempt_ > 0), now_s()),
      now_(now_s()),
      written_s_(now_) {
  order_.fence = attempt_;  // of earlier leaders
  epochs_.beat(spec.epoch);
  epochs_.publish(spec.epoch, star_.address());
  log_.info("leads the launch, epoch {}", spec.epoch);
}

bool Leader::lead(double now) {
  // While this process did not run, as when the shared file system stood, nobody could be heard.
  if (const double absent_s = now - std::exchange(now_, now); absent_s > kAbsent_s)
    for (auto& [number, agent] : agents_) agent.heard_s += absent_s;
  star_.serve(kReportFrame, [&](int number, auto body) { take_report(number, body); });
  if (now - renewed_s_ >= kRenewEvery_s) {
    renewed_s_ = now;
    renew();
    give_orders();
  }
  const auto heard_within = [&](double seconds) {
    return int(std::ranges::count_if(
        agents_, [&](const auto& agent) { return now - agent.second.heard_s < seconds; }));
  };
  return tenure_.holds({newest_, written_s_, heard_within(kLost_s), heard_within(kRecent_s)}, now);
}

// A failure is tried again each second; Tenure says for how long that may go on.
void Leader::renew() {
  try {
    newest_ = epochs_.newest();
    epochs_.beat(spec_.epoch);
    written_s_ = now_;
  } catch (const Error& error) {
    log_.warn("the lead of epoch {} is not renewed: {}", spec_.epoch, error.what());
  }
}

void Leader::take_report(int number, std::span<const std::byte> body) {
  Agent& agent = agents_[number];
  if (!is_heard(agent)) renewed_s_ = 0;  // it gets its orders at once
  agent.report = parse_report(body);
  agent.heard_s = now_;
  for (auto& [rank, page] : agent.report.pages) move_to_here(agent, page);
  std::set<int> living;
  for (const AgentReport::Rank& rank : agent.report.ranks) {
    if (rank.attempt != attempt_) continue;
    living.insert(rank.rank);
    ranks_.emplace(rank.rank, agent.report.node);
  }
  for (const int rank : agent.living)
    if (!living.contains(rank))
      gone_.push_back(
          {EvidenceKind::kGone, rank, 0,
           fmt::format("the process of rank {} on {} is gone", rank, agent.report.node)});
  agent.living = std::move(living);
  if (const auto failure = placement_.take(agent.report.node, agent.report.check, now_))
    note(*failure);
}

void Leader::give_orders() {
  AgentOrder order = order_;
  for (const auto& [number, agent] : agents_) {
    order.check = placement_.check_of(agent.report.node);
    star_.send(number, kOrderFrame, to_bytes(order));
    if (is_heard(agent)) ++order.place;
  }
  star_.serve(kReportFrame, [&](int number, auto body) { take_report(number, body); });
}

std::string Leader::lost_leader() {
  const int64_t before = spec_.epoch - 1;
  if (before == 0 || epochs_.job_of(before) != spec_.job || epochs_.end_of(before)) return "";
  const std::optional<std::string> address = epochs_.address_of(before);
  const std::string host = address ? control::parse_address(*address).host_name() : "unknown";
  return fmt::format("the leader of epoch {} is gone, on node {}", before, host);
}

bool Leader::asked_to_stop() const {
  return std::ranges::any_of(agents_,
                             [](const auto& agent) { return agent.second.report.asked_to_stop; });
}

// Lists the nodes whose agents are heard, and on which the starter can start ranks.
std::vector<NodeView> Leader::views() const {
  std::vector<NodeView> nodes;
  for (const auto& [number, agent] : agents_) {
    if (!is_heard(agent)) continue;
    const std::string& node = agent.report.node;
    if (startable_ && std::ranges::find(*startable_, node) == startable_->end()) continue;
    const bool held = quarantine_.holds(node, unix_now_s());
    nodes.push_back({.name = node,
                     .ready = agent.report.fenced >= order_.fence,
                     .held = held,
                     .broken = held && quarantine_.is_broken(node, unix_now_s())});
  }
  return nodes;
}

// From time to time: the process that finds them is at work.
void Leader::read_layouts() {
  constexpr double kReadEvery_s = 5;
  if (spec_.layouts.empty() || now_ - layouts_read_s_ < kReadEvery_s) return;
  layouts_read_s_ = now_;
  placement_.know(
      launch::read_layouts(files_, join(spec_.directory, "layouts.json"), spec_.layouts));
}

void Leader::ask_starter() {
  constexpr double kAskEvery_s = 10;  // it may take seconds, in which no agent is heard
  if (!spec_.startable || now_ - starter_asked_s_ < kAskEvery_s) return;
  starter_asked_s_ = now_;
  startable_ = spec_.startable();
}

std::string Leader::missing(double now) {
  now_ = now;
  read_layouts();
  ask_starter();
  next_ = placement_.decide(views(), now);
  for (const NodePlacement::Failure& slow : placement_.take_slow()) note(slow);
  if (next_.asks) give_orders();
  return next_.missing;
}

std::unique_ptr<Attempt> Leader::start(const AttemptCommand& command, int attempt,
                                       RankSocket& socket) {
  ASHLAR_REQUIRE(is_newest(), kLaunch, "another launcher leads the run");
  ASHLAR_REQUIRE(next_.missing.empty() && !next_.nodes.empty(), kLaunch,
                 "too few nodes are ready for attempt {}", attempt);
  placement_.start(std::exchange(next_, {.missing = "nothing is decided"}));
  const std::vector<std::string>& nodes = placement_.nodes();
  const std::optional<LaunchLayout>& fewer = placement_.layout();
  files_.make_directories(fmt::format("{}/ranks/{}", spec_.directory, attempt));
  attempt_ = attempt;
  ranks_.clear();
  gone_.clear();
  for (auto& [number, agent] : agents_) agent.living.clear();
  starter_asked_s_ = 0;  // before the next start
  told_lost_ = false;
  order_.stop = 0;
  AttemptCommand whole = command;
  whole.starter = spec_.kind;
  whole.words = spec_.starter(nodes, fewer ? fewer->ranks_per_node : spec_.ranks_per_node);
  whole.words.insert(whole.words.end(), command.words.begin(), command.words.end());
  if (fewer) whole.words.insert(whole.words.end(), fewer->keys.begin(), fewer->keys.end());
  whole.variables.insert(whole.variables.end(), spec_.variables.begin(), spec_.variables.end());
  whole.variables.push_back(fmt::format("{}={}", kAgentVariable, epochs_.agent_socket()));
  whole.variables.push_back(fmt::format("{}={}", kEpochVariable, spec_.epoch));
  log_.info("attempt {} on {}", attempt, fmt::join(nodes, ", "));
  return std::make_unique<FleetAttempt>(*this, whole, socket);
}

bool Leader::is_in_attempt(const Agent& agent) const {
  return std::ranges::binary_search(placement_.nodes(), agent.report.node);
}

// Adds the ranks that have ended, as the agents see it, and the nodes that are lost.
void Leader::take_news(Attempt::News& news) {
  for (const auto& [number, agent] : agents_) {
    if (!is_in_attempt(agent)) continue;
    if (!is_heard(agent)) placement_.suspect(agent.report.node);
    if (!is_heard(agent) && !std::exchange(told_lost_, true))
      news.gone.insert(news.gone.begin(),
                       {EvidenceKind::kNodeLost, -1, 0,
                        fmt::format("node {} is lost: no word of its agent for {:.0f} s",
                                    agent.report.node, now_ - agent.heard_s)});
  }
  for (Evidence& gone : gone_) news.gone.push_back(std::move(gone));
  gone_.clear();
}

Watch::Sight Leader::look(Watch& watch, double now) {
  Watch::Finds finds;
  for (const auto& [number, agent] : agents_) {
    for (const auto& [rank, page] : agent.report.pages)
      if (page.attempt == attempt_) finds.pages.emplace(rank, page);
    for (const AgentReport::Rank& rank : agent.report.ranks) {
      if (rank.attempt != attempt_) continue;
      finds.states[rank.rank] = rank.state;
      if (rank.trouble.empty()) continue;
      if (rank.killed)
        finds.killed = {EvidenceKind::kSignal, rank.rank, SIGKILL, rank.trouble};
      else
        finds.suspended = {EvidenceKind::kSuspended, rank.rank, 0, rank.trouble};
    }
    if (is_in_attempt(agent)) finds.bytes += agent.report.bytes;
  }
  return watch.judge(std::move(finds), now);
}

// Gives the page the times of this machine's clock.
void Leader::move_to_here(Agent& agent, PulsePage& page) {
  SeenPage& seen = agent.seen[page.rank];
  if (seen.moved_ns != page.moved_ns())
    seen = {page.moved_ns(), pulse_now_ns() - agent.report.now_ns};
  const auto shift = [&](int64_t& time_ns) {
    if (time_ns > 0) time_ns += seen.offset_ns;
  };
  shift(page.changed_ns);
  shift(page.operated_ns);
  shift(page.waiting_ns);
  for (PulseOperation& operation : page.operations) {
    shift(operation.queued_ns);
    shift(operation.started_ns);
  }
}

void Leader::ask_ranks_to_stop() {
  order_.stop = attempt_;
  give_orders();
}

bool Leader::ranks_are_gone() {
  constexpr double kFencePatience_s = 30;  // then that node is left out, and the lease is the fence
  if (order_.fence < attempt_) {
    order_.fence = attempt_;
    fence_s_ = now_;
    give_orders();
  }
  return std::ranges::all_of(agents_, [&](const auto& agent) {
    return !is_in_attempt(agent.second) || !is_heard(agent.second) ||
           agent.second.report.fenced >= attempt_ || now_ - fence_s_ > kFencePatience_s;
  });
}

std::string Leader::node_of(int rank) const {
  const auto known = ranks_.find(rank);
  return known == ranks_.end() ? "" : known->second;
}

bool Leader::hears(int agent) const {
  const auto known = agents_.find(agent);
  return known != agents_.end() && is_heard(known->second);
}

void Leader::judge(const Cause& cause, double now) {
  now_ = now;
  const std::string node = node_of(cause.rank);
  if (!node.empty()) placement_.suspect(node);
  note(quarantine_.count(node, cause, int(agents_.size()), unix_now_s()));
}

void Leader::note(const std::optional<Quarantine::Verdict>& verdict) {
  if (!verdict) return;
  save_quarantine();
  const double hours = (verdict->until_s - unix_now_s()) / 3600;
  const std::string term = verdict->until_s > 0 ? fmt::format("for {:.0f} h", hours) : "for good";
  notes_.push_back(fmt::format(
      "node {0} is in quarantine {1}: {2}: {3} (scontrol update nodename={0} state=drain "
      "reason='{2}')",
      verdict->node, term, verdict->cause, verdict->evidence));
}

void Leader::note(const NodePlacement::Failure& failure) {
  if (!failure.broken && quarantine_.holds(failure.node, unix_now_s())) return;  // as known
  const char* cause = failure.broken ? name_of(FaultClass::kHardware) : "slow";
  const auto verdict = quarantine_.leave_out(failure.node, cause, failure.evidence,
                                             int(agents_.size()), unix_now_s());
  note(verdict);
  if (!verdict)
    notes_.push_back(fmt::format("node {}: {}; too many nodes are in quarantine lately for it",
                                 failure.node, failure.evidence));
}

std::optional<NodePlacement::Move> Leader::move(int slow_rank, double share, double now) {
  now_ = now;
  read_layouts();
  placement_.check_spares(views(), now);
  const auto look = [&]() -> std::optional<NodePlacement::Move> {
    if (slow_rank < 0) return placement_.grow(views(), now);
    if (quarantine_.is_full(int(agents_.size()), unix_now_s())) return std::nullopt;
    return placement_.leave(node_of(slow_rank), share, views(), now);
  };
  if (!look()) return std::nullopt;
  ask_starter();  // Slurm may have taken that node out of the job
  return look();
}

void Leader::leave_out(const NodePlacement::Move& move) {
  if (!move.from_node.empty()) note(NodePlacement::Failure{move.from_node, move.text});
}

void Leader::save_quarantine() {
  try {
    write_text(files_, join(spec_.directory, "quarantine.json"),
               one_line(quarantine_.to_json()) + "\n");
  } catch (const Error& error) {
    log_.warn("the quarantine is not kept for later leaders: {}", error.what());
  }
}

// The file is for agents that are not linked now.
void Leader::end(int exit_code) {
  if (!is_newest()) return;
  order_.over = true;
  order_.exit_code = exit_code;
  give_orders();
  try {
    epochs_.end(spec_.epoch, exit_code);
  } catch (const Error& error) {
    log_.warn("agents that are not linked do not hear of the end: {}", error.what());
  }
}

bool Leader::is_newest() {
  try {
    newest_ = epochs_.newest();
  } catch (const Error& error) {  // Tenure says for how long that may go on
    log_.warn("whether another launcher leads is not seen: {}", error.what());
  }
  return newest_ <= spec_.epoch;
}

int64_t Leader::memory_kills() const {
  int64_t kills = 0;
  for (const auto& [number, agent] : agents_)
    if (is_in_attempt(agent)) kills += agent.report.memory_kills;
  return kills;
}

}  // namespace ashlar::launch
