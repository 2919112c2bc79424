#include "ashlar/machine/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ashlar::machine {
namespace {

constexpr std::array<std::string_view, kNumVerdicts> kVerdictNames = {
    "above-model", "good",    "normal",     "low",       "bad",      "unstable",
    "disturbed",   "unknown", "wrong-data", "timed-out", "rank-lost"};

Verdict by_ratio(double ratio) {
  if (ratio > 1.05) return Verdict::kAboveModel;
  if (ratio >= 0.95) return Verdict::kGood;
  if (ratio >= 0.85) return Verdict::kNormal;
  return ratio >= 0.70 ? Verdict::kLow : Verdict::kBad;
}

std::string slow_hint(Subject subject) {
  switch (subject) {
    case Subject::kCollective:
      return "compare the ranks (bench smoke); then the width and speed of links, NUMA balancing "
             "and "
             "power caps, and whether ranks share cores";
    case Subject::kProduct:
      return "look at clock and power cap, temperature, and other programs on these cores";
    case Subject::kMemory:
      return "look for missing memory modules, NUMA placement and other programs";
    case Subject::kStorage:
      return "look at the mount's options, other clients, the fill of the disk and its health";
    case Subject::kLaunch:
      return "look at the CPU's idle states and frequency governor, and at ranks that share cores";
  }
  return "";
}

std::string high_hint(Subject subject) {
  switch (subject) {
    case Subject::kCollective:
      return "the operation reduces inside a switch or in two levels, or its data fits a cache";
    case Subject::kProduct:
      return "the clock is above the one of the earlier measurement";
    case Subject::kMemory:
      return "the arrays fit a cache";
    case Subject::kStorage:
      return "the data came from a cache";
    case Subject::kLaunch:
      return "threads did not sleep between launches";
  }
  return "";
}

std::string hint_for(Verdict verdict, const Measured& m) {
  switch (verdict) {
    case Verdict::kAboveModel:
      return high_hint(m.subject);
    case Verdict::kLow:
    case Verdict::kBad:
      return m.cause.empty() ? slow_hint(m.subject) : m.cause;
    case Verdict::kUnstable:
      return fmt::format(
          "repeats differ by {:.0f} %: CPU frequency, interrupts, or ranks that share "
          "cores",
          100 * m.cv);
    case Verdict::kDisturbed:
      return fmt::format("{}others took {:.0f} % of the cores{}; measure again without them",
                         m.cause.empty() ? "" : m.cause + ": ", 100 * m.foreign_share,
                         m.neighbour.empty() ? "" : ", most of it " + m.neighbour);
    case Verdict::kUnknown:
      return "nothing to compare with: measure into a profile first";
    case Verdict::kWrongData:
      return fmt::format("{} elements are wrong: memory, a link or the library", m.num_wrong);
    case Verdict::kTimedOut:
    case Verdict::kRankLost:
      return m.cause;
    case Verdict::kGood:
    case Verdict::kNormal:
      break;
  }
  return "";
}

int seriousness(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWrongData:
      return 8;
    case Verdict::kRankLost:
      return 7;
    case Verdict::kTimedOut:
      return 6;
    case Verdict::kBad:
      return 5;
    case Verdict::kLow:
      return 4;
    case Verdict::kDisturbed:
      return 3;
    case Verdict::kUnstable:
      return 2;
    case Verdict::kUnknown:
      return 1;
    case Verdict::kAboveModel:
    case Verdict::kGood:
    case Verdict::kNormal:
      break;
  }
  return 0;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  return kVerdictNames[size_t(verdict)];
}

int exit_code(Verdict verdict, bool strict) {
  switch (verdict) {
    case Verdict::kLow:
      return strict ? 3 : 0;
    case Verdict::kBad:
      return 4;
    case Verdict::kWrongData:
      return 5;
    case Verdict::kTimedOut:
      return 6;
    case Verdict::kDisturbed:
      return 7;
    case Verdict::kRankLost:
      return 8;
    default:
      return 0;
  }
}

double cv_of_spread(double spread) {
  return spread / 2.56;
}

Judgement judge(const Measured& m, const std::optional<Expected>& expected) {
  Judgement result{m.name, Verdict::kUnknown, m.value, m.unit, {}, "", "", m.rank};
  if (expected && expected->value > 0 && m.value > 0) {
    result.ratio = m.larger_is_better ? m.value / expected->value : expected->value / m.value;
    result.expected = fmt::format("{:.4g} {}, {}", expected->value, m.unit, expected->from);
  }
  // Reasons that make the number meaningless come before its ratio.
  if (m.num_wrong > 0)
    result.verdict = Verdict::kWrongData;
  else if (m.timed_out)
    result.verdict = Verdict::kTimedOut;
  else if (m.foreign_share > kMaxForeignShare)
    result.verdict = Verdict::kDisturbed;
  else if (m.cv > kMaxSpread)
    result.verdict = Verdict::kUnstable;
  else if (result.ratio)
    result.verdict = by_ratio(*result.ratio);
  result.hint = hint_for(result.verdict, m);
  return result;
}

std::vector<Judgement> judge_fleet(std::span<const Measured> nodes) {
  std::vector<double> values;
  for (const Measured& m : nodes)
    if (m.num_wrong == 0 && !m.timed_out) values.push_back(m.value);
  std::optional<Expected> median;
  if (values.size() >= 3) {
    std::sort(values.begin(), values.end());
    median = {0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]),
              fmt::format("the median of {} nodes", values.size())};
  }
  std::vector<Judgement> result;
  for (const Measured& m : nodes) {
    Judgement& j = result.emplace_back(judge(m, median));
    if (j.verdict != Verdict::kAboveModel) continue;
    j.verdict = Verdict::kGood;  // faster than its fellows, which calls for no explanation
    j.hint.clear();
  }
  return result;
}

Verdict worst_of(std::span<const Judgement> judgements) {
  Verdict worst = Verdict::kGood;
  for (const Judgement& j : judgements)
    if (seriousness(j.verdict) > seriousness(worst)) worst = j.verdict;
  return worst;
}

}  // namespace ashlar::machine
