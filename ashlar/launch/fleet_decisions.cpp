#include "ashlar/launch/fleet_decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ashlar/core/error.h"

namespace ashlar::launch {

FleetDecisions::FleetDecisions(const NodeRules& rules, Quarantine quarantine, int64_t last_attempt,
                               FleetTime now)
    : now_(now),
      quarantine_(std::move(quarantine)),
      placement_(rules, now.steady_s),
      next_{.missing = "nothing is decided"},
      attempt_(last_attempt),
      fence_(last_attempt) {}

void FleetDecisions::pass(FleetTime now) {
  const double absent_s = now.steady_s - std::exchange(now_, now).steady_s;
  if (absent_s <= kAbsent_s) return;
  for (auto& [number, agent] : agents_) agent.heard_s += absent_s;
  fence_s_ += absent_s;
  placement_.skip(absent_s);
}

void FleetDecisions::hear(int number, const AgentReport& report) {
  const auto [known, is_new] = agents_.try_emplace(number);
  Agent& agent = known->second;
  if (!is_new && !is_heard(agent)) placement_.find_again(agent.node, now_.steady_s);
  agent.node = report.node;
  agent.heard_s = now_.steady_s;
  agent.fenced = report.fenced;
  if (std::exchange(agent.checked, report.check.number) == report.check.number) return;
  if (const auto failure = placement_.take(agent.node, report.check, now_.steady_s)) note(*failure);
}

bool FleetDecisions::is_heard(int number) const {
  const auto known = agents_.find(number);
  return known != agents_.end() && is_heard(known->second);
}

int FleetDecisions::num_heard(double within_s) const {
  return int(std::ranges::count_if(
      agents_, [&](const auto& agent) { return now_.steady_s - agent.second.heard_s < within_s; }));
}

void FleetDecisions::know_startable(const std::optional<std::vector<std::string>>& nodes) {
  startable_.reset();
  if (nodes) startable_.emplace(nodes->begin(), nodes->end());
}

// Lists the nodes whose agents are heard, and on which the starter can start ranks.
std::vector<NodeView> FleetDecisions::views() const {
  std::vector<NodeView> nodes;
  for (const auto& [number, agent] : agents_) {
    if (!is_heard(agent)) continue;
    const std::string& node = agent.node;
    if (startable_ && !startable_->contains(node)) continue;
    nodes.push_back({.name = node,
                     .ready = agent.fenced >= fence_,
                     .held = quarantine_.holds(node, now_.calendar_s),
                     .broken = quarantine_.is_broken(node, now_.calendar_s)});
  }
  return nodes;
}

const NodePlacement::Decision& FleetDecisions::decide() {
  next_ = placement_.decide(views(), now_.steady_s);
  for (const NodePlacement::Failure& slow : placement_.take_slow()) note(slow);
  for (const std::string& silent : placement_.take_silent())
    notes_.push_back(fmt::format("node {}: its agent does not answer with the check", silent));
  return next_;
}

void FleetDecisions::start(int64_t attempt) {
  ASHLAR_REQUIRE(next_.missing.empty() && !next_.nodes.empty(), kLaunch,
                 "too few nodes are ready for attempt {}", attempt);
  placement_.start(std::exchange(next_, {.missing = "nothing is decided"}));
  attempt_ = attempt;
  told_lost_ = false;
}

std::optional<Evidence> FleetDecisions::take_loss() {
  if (told_lost_) return std::nullopt;
  const auto lost = std::ranges::find_if(agents_, [&](const auto& agent) {
    return !is_heard(agent.second) && runs_on(agent.second.node);
  });
  if (lost == agents_.end()) return std::nullopt;
  told_lost_ = true;
  return Evidence{EvidenceKind::kNodeLost, -1, 0,
                  fmt::format("node {} is lost: no word of its agent for {:.0f} s",
                              lost->second.node, now_.steady_s - lost->second.heard_s)};
}

bool FleetDecisions::begin_fence() {
  if (fence_ >= attempt_) return false;
  fence_ = attempt_;
  fence_s_ = now_.steady_s;
  return true;
}

bool FleetDecisions::is_fenced() const {
  if (now_.steady_s - fence_s_ > kFencePatience_s) return true;
  return std::ranges::all_of(agents_, [&](const auto& known) {
    const Agent& agent = known.second;
    return agent.fenced >= attempt_ || !is_heard(agent) || !runs_on(agent.node);
  });
}

void FleetDecisions::judge(const Cause& cause, const std::string& node) {
  if (node.empty()) return;
  placement_.suspect(node);
  note(quarantine_.count(node, cause, int(agents_.size()), now_.calendar_s));
}

void FleetDecisions::note(const std::optional<Quarantine::Verdict>& verdict) {
  if (!verdict) return;
  const double hours = (verdict->until_s - now_.calendar_s) / 3600;
  const std::string term = verdict->until_s > 0 ? fmt::format("for {:.0f} h", hours) : "for good";
  notes_.push_back(fmt::format(
      "node {0} is in quarantine {1}: {2}: {3} (scontrol update nodename={0} state=drain "
      "reason='{2}')",
      verdict->node, term, verdict->cause, verdict->evidence));
}

// A node that is in quarantine for the same reason, or for a worse one, stays there as it is.
void FleetDecisions::note(const NodePlacement::Failure& failure) {
  const bool held = quarantine_.holds(failure.node, now_.calendar_s);
  if (held && (!failure.broken || quarantine_.is_broken(failure.node, now_.calendar_s))) return;
  const char* cause = failure.broken ? name_of(FaultClass::kHardware) : "slow";
  const auto verdict = quarantine_.leave_out(failure.node, cause, failure.evidence,
                                             int(agents_.size()), now_.calendar_s);
  note(verdict);
  if (!verdict)
    notes_.push_back(fmt::format("node {}: {}; too many nodes are in quarantine lately for it",
                                 failure.node, failure.evidence));
}

std::optional<NodePlacement::Move> FleetDecisions::grow() const {
  return placement_.grow(views(), now_.steady_s);
}

std::optional<NodePlacement::Move> FleetDecisions::leave(const std::string& slow_node,
                                                         double share) const {
  if (quarantine_.is_full(int(agents_.size()), now_.calendar_s)) return std::nullopt;
  return placement_.leave(slow_node, share, views(), now_.steady_s);
}

void FleetDecisions::leave_out(const NodePlacement::Move& move) {
  if (!move.from_node.empty()) note(NodePlacement::Failure{move.from_node, move.text});
}

}  // namespace ashlar::launch
