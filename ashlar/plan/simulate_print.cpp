#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/plan/simulate.h"
#include "ashlar/sim/kernel_times.h"

namespace ashlar::plan {
namespace {

constexpr size_t kShownRanks = 16;

std::string share_text(const std::array<double, 3>& shares) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < shares.size(); ++i)
    parts.push_back(fmt::format("{:.1f} % {}", 100 * shares[i], sim::kTimeSources[i]));
  return fmt::format("{}", fmt::join(parts, ", "));
}

Ordered share_json(const std::array<double, 3>& shares) {
  Ordered json;
  for (size_t i = 0; i < shares.size(); ++i) json[std::string(sim::kTimeSources[i])] = shares[i];
  return json;
}

std::string commit_of(const machine::Profile& profile) {
  const auto commit = profile.identity.find("commit");
  return commit != profile.identity.end() ? commit->second : "not known";
}

double tokens_a_second(const SimulatedStep& step) {
  return double(step.tokens) / (step.step_s + step.between_s);
}

std::string rank_table(const SimulatedStep& step) {
  std::string text = fmt::format("{:>6} {:>12} {:>12} {:>12} {:>12} {:>12}  ms\n", "rank", "step",
                                 "compute", "exposed", "waiting", "between");
  const std::vector<int>& simulated = step.simulated;
  for (size_t i = 0; i < std::min(simulated.size(), kShownRanks); ++i) {
    const sim::RankShare& rank = step.replayed.ranks[size_t(simulated[i])];
    text += fmt::format("{:>6} {:>12.3f} {:>12.3f} {:>12.3f} {:>12.3f} {:>12.3f}\n", simulated[i],
                        1e3 * rank.step_s, 1e3 * rank.compute_s, 1e3 * rank.exposed_s,
                        1e3 * rank.waiting_s, 1e3 * rank.between_s);
  }
  if (simulated.size() > kShownRanks)
    text += fmt::format("   ... {} more ranks (--json)\n", simulated.size() - kShownRanks);
  return text;
}

}  // namespace

std::string describe(const SimulatedStep& step, const MachineFile& machine) {
  std::string text = fmt::format("step           {:>12.3f} ms\n", 1e3 * step.step_s);
  if (step.band_s)
    text += fmt::format(
        "band           {:>12.3f} to {:.3f} ms, if all takes its 10th or 90th percentile\n",
        1e3 * (*step.band_s)[0], 1e3 * (*step.band_s)[1]);
  if (step.between_s > 0)
    text += fmt::format("between steps  {:>12.3f} ms, as recorded\n", 1e3 * step.between_s);
  if (step.tokens > 0)
    text +=
        fmt::format("tokens         {:>12} a step, {} a second\n", format_thousands(step.tokens),
                    format_thousands(int64_t(tokens_a_second(step))));
  text += fmt::format("\n{}\n", rank_table(step));
  text += "exposed: waits while data moved; waiting: for ranks that had not come\n\n";
  text += fmt::format("times of kernels     {}\n", share_text(step.kernel_shares));
  text += fmt::format("times of operations  {}{}\n", share_text(step.operation_shares),
                      step.engine.empty() ? "" : fmt::format(" ({})", step.engine));
  if (!step.by_law.empty())
    text += fmt::format("kernels by law       {}\n", fmt::join(step.by_law, ", "));
  text += fmt::format("machine              {}, fingerprint {}, commit {}\n", machine.profile.name,
                      machine.profile.fingerprint(), commit_of(machine.profile));
  text +=
      fmt::format("replayed             {} step{} of {} rank{} on {} node{}\n", step.num_steps,
                  step.num_steps == 1 ? "" : "s", step.num_ranks, step.num_ranks == 1 ? "" : "s",
                  step.num_nodes, step.num_nodes == 1 ? "" : "s");
  for (const std::string& name : machine.profile.assumed())
    text += fmt::format("assumed              {}\n", name);
  for (const std::string& note : step.notes) text += fmt::format("assumed              {}\n", note);
  text.pop_back();
  return text;
}

std::string to_json(const SimulatedStep& step, const MachineFile& machine) {
  Ordered ranks = Ordered::array();
  for (const int number : step.simulated) {
    const sim::RankShare& rank = step.replayed.ranks[size_t(number)];
    ranks.push_back({{"rank", number},
                     {"step_s", rank.step_s},
                     {"compute_s", rank.compute_s},
                     {"exposed_s", rank.exposed_s},
                     {"waiting_s", rank.waiting_s},
                     {"between_s", rank.between_s}});
  }
  Ordered assumed = Ordered::array();
  for (const std::string& name : machine.profile.assumed()) assumed.push_back(name);
  for (const std::string& note : step.notes) assumed.push_back(note);
  Ordered json = {{"format", "ashlar-simulated-step-1"},
                  {"step_s", step.step_s},
                  {"between_s", step.between_s}};
  if (step.band_s) json["band_s"] = {(*step.band_s)[0], (*step.band_s)[1]};
  if (step.tokens > 0) {
    json["tokens"] = step.tokens;
    json["tokens_per_s"] = tokens_a_second(step);
  }
  json["ranks"] = ranks;
  json["num_ranks"] = step.num_ranks;
  json["nodes"] = step.num_nodes;
  json["steps_s"] = step.replayed.step_s;
  json["kernel_shares"] = share_json(step.kernel_shares);
  json["operation_shares"] = share_json(step.operation_shares);
  json["kernels_by_law"] = step.by_law;
  json["engine"] = step.engine;
  json["machine"] = machine.profile.name;
  json["fingerprint"] = machine.profile.fingerprint();
  json["commit"] = commit_of(machine.profile);
  json["assumed"] = assumed;
  return one_line(json);
}

}  // namespace ashlar::plan
