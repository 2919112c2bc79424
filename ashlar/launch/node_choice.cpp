#include "ashlar/launch/node_choice.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

namespace ashlar::launch {
namespace {

constexpr double kNodeHour_s = 3600;
constexpr std::array kTerms_s{kNodeHour_s, 6 * kNodeHour_s};  // then for good
constexpr double kManyWithin_s = 600;

// How many faults of a class within an hour put a node into quarantine; 0: none does.
int faults_allowed(FaultClass fault) {
  switch (fault) {
    case FaultClass::kHardware:
      return 1;
    case FaultClass::kHang:
      return 2;
    case FaultClass::kKilled:
      return 3;
    default:
      return 0;
  }
}

}  // namespace

std::optional<Quarantine::Verdict> Quarantine::count(const std::string& node, const Cause& cause,
                                                     int num_nodes, double now_s) {
  const int allowed = faults_allowed(cause.fault);
  if (node.empty() || allowed == 0) return std::nullopt;
  std::vector<Fault>& faults = faults_[node];
  std::erase_if(faults, [&](const Fault& old) { return now_s - old.time_s > kNodeHour_s; });
  faults.push_back({cause.fault, now_s});
  if (std::ranges::count(faults, cause.fault, &Fault::fault) < allowed) return std::nullopt;
  return leave_out(node, name_of(cause.fault), cause.text, num_nodes, now_s);
}

std::optional<Quarantine::Verdict> Quarantine::leave_out(const std::string& node,
                                                         const std::string& cause,
                                                         const std::string& evidence, int num_nodes,
                                                         double now_s) {
  if (is_full(num_nodes, now_s)) return std::nullopt;
  std::erase_if(recent_, [&](double time_s) { return now_s - time_s > kManyWithin_s; });
  recent_.push_back(now_s);
  faults_.erase(node);
  Verdict& verdict = verdicts_[node];
  const int strikes = verdict.node.empty() ? 1 : verdict.strikes + 1;
  const bool for_good = size_t(strikes) > kTerms_s.size();
  verdict = {node, cause, evidence, strikes, for_good ? 0 : now_s + kTerms_s[size_t(strikes - 1)]};
  return verdict;
}

bool Quarantine::is_full(int num_nodes, double now_s) const {
  const auto lately = std::ranges::count_if(
      recent_, [&](double time_s) { return now_s - time_s <= kManyWithin_s; });
  return lately >= std::max(2, num_nodes / 10);
}

bool Quarantine::holds(const std::string& node, double now_s) const {
  const auto verdict = verdicts_.find(node);
  return verdict != verdicts_.end() &&
         (verdict->second.until_s == 0 || now_s < verdict->second.until_s);
}

bool Quarantine::is_broken(const std::string& node, double now_s) const {
  return holds(node, now_s) && verdicts_.at(node).cause == name_of(FaultClass::kHardware);
}

Ordered Quarantine::to_json() const {
  Ordered nodes = Ordered::array();
  for (const auto& [node, verdict] : verdicts_)
    nodes.push_back({{"node", node},
                     {"cause", verdict.cause},
                     {"evidence", verdict.evidence},
                     {"strikes", verdict.strikes},
                     {"until", verdict.until_s}});
  return {{"v", 1}, {"nodes", nodes}};
}

Quarantine Quarantine::from_json(const Json& json) {
  Quarantine quarantine;
  for (const Json& row : json.value("nodes", Json::array())) {
    Verdict verdict{row.value("node", ""), row.value("cause", ""), row.value("evidence", ""),
                    row.value("strikes", 1), row.value("until", 0.0)};
    quarantine.verdicts_[verdict.node] = verdict;
  }
  return quarantine;
}

std::vector<std::string> choose_nodes(const std::vector<std::string>& fit,
                                      const std::vector<std::string>& last, size_t wanted) {
  if (fit.size() < wanted) return {};
  const std::set<std::string> kept(last.begin(), last.end());
  std::vector<std::string> ordered = fit;
  std::ranges::sort(ordered);
  std::ranges::stable_partition(ordered, [&](const auto& name) { return kept.contains(name); });
  ordered.resize(wanted);
  std::ranges::sort(ordered);
  return ordered;
}

}  // namespace ashlar::launch
