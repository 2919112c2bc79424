// Verdicts on the numbers of a profile, and how they changed since an earlier one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ashlar/machine/compare.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::Expected;
using machine::Judgement;
using machine::Measured;
using machine::Origin;
using machine::Profile;
using machine::ProfileKey;
using machine::Quantity;
using machine::Subject;
using machine::Verdict;

constexpr double kChanged = 0.05;  // from which a change is flagged

Subject subject_of(std::string_view key) {
  if (key.starts_with("compute.")) return Subject::kProduct;
  if (key.starts_with("memory.")) return Subject::kMemory;
  if (key.starts_with("storage.")) return Subject::kStorage;
  if (key.starts_with("launch.")) return Subject::kLaunch;
  return Subject::kCollective;
}

// Without another profile, a measurement is at most disturbed or unstable.
void judge_quantity(const std::string& name, std::string_view key, const Quantity& quantity,
                    std::vector<Judgement>& judgements) {
  if (quantity.origin != Origin::kMeasured) return;
  Measured measured;
  measured.name = name;
  measured.subject = subject_of(key);
  measured.value = quantity.value;
  measured.unit = quantity.unit;
  measured.cv = machine::cv_of_spread(quantity.spread);
  judgements.push_back(judge(measured, std::nullopt));
}

void judge_quantities(const Profile& profile, std::vector<Judgement>& judgements) {
  for (const ProfileKey& key : machine::profile_keys())
    if (const Quantity* quantity = profile.find(key.name); quantity && !key.command.empty())
      judge_quantity(std::string(key.name), key.name, *quantity, judgements);
  for (const machine::Mount& mount : profile.mounts)
    for (const auto& [key, quantity] : mount.quantities)
      judge_quantity(fmt::format("{} of {}", key, mount.path), key, quantity, judgements);
}

void judge_collectives(const Profile& profile, std::vector<Judgement>& judgements) {
  for (const machine::CollectiveCurve& curve : profile.collectives) {
    const auto law = machine::fit(curve.points, curve.factor());
    if (curve.provenance.origin != Origin::kMeasured || !law || law->gbps() <= 0) continue;
    Measured measured;
    measured.name = name_of(curve);
    measured.value = law->gbps();
    measured.unit = "GB/s";
    measured.foreign_share = curve.provenance.foreign_share;
    std::optional<Expected> expected;
    if (const auto limit = link_limit(profile, curve))
      expected = {limit->gbps * limit->usable,
                  fmt::format("{} x {:.2g}", limit->formula, limit->usable)};
    judgements.push_back(judge(measured, expected));
  }
}

void judge_rates(const Profile& profile, std::vector<Judgement>& judgements) {
  for (const machine::RateCurve& curve : profile.rates) {
    if (curve.provenance.origin != Origin::kMeasured || curve.points.empty()) continue;
    Measured measured;
    measured.name = fmt::format("{} ({} threads)", curve.subject, curve.threads);
    for (const machine::RatePoint& point : curve.points)
      measured.value = std::max(measured.value, point.median);
    measured.unit = curve.unit;
    measured.foreign_share = curve.provenance.foreign_share;
    judgements.push_back(judge(measured, std::nullopt));
  }
}

const Profile* earlier_of(std::span<const Profile> profiles, size_t number,
                          const Profile* baseline) {
  if (baseline) return baseline;
  for (size_t i = number; i-- > 0;)
    if (profiles[i].fingerprint() == profiles[number].fingerprint()) return &profiles[i];
  return nullptr;
}

bool is_fine(Verdict verdict) {
  return verdict == Verdict::kGood || verdict == Verdict::kNormal ||
         verdict == Verdict::kAboveModel;
}

Mood mood_of(Verdict worst) {
  if (is_fine(worst)) return Mood::kGood;
  return worst == Verdict::kBad || worst == Verdict::kWrongData || worst == Verdict::kTimedOut ||
                 worst == Verdict::kRankLost
             ? Mood::kBad
             : Mood::kWarning;
}

bool is_worse(const Judgement& j) {
  return j.ratio && *j.ratio < 1 - kChanged;
}

