#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/plan/estimate.h"
#include "ashlar/sizing/mfu.h"

namespace ashlar::plan {
namespace {

using sizing::StepTime;

constexpr const char* kMfuConvention = "exact-causal";

struct EstimatePart {
  const char *name, *key;
  double StepTime::*seconds;
};
constexpr EstimatePart kEstimateParts[] = {
    {"forward", "forward_s", &StepTime::forward_s},
    {"recomputation", "recompute_s", &StepTime::recompute_s},
    {"loss", "loss_s", &StepTime::loss_s},
    {"backward", "backward_s", &StepTime::backward_s},
    {"copies, packing", "weights_s", &StepTime::weights_s},
    {"optimizer", "optimizer_s", &StepTime::optimizer_s},
    {"gathers", "gather_wait_s", &StepTime::gather_wait_s},
    {"gradients", "gradients_wait_s", &StepTime::gradients_wait_s},
    {"tp", "tp_s", &StepTime::tp_s},
    {"cp", "cp_s", &StepTime::cp_s},
    {"tsp", "tsp_s", &StepTime::tsp_s},
    {"ep", "ep_s", &StepTime::ep_s},
    {"pp", "pp_s", &StepTime::pp_s},
    {"bubble", "bubble_s", &StepTime::bubble_s},
    {"Muon's messages", "muon_s", &StepTime::muon_s},
    {"reading", "reading_s", &StepTime::reading_s},
};

struct EstimateTag {
  const char* name;
  double sizing::MemoryEstimate::*bytes;
};
constexpr EstimateTag kEstimateTags[] = {
    {"weights", &sizing::MemoryEstimate::weights},
    {"gradients", &sizing::MemoryEstimate::gradients},
    {"optimizer", &sizing::MemoryEstimate::optimizer},
    {"saved", &sizing::MemoryEstimate::saved},
    {"workspace", &sizing::MemoryEstimate::workspace},
};

double mfu_of(const Estimate& e, const EstimatedLayout& row, double flop_a_second) {
  if (flop_a_second <= 0) return 0;
  return row.training_flop * double(row.tokens) /
         (row.time.total_s * double(e.num_ranks) * flop_a_second);
}

std::string commit_named(const machine::Profile& profile) {
  const auto commit = profile.identity.find("commit");
  return commit != profile.identity.end() ? commit->second : "not known";
}

std::string estimate_row(const Estimate& e, const EstimatedLayout& row, size_t number) {
  std::string text = fmt::format(
      "{:>3} {:>11.3f} {:>13} {:>7} {:>8.2f}  {}{}\n", number, 1e3 * row.time.total_s,
      format_thousands(int64_t(double(row.tokens) / row.time.total_s)),
      e.peak_flop > 0 ? fmt::format("{:.1f} %", 100 * mfu_of(e, row, e.peak_flop)) : "-",
      row.memory.total / double(int64_t{1} << 30), mesh_text(row.parallel),
      row.fits ? "" : ": does not fit");
  if (!row.keys.empty()) text += fmt::format("{:48}{}\n", "", row.keys);
  return text;
}

std::string estimate_parts(const Estimate& e) {
  std::string text = fmt::format("{:<18}", "ms");
  for (size_t i = 0; i < e.layouts.size(); ++i) text += fmt::format("{:>11}", i + 1);
  text += "\n";
  for (const EstimatePart& part : kEstimateParts) {
    const auto used = [&](const EstimatedLayout& row) { return row.time.*part.seconds > 0; };
    if (std::none_of(e.layouts.begin(), e.layouts.end(), used)) continue;
    text += fmt::format("{:<18}", part.name);
    for (const EstimatedLayout& row : e.layouts)
      text += fmt::format("{:>11.3f}", 1e3 * row.time.*part.seconds);
    text += "\n";
  }
  text += "\nGiB\n";
  for (const EstimateTag& tag : kEstimateTags) {
    text += fmt::format("{:<18}", tag.name);
    for (const EstimatedLayout& row : e.layouts)
      text += fmt::format("{:>11.3f}", row.memory.*tag.bytes / double(int64_t{1} << 30));
    text += "\n";
  }
  return text;
}

std::vector<std::string> estimate_assumptions(const Estimate& e, const MachineFile& machine) {
  std::vector<std::string> list = machine.profile.assumed();
  std::vector<std::string> known;
  for (const std::string& key : e.rests_on)
    (key.find(" is not known") == std::string::npos ? known : list).push_back(key);
  list.push_back(fmt::format("times rest on {}", fmt::join(known, ", ")));
  list.push_back("all times are laws: plan simulate replays the real program");
  list.push_back("memory is by closed formulas: plan dry-run counts it");
  list.push_back("a document a row, and every expert gets as many rows as another");
  if (e.device_memory <= 0) list.push_back("the memory of a rank is not known: everything fits");
  return list;
}

}  // namespace

std::string describe(const Estimate& e, const MachineFile& machine) {
  std::string text = fmt::format("{} on {} rank{} of {}, {} a node, products in {}\n\n", e.recipe,
                                 e.num_ranks, e.num_ranks == 1 ? "" : "s", machine.profile.name,
                                 e.ranks_per_node, e.bf16 ? "bf16" : "fp32");
  text += fmt::format("{:>3} {:>11} {:>13} {:>7} {:>8}  {}\n", "", "step ms", "tokens/s", "MFU",
                      "GiB", "layout");
  for (size_t i = 0; i < e.layouts.size(); ++i) text += estimate_row(e, e.layouts[i], i + 1);
  text += fmt::format("\n{}\n", estimate_parts(e));
  text += fmt::format("MFU                  {}, of the data sheet's peak\n", kMfuConvention);
  if (e.sustained_flop > 0)
    text += fmt::format("                     {:.1f} % of what products sustain, layout 1\n",
                        100 * mfu_of(e, e.layouts[0], e.sustained_flop));
  text += fmt::format("machine              {}, fingerprint {}, commit {}\n", machine.profile.name,
                      machine.profile.fingerprint(), commit_named(machine.profile));
  for (const std::string& line : estimate_assumptions(e, machine))
    text += fmt::format("assumed              {}\n", line);
  text.pop_back();
  return text;
}

std::string to_json(const Estimate& e, const MachineFile& machine) {
  Ordered layouts = Ordered::array();
  for (const EstimatedLayout& row : e.layouts) {
    Ordered time, memory;
    for (const EstimatePart& part : kEstimateParts) time[part.key] = row.time.*part.seconds;
    for (const EstimateTag& tag : kEstimateTags) memory[tag.name] = row.memory.*tag.bytes;
    memory["total"] = row.memory.total;
    Ordered layout = {{"keys", row.keys},
                      {"mesh", mesh_text(row.parallel)},
                      {"step_s", row.time.total_s},
                      {"tokens", row.tokens},
                      {"tokens_per_s", double(row.tokens) / row.time.total_s}};
    if (e.peak_flop > 0) layout["mfu"] = mfu_of(e, row, e.peak_flop);
    if (e.sustained_flop > 0) layout["share_of_sustained"] = mfu_of(e, row, e.sustained_flop);
    layout["fits"] = row.fits;
    layout["parts"] = time;
    layout["memory_bytes"] = memory;
    layouts.push_back(layout);
  }
  Ordered json = {{"format", "ashlar-estimate-1"},
                  {"recipe", e.recipe},
                  {"ranks", e.num_ranks},
                  {"ranks_per_node", e.ranks_per_node},
                  {"precision", e.bf16 ? "bf16" : "fp32"},
                  {"mfu_convention", kMfuConvention},
                  {"layouts", layouts},
                  {"machine", machine.profile.name},
                  {"fingerprint", machine.profile.fingerprint()},
                  {"commit", commit_named(machine.profile)},
                  {"assumed", estimate_assumptions(e, machine)}};
  return one_line(json);
}

}  // namespace ashlar::plan
