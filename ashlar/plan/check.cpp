#include "ashlar/plan/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/train/bucket_bytes.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::plan {
namespace {

using sizing::RuleFinding;
using sizing::Severity;

// The rule that a refusal breaks, by the key that it is about.
std::string rule_of(const std::string& message) {
  const std::pair<const char*, const char*> rules[] = {
      {"parallel.tp is", "R4"}, {"num_attention_heads is", "R4"}, {"parallel.pp is", "R6"}};
  for (const auto& [key, rule] : rules)
    if (message.find(key) != std::string::npos) return rule;
  return "recipe";
}

std::string origin_text(const MachineFile* machine) {
  if (!machine) return "none given: rules about products, links and memory were not applied";
  const auto& profile = machine->profile;
  const auto commit = profile.identity.find("commit");
  return fmt::format("{}, fingerprint {}, commit {}", profile.name, profile.fingerprint(),
                     commit != profile.identity.end() ? commit->second : "not known");
}

std::string plural(size_t count, const char* word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

}  // namespace

bool Check::has_error() const {
  return std::any_of(findings.begin(), findings.end(),
                     [](const RuleFinding& f) { return f.severity == Severity::kError; });
}

Check check(FileSystem& files, const std::string& path, const std::vector<std::string>& overrides,
            int64_t num_ranks, const MachineFile* machine) {
  Check check;
  check.recipe = path;
  check.num_ranks = num_ranks;
  sizing::RuleInput input;
  input.machine = machine ? &machine->profile : nullptr;
  try {
    const Recipe stated = train::read_recipe(files, path, overrides);
    input.recipe = machine ? with_bucket_bytes(stated, num_ranks, *machine)
                           : train::with_bucket_bytes(files, stated, num_ranks);
    input.parallel = resolve_parallel(input.recipe, num_ranks);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kConfig) throw;
    check.findings.push_back({rule_of(error.what()), Severity::kError, error.what(), "", {}});
    return check;
  }
  check.mesh = mesh_text(input.parallel);
  check.findings = sizing::findings_of(input);
  return check;
}

std::string describe(const Check& check, const MachineFile* machine) {
  std::string text = fmt::format("{} on {}", check.recipe, plural(size_t(check.num_ranks), "rank"));
  text += check.mesh.empty() ? "\n" : fmt::format(": {}\n", check.mesh);
  std::array<size_t, 3> counts{};
  for (const RuleFinding& finding : check.findings) {
    ++counts[size_t(finding.severity)];
    text += fmt::format("\n{:<6} {:<8} {}\n", finding.rule,
                        sizing::kSeverityNames[size_t(finding.severity)], finding.text);
    if (!finding.cost.empty()) text += fmt::format("{:16}costs {}\n", "", finding.cost);
    if (!finding.choices.empty())
      text += fmt::format("{:16}choose {}\n", "", fmt::join(finding.choices, " or "));
  }
  text += fmt::format("\n{}, {}, {}\n", plural(counts[0], "error"), plural(counts[1], "warning"),
                      plural(counts[2], "note"));
  text += fmt::format("machine {}\n", origin_text(machine));
  if (machine)
    for (const std::string& name : machine->profile.assumed())
      text += fmt::format("assumed {}\n", name);
  text.pop_back();
  return text;
}

std::string to_json(const Check& check, const MachineFile* machine) {
  Ordered findings = Ordered::array();
  for (const RuleFinding& finding : check.findings)
    findings.push_back({{"rule", finding.rule},
                        {"severity", sizing::kSeverityNames[size_t(finding.severity)]},
                        {"text", finding.text},
                        {"cost", finding.cost},
                        {"choices", finding.choices}});
  Ordered json = {{"format", "ashlar-check-1"},
                  {"recipe", check.recipe},
                  {"ranks", check.num_ranks},
                  {"mesh", check.mesh},
                  {"legal", !check.has_error()},
                  {"findings", findings},
                  {"machine", machine ? machine->profile.name : ""},
                  {"fingerprint", machine ? machine->profile.fingerprint() : ""}};
  Ordered assumed = Ordered::array();
  if (machine)
    for (const std::string& name : machine->profile.assumed()) assumed.push_back(name);
  json["assumed"] = assumed;
  return one_line(json);
}

}  // namespace ashlar::plan
