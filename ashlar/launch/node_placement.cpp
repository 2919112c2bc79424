#include "ashlar/launch/node_placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "ashlar/launch/node_choice.h"

namespace ashlar::launch {
namespace {

constexpr size_t kFewestRates = 3;  // of which a median says something

double median_rate(std::vector<double> rates) {
  if (rates.size() < kFewestRates) return 0;
  const auto middle = rates.begin() + std::ptrdiff_t(rates.size() / 2);
  std::ranges::nth_element(rates, middle);
  return *middle;
}

}  // namespace

bool NodePlacement::has_passed(const std::string& node, double now) const {
  if (!rules_.preflight) return true;
  const auto known = checks_.find(node);
  if (known == checks_.end()) return false;
  const Check& check = known->second;
  return check.result == Check::Result::kPassed && !check.open && !check.suspect &&
         !check.ran_since && now - check.done_s < kFresh_s;
}

bool NodePlacement::has_failed(const std::string& node, Check::Result how, double now) const {
  const auto known = checks_.find(node);
  return known != checks_.end() && !known->second.open && known->second.result == how &&
         now - known->second.done_s < kAgain_s;
}

// A slow node is known well enough until ranks run there.
bool NodePlacement::lacks_check(const std::string& node, double now) const {
  if (has_passed(node, now)) return false;
  return !has_failed(node, Check::Result::kSlow, now) || checks_.at(node).suspect ||
         checks_.at(node).ran_since;
}

bool NodePlacement::is_out(const std::string& node, double now) const {
  return has_failed(node, Check::Result::kBroken, now) ||
         has_failed(node, Check::Result::kSilent, now);
}

bool NodePlacement::runs_on(const std::string& node) const {
  return std::ranges::binary_search(nodes_, node);
}

void NodePlacement::begin_check(const std::string& node, double now) {
  Check& check = checks_[node];
  check.thorough = check.suspect || check.result != Check::Result::kPassed;
  check.number = next_number_++;
  check.open = true;
  check.asked_s = now;
}

CheckOrder NodePlacement::check_of(const std::string& node) const {
  const auto known = checks_.find(node);
  if (known == checks_.end() || !known->second.open) return {};
  return {known->second.number, known->second.thorough};
}

std::optional<NodePlacement::Failure> NodePlacement::take(const std::string& node,
                                                          const CheckResult& result, double now) {
  Check& check = checks_[node];
  if (!check.open || result.number != check.number) return std::nullopt;
  check.open = check.suspect = check.ran_since = false;
  check.done_s = now;
  check.failures = result.passed ? 0 : check.failures + 1;
  const bool broken = result.sure || check.failures > 1;
  check.result = result.passed ? Check::Result::kPassed
                 : broken      ? Check::Result::kBroken
                               : Check::Result::kNone;
  check.product_rate = result.product_rate;
  check.memory_rate = result.memory_rate;
  check.evidence = result.evidence;
  if (check.result != Check::Result::kBroken) return std::nullopt;
  return Failure{node, result.evidence, true};
}

void NodePlacement::find_again(const std::string& node, double now) {
  suspect(node);
  checks_[node].asked_s = now;
}

void NodePlacement::skip(double seconds) {
  since_s_ += seconds;
  for (auto& [node, check] : checks_) check.asked_s += seconds;
}

// Fit nodes, and behind them those that do if there are too few.
std::vector<std::string> NodePlacement::fit_nodes(std::span<const NodeView> nodes,
                                                  double now) const {
  std::vector<std::string> fit, held;
  for (const NodeView& node : nodes) {
    if (!node.ready || node.broken || is_out(node.name, now)) continue;
    const bool slow = has_failed(node.name, Check::Result::kSlow, now);
    (node.held || slow ? held : fit).push_back(node.name);
  }
  const size_t lacking = size_t(std::max(0, rules_.num_nodes - int(fit.size())));
  fit.insert(fit.end(), held.begin(),
             held.begin() + std::ptrdiff_t(std::min(lacking, held.size())));
  return fit;
}

std::string NodePlacement::why_unfit(std::span<const NodeView> nodes, double now) const {
  for (const NodeView& node : nodes)
    if (is_out(node.name, now))
      return fmt::format("; {}: {}", node.name, checks_.at(node.name).evidence);
  return "";
}

NodePlacement::Decision NodePlacement::decide(std::span<const NodeView> nodes, double now) {
  for (const NodeView& node : nodes)
    if (const CheckOrder order = check_of(node.name);
        order.number > 0 && now - checks_.at(node.name).asked_s > kAnswer_s) {
      Check& check = checks_.at(node.name);
      check.open = false;
      check.done_s = now;
      check.result = Check::Result::kSilent;
      check.evidence = "its agent does not answer with the check";
      silent_.push_back(node.name);
    }
  const std::vector<std::string> fit = fit_nodes(nodes, now);
  Decision decision;
  size_t wanted = size_t(rules_.num_nodes);
  if (fit.size() < wanted) {
    const bool may = rules_.elastic != Elastic::kOff && now - since_s_ >= rules_.patience_s;
    const LaunchLayout* layout = may ? layouts_.on(int(fit.size())) : nullptr;
    decision.missing = fmt::format("{} of {} nodes are ready ({}){}", fit.size(), wanted,
                                   fmt::join(fit, ", "), why_unfit(nodes, now));
    if (!layout) return decision;
    decision.layout = *layout;
    wanted = size_t(layout->nodes);
  }
  decision.nodes = choose_nodes(fit, nodes_, wanted);
  std::vector<std::string> open;
  for (const std::string& node : decision.nodes) {
    if (!lacks_check(node, now)) continue;
    if (check_of(node).number == 0) {
      begin_check(node, now);
      decision.asks = true;
    }
    open.push_back(node);
  }
  decision.missing = open.empty() ? "" : fmt::format("checks {}", fmt::join(open, ", "));
  return open.empty() && judge_rates(decision.nodes, now) ? decide(nodes, now) : decision;
}

// Whether one of them is slow beside all whose rates are known, which was not known before.
bool NodePlacement::judge_rates(const std::vector<std::string>& chosen, double now) {
  std::vector<double> products, copies;
  for (const auto& [node, check] : checks_) {
    if (check.product_rate > 0) products.push_back(check.product_rate);
    if (check.memory_rate > 0) copies.push_back(check.memory_rate);
  }
  const double product = median_rate(std::move(products)), copy = median_rate(std::move(copies));
  bool found = false;
  for (const std::string& node : chosen) {
    const auto known = checks_.find(node);
    if (known == checks_.end() || known->second.result != Check::Result::kPassed) continue;
    Check& check = known->second;
    const bool slow_product = check.product_rate > 0 && check.product_rate < kSlow * product;
    const bool slow_copy = check.memory_rate > 0 && check.memory_rate < kSlow * copy;
    if (!slow_product && !slow_copy) continue;
    const double share = slow_product ? check.product_rate / product : check.memory_rate / copy;
    check.result = Check::Result::kSlow;
    check.done_s = now;
    check.evidence = fmt::format("{} reach {:.2f} of the median rate of the nodes",
                                 slow_product ? "its products" : "its copies in memory", share);
    slow_.push_back({node, check.evidence});
    found = true;
  }
  return found;
}

void NodePlacement::start(const Decision& decision) {
  nodes_ = decision.nodes;
  layout_ = decision.layout;
  rules_.patience_s = 0;
  for (const std::string& node : nodes_) checks_[node].ran_since = true;
}

void NodePlacement::check_spares(std::span<const NodeView> nodes, double now) {
  if (!rules_.preflight) return;
  for (const NodeView& node : nodes) {
    if (!node.ready || runs_on(node.name) || check_of(node.name).number > 0) continue;
    const bool due = !checks_.contains(node.name) || now - checks_[node.name].done_s >= kSpare_s;
    const bool failed = is_out(node.name, now) || has_failed(node.name, Check::Result::kSlow, now);
    if (due || (!has_passed(node.name, now) && !failed)) begin_check(node.name, now);
  }
}

std::optional<NodePlacement::Move> NodePlacement::grow(std::span<const NodeView> nodes,
                                                       double now) const {
  if (rules_.elastic != Elastic::kFull || !layout_) return std::nullopt;
  int num_nodes = 0;
  for (const NodeView& node : nodes)
    num_nodes += runs_on(node.name) ||
                 (node.ready && !node.held && !node.broken && has_passed(node.name, now));
  const LaunchLayout* layout = layouts_.on(num_nodes);
  if (!layout || layout->nodes <= layout_->nodes || layout->step_s >= layout_->step_s)
    return std::nullopt;
  return Move{1 - layout->step_s / layout_->step_s,
              fmt::format("{} of {} nodes are there", num_nodes, rules_.num_nodes)};
}

std::optional<NodePlacement::Move> NodePlacement::leave(const std::string& slow_node, double share,
                                                        std::span<const NodeView> nodes,
                                                        double now) const {
  const bool spare = std::ranges::any_of(nodes, [&](const NodeView& node) {
    return node.ready && !node.held && !node.broken && !runs_on(node.name) &&
           has_passed(node.name, now);
  });
  if (slow_node.empty() || !spare) return std::nullopt;
  return Move{share, fmt::format("node {} is slow, and a spare is there", slow_node), slow_node};
}

}  // namespace ashlar::launch
