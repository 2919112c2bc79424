#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/nn/precision.h"
#include "ashlar/plan/search_stages.h"
#include "ashlar/sim/kernel_times.h"

namespace ashlar::plan {
namespace {

constexpr size_t kShownSensitivities = 12, kShownClasses = 16;
constexpr std::array<const char*, 5> kWhyNames{"refused", "links", "memory", "slower", "equal"};

double mfu_of(const SearchResult& result, const SearchedLayout& layout, int num_ranks) {
  return result.peak_flop > 0
             ? result.flop_a_token * layout.tokens_per_s() / (double(num_ranks) * result.peak_flop)
             : 0;
}

std::string keys_or_none(const std::string& keys) {
  return keys.empty() ? "(the recipe as it is)" : keys;
}

// Machine, what was never measured, what was assumed.
std::vector<std::pair<std::string, std::string>> provenance(const SearchResult& result,
                                                            const machine::Profile& profile) {
  const auto commit = profile.identity.find("commit");
  std::vector<std::pair<std::string, std::string>> lines = {
      {"machine", fmt::format("{}, fingerprint {}, commit {}", profile.name, profile.fingerprint(),
                              commit != profile.identity.end() ? commit->second : "not known")}};
  for (const std::string& name : profile.assumed()) lines.emplace_back("assumed", name);
  for (const std::string& note : result.notes) lines.emplace_back("assumed", note);
  for (const machine::ProfileKey& key : machine::not_measured(profile))
    lines.emplace_back("never measured", fmt::format("{} ({})", key.name, key.command));
  return lines;
}

std::string counts_text(const SearchResult& r) {
  std::string text = fmt::format("layouts        {:>12}\n", format_thousands(r.num_layouts));
  const auto line = [&](const char* name, int64_t count) {
    text += fmt::format("  {:<36} {:>12}\n", name, format_thousands(count));
  };
  line("refused by rules", r.num_refused);
  line("refused for the links of a node", r.num_links);
  line("too large by formulas", r.num_formula);
  line("timed by formulas", r.num_timed);
  line("dry runs", r.num_dry_runs);
  line("too large by a dry run", r.num_too_large);
  line("simulated", r.num_simulated);
  return text;
}

std::string best_text(const SearchResult& r, int num_ranks) {
  std::string text = fmt::format("{:>4} {:>12} {:>14} {:>7} {:>12}  {}\n", "", "step, ms",
                                 "tokens/s", "MFU, %", "memory", "keys");
  int number = 0;
  for (const SearchedLayout& layout : r.best)
    text += fmt::format("{:>4} {:>12.3f} {:>14} {:>7.2f} {:>12}  {}\n", ++number,
                        1e3 * layout.step_s(), format_thousands(int64_t(layout.tokens_per_s())),
                        100 * mfu_of(r, layout, num_ranks),
                        format_bytes(layout.memory->total_bytes), keys_or_none(layout.keys));
  text += "\nmemory: of the fullest rank";
  if (r.memory_bytes > 0)
    text += fmt::format("; {} has {}", r.memory_from, format_bytes(r.memory_bytes));
  if (!r.peak_from.empty())
    text += fmt::format("\nMFU: exact-causal, {:.4g} flop a token, of {} ({:.4g} TFLOP/s a rank)",
                        r.flop_a_token, r.peak_from, 1e-12 * r.peak_flop);
  return text + "\n";
}

std::string neighbours_text(const SearchResult& r) {
  std::string text = "why each neighbour of the best layout loses, one key at a time\n";
  for (const Neighbour& n : r.neighbours) text += fmt::format("  {:<36} {}\n", n.key, n.reason);
  return text;
}

std::string classes_text(const SearchResult& r) {
  std::string text = fmt::format("{:>8} {:>6} {:>12} {:>11} {:>11} {:>11} {:>9}\n", "ranks", "as",
                                 "peak", "compute, ms", "exposed, ms", "waiting, ms", "bubble, %");
  for (size_t c = 0; c < std::min(r.classes.size(), kShownClasses); ++c) {
    const ClassShare& k = r.classes[c];
    text += fmt::format("{:>8} {:>6} {:>12} {:>11.3f} {:>11.3f} {:>11.3f} {:>9.2f}\n",
                        k.ranks.size(), k.ranks[0], format_bytes(k.peak_bytes),
                        1e3 * k.share.compute_s, 1e3 * k.share.exposed_s, 1e3 * k.share.waiting_s,
                        k.share.step_s > 0 ? 100 * k.share.waiting_s / k.share.step_s : 0);
  }
  if (r.classes.size() > kShownClasses)
    text += fmt::format("   ... {} more classes (--json)\n", r.classes.size() - kShownClasses);
  return text + "bubble: waits for ranks that had not come, of the step\n";
}

std::string sensitivity_text(const SearchResult& r) {
  std::string text =
      fmt::format("{:<28} {:>9} {:>9}\n", "time of the best layout if", "-10 %", "+10 %");
  for (size_t i = 0; i < std::min(r.sensitivity.size(), kShownSensitivities); ++i) {
    const Sensitivity& s = r.sensitivity[i];
    text += fmt::format("  {:<26} {:>+8.2f}% {:>+8.2f}%\n", s.number, 100 * s.less, 100 * s.more);
    for (const auto& [side, keys] : {std::pair{"-10 %", s.less_best}, {"+10 %", s.more_best}})
      if (!keys.empty())
        text += fmt::format("    at {} the best is {}{}\n", side, keys,
                            s.simulated ? " (simulated)" : " (by formulas)");
  }
  if (r.sensitivity.size() > kShownSensitivities)
    text += fmt::format("  ... {} more (--json)\n", r.sensitivity.size() - kShownSensitivities);
  return text;
}

std::string nothing_text(const SearchResult& r) {
  const SearchedLayout& miss = *r.nearest_miss;
  return fmt::format(
      "no layout fits in {} ({})\nnearest: {}\n  rank {} takes {}, {} too much; fullest in: {}\n"
      "more ranks, a shorter data.sequence_length or a smaller train.micro_batch need less\n",
      format_bytes(r.memory_bytes), r.memory_from, keys_or_none(miss.keys), miss.memory->rank,
      format_bytes(miss.memory->total_bytes),
      format_bytes(miss.memory->total_bytes - r.memory_bytes), miss.memory->workspace_peak);
}

Ordered memory_json(const RankMemory& memory) {
  Ordered json = {{"rank", memory.rank}};
  for (size_t tag = 0; tag < memory.tag_bytes.size(); ++tag)
    json[std::string(name_of(Tag(int(tag))))] = memory.tag_bytes[tag];
  json["total"] = memory.total_bytes;
  return json;
}

Ordered shares_json(const std::array<double, 3>& shares) {
  Ordered json;
  for (size_t i = 0; i < shares.size(); ++i) json[std::string(sim::kTimeSources[i])] = shares[i];
  return json;
}

Ordered layout_json(const SearchResult& r, const SearchedLayout& layout, int num_ranks) {
  const ParallelSpec& p = layout.parallel;
  Ordered json = {{"keys", layout.keys},
                  {"mesh", mesh_text(p)},
                  {"micro_batch", layout.micro_batch},
                  {"sequence_length", layout.sequence_length},
                  {"tokens", layout.tokens},
                  {"formula_step_s", layout.time.total_s},
                  {"formula_bytes", layout.formula_bytes}};
  Ordered parts;
  for (const auto& [name, seconds] : parts_of(layout.time))
    if (seconds > 0) parts[name] = seconds;
  json["formula_parts_s"] = parts;
  if (layout.memory) json["memory_bytes"] = memory_json(*layout.memory);
  json["step_s"] = layout.step_s();
  json["tokens_per_s"] = layout.tokens_per_s();
  json["mfu"] = mfu_of(r, layout, num_ranks);
  json["simulated"] = layout.step.has_value();
  if (!layout.step) return json;
  const sim::RankShare mean = mean_share(*layout.step);
  json["mean_of_ranks_s"] = {{"compute", mean.compute_s},
                             {"exposed", mean.exposed_s},
                             {"waiting", mean.waiting_s},
                             {"between", mean.between_s}};
  json["kernel_shares"] = shares_json(layout.step->kernel_shares);
  json["operation_shares"] = shares_json(layout.step->operation_shares);
  return json;
}

Ordered counts_json(const SearchResult& r) {
  Ordered rules = Ordered::object();
  for (const auto& [rule, count] : r.refusals) rules[rule] = count;
  return {{"layouts", r.num_layouts},
          {"refused_by_rules", r.num_refused},
          {"refused_for_links", r.num_links},
          {"too_large_by_formulas", r.num_formula},
          {"timed_by_formulas", r.num_timed},
          {"dry_runs", r.num_dry_runs},
          {"too_large_by_dry_runs", r.num_too_large},
          {"simulated", r.num_simulated},
          {"refusals_by_rule", rules}};
}

Ordered classes_json(const SearchResult& r) {
  Ordered list = Ordered::array();
  for (const ClassShare& c : r.classes) {
    Ordered memory;
    for (size_t tag = 0; tag < c.tag_bytes.size(); ++tag)
      memory[std::string(name_of(Tag(int(tag))))] = c.tag_bytes[tag];
    memory["total"] = c.peak_bytes;
    list.push_back({{"ranks", c.ranks},
                    {"memory_bytes", memory},
                    {"step_s", c.share.step_s},
                    {"compute_s", c.share.compute_s},
                    {"exposed_s", c.share.exposed_s},
                    {"waiting_s", c.share.waiting_s},
                    {"between_s", c.share.between_s}});
  }
  return list;
}

}  // namespace

std::string describe(const SearchResult& r, const Recipe& base, const MachineFile& machine,
                     const SearchOptions& options) {
  std::string text = fmt::format("search         {} on {} ranks of {}, goal {}\n",
                                 base.name.empty() ? base.source : base.name, options.num_ranks,
                                 machine.profile.name, kGoalNames[size_t(options.goal)]);
  text += counts_text(r) + "\n";
  if (r.best.empty()) {
    text += nothing_text(r);
  } else {
    text += best_text(r, options.num_ranks) + "\n" + neighbours_text(r) + "\n";
    text += "ranks of the best layout\n" + classes_text(r) + "\n" + sensitivity_text(r) + "\n";
    const SimulatedStep& step = *r.best[0].step;
    for (const auto& [what, shares] :
         {std::pair{"kernels", step.kernel_shares}, {"operations", step.operation_shares}})
      text += fmt::format("times of {:<11} {:.1f} % exact, {:.1f} % neighbour, {:.1f} % law\n",
                          what, 100 * shares[0], 100 * shares[1], 100 * shares[2]);
  }
  for (const auto& [name, value] : provenance(r, machine.profile))
    text += fmt::format("{:<20} {}\n", name, value);
  text.pop_back();
  return text;
}

std::string to_json(const SearchResult& r, const Recipe& base, const MachineFile& machine,
                    const SearchOptions& options) {
  Ordered best = Ordered::array(), neighbours = Ordered::array(), moved = Ordered::array();
  for (const SearchedLayout& layout : r.best)
    best.push_back(layout_json(r, layout, options.num_ranks));
  for (const Neighbour& n : r.neighbours)
    neighbours.push_back({{"key", n.key},
                          {"why", kWhyNames[size_t(n.why)]},
                          {"reason", n.reason},
                          {"slower", n.slower},
                          {"over_bytes", n.over_bytes}});
  for (const Sensitivity& s : r.sensitivity)
    moved.push_back({{"number", s.number},
                     {"less", s.less},
                     {"more", s.more},
                     {"less_best", s.less_best},
                     {"more_best", s.more_best},
                     {"simulated", s.simulated}});
  Ordered assumed = Ordered::array(), unmeasured = Ordered::array();
  for (const auto& [name, value] : provenance(r, machine.profile))
    if (name == "assumed")
      assumed.push_back(value);
    else if (name == "never measured")
      unmeasured.push_back(value);
  const auto commit = machine.profile.identity.find("commit");
  Ordered json = {{"format", "ashlar-search-1"},
                  {"recipe", base.name.empty() ? base.source : base.name},
                  {"ranks", options.num_ranks},
                  {"goal", kGoalNames[size_t(options.goal)]},
                  {"counts", counts_json(r)},
                  {"memory_bytes", r.memory_bytes},
                  {"memory_from", r.memory_from},
                  {"mfu_convention", "exact-causal"},
                  {"flop_per_token", r.flop_a_token},
                  {"peak_flop_per_s", r.peak_flop},
                  {"peak_from", r.peak_from},
                  {"best", best},
                  {"neighbours", neighbours},
                  {"classes", classes_json(r)},
                  {"sensitivity", moved}};
  if (r.nearest_miss) json["nearest_miss"] = layout_json(r, *r.nearest_miss, options.num_ranks);
  json["machine"] = machine.profile.name;
  json["fingerprint"] = machine.profile.fingerprint();
  json["commit"] = commit != machine.profile.identity.end() ? commit->second : "not known";
  json["assumed"] = assumed;
  json["never_measured"] = unmeasured;
  return one_line(json);
}

}  // namespace ashlar::plan