// "12 of 33 measured numbers are judged: 6 good, 6 disturbed."
void add_banner(std::span<const Judgement> judged, size_t num_measured, Page& page) {
  if (judged.empty()) {
    page.banner =
        "No measured number is judged: there is nothing to compare them with. Give an earlier "
        "profile of the machine with --baseline.";
    return;
  }
  std::map<Verdict, int> counts;
  for (const Judgement& j : judged) ++counts[j.verdict];
  std::string text;
  for (const auto& [verdict, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, to_string(verdict));
  page.banner =
      fmt::format("{} of {} measured numbers are judged: {}.", judged.size(), num_measured, text);
  page.mood = mood_of(worst_of(judged));
}

// The change of a number: "12.0 % worse".
std::string change_text(double ratio) {
  const double percent = 100 * std::abs(ratio - 1);
  if (percent < 0.05) return "none";
  return fmt::format("{:.1f} % {}", percent, ratio < 1 ? "worse" : "better");
}

PageTable changed_numbers(std::vector<Judgement> judgements, const std::string& title) {
  std::stable_sort(judgements.begin(), judgements.end(),
                   [](const Judgement& a, const Judgement& b) {
                     return a.ratio.value_or(1) < b.ratio.value_or(1);
                   });
  PageTable table{title, {"number", "change", "", "now", "unit", "before", "verdict"}, {}, ""};
  for (const Judgement& j : judgements) {
    if (!j.ratio) continue;
    table.rows.push_back({j.name, change_text(*j.ratio),
                          is_worse(j)               ? "regression"
                          : *j.ratio > 1 + kChanged ? "improvement"
                                                    : "",
                          fmt::format("{:.4g}", j.value), j.unit, j.expected,
                          std::string(to_string(j.verdict))});
  }
  return table;
}

// Text of the identity that differs: another kernel or driver explains more than a number.
PageTable drift_of(const Profile& now, const Profile& before, const std::string& title) {
  PageTable table{title, {"system", "before", "now"}, {}, ""};
  std::set<std::string> keys;
  for (const Profile* profile : {&before, &now})
    for (const auto& [key, text] : profile->identity) keys.insert(key);
  const auto text_in = [](const Profile& profile, const std::string& key) {
    const auto found = profile.identity.find(key);
    return found == profile.identity.end() ? std::string("unknown") : found->second;
  };
  for (const std::string& key : keys)
    if (text_in(now, key) != text_in(before, key))
      table.rows.push_back({key, text_in(before, key), text_in(now, key)});
  return table;
}

std::string only_text(const Profile& now, const Profile& before) {
  const size_t added = only_in(now, before).size(), missing = only_in(before, now).size();
  std::string text;
  if (added) text += fmt::format(" {} are new.", added);
  if (missing) text += fmt::format(" {} of the earlier profile are missing.", missing);
  return text;
}

}  // namespace

PageSection verdicts_section(std::span<const Profile> profiles, const Profile* baseline,
                             Page& page) {
  PageSection section{"Verdicts", "", {}};
  std::vector<Judgement> judged;
  size_t num_measured = 0;
  for (size_t i = 0; i < profiles.size(); ++i)
    for (Judgement& j : judgements_of(profiles[i], earlier_of(profiles, i, baseline))) {
      ++num_measured;
      if (j.verdict == Verdict::kUnknown) continue;
      if (profiles.size() > 1) j.name = fmt::format("{}: {}", profiles[i].name, j.name);
      judged.push_back(std::move(j));
    }
  if (num_measured == 0) return section;
  add_banner(judged, num_measured, page);
  if (const auto worse = std::count_if(judged.begin(), judged.end(), is_worse); worse > 0) {
    page.banner +=
        fmt::format(" More than {:.0f} % below what is expected: {}.", 100 * kChanged, worse);
    if (page.mood == Mood::kGood) page.mood = Mood::kWarning;
  }
  // Numbers that need a look come first.
  std::stable_partition(judged.begin(), judged.end(),
                        [](const Judgement& j) { return !is_fine(j.verdict); });
  PageTable table{"", {"verdict", "number", "value", "unit", "ratio", "expected", "hint"}, {}, ""};
  for (const Judgement& j : judged)
    table.rows.push_back({std::string(to_string(j.verdict)), j.name, fmt::format("{:.4g}", j.value),
                          j.unit, j.ratio ? fmt::format("{:.2f}", *j.ratio) : "", j.expected,
                          j.hint});
  table.note =
      "Expected: the number of the earlier profile of the same machine, else what its links allow. "
      "good from 0.95 of it, normal from 0.85, low from 0.70, bad below. Numbers without a verdict "
      "have nothing to compare with.";
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

PageSection changes_section(std::span<const Profile> profiles, const Profile* baseline) {
  PageSection section{"Changes since an earlier profile", "", {}};
  for (size_t i = 0; i < profiles.size(); ++i) {
    const Profile* before = earlier_of(profiles, i, baseline);
    if (!before) continue;
    const Profile& now = profiles[i];
    std::vector<Judgement> judgements = machine::compare(now, *before);
    const auto worse = std::count_if(judgements.begin(), judgements.end(), is_worse);
    section.text += fmt::format(
        "{}{} of {} beside {} of {}{}: {} numbers are in both, {} of them more than {:.0f} % "
        "worse.{}",
        section.text.empty() ? "" : " ", now.name, now.date, before->name, before->date,
        now.fingerprint() == before->fingerprint() ? "" : " (another machine, by its fingerprint)",
        judgements.size(), worse, 100 * kChanged, only_text(now, *before));
    const std::string title = profiles.size() == 1 ? "" : now.name;
    PageTable drift = drift_of(now, *before, title),
              changed = changed_numbers(std::move(judgements), title);
    if (!changed.rows.empty()) section.items.emplace_back(std::move(changed));
    if (!drift.rows.empty()) section.items.emplace_back(std::move(drift));
  }
  return section;
}

std::vector<Judgement> judgements_of(const Profile& profile, const Profile* earlier) {
  if (earlier) return machine::compare(profile, *earlier);
  std::vector<Judgement> judgements;
  judge_quantities(profile, judgements);
  judge_collectives(profile, judgements);
  judge_rates(profile, judgements);
  return judgements;
}

}  // namespace ashlar::report
