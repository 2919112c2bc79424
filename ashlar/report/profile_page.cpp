#include "ashlar/report/profile_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ashlar/core/text.h"
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

const Profile* earlier_of(std::span<const Profile> profiles, size_t number) {
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
  return worst == Verdict::kBad || worst == Verdict::kWrongData || worst == Verdict::kTimedOut
             ? Mood::kBad
             : Mood::kWarning;
}

// "12 of 33 measured numbers are judged: 6 good, 6 disturbed."
void add_banner(std::span<const Judgement> judged, size_t num_measured, Page& page) {
  if (judged.empty()) {
    page.banner =
        "No measured number is judged: there is nothing to compare them with. Give an earlier "
        "profile of the machine before this one.";
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

PageSection verdicts_section(std::span<const Profile> profiles, Page& page) {
  PageSection section{"Verdicts", "", {}};
  std::vector<Judgement> judged;
  size_t num_measured = 0;
  for (size_t i = 0; i < profiles.size(); ++i)
    for (Judgement& j : judgements_of(profiles[i], earlier_of(profiles, i))) {
      ++num_measured;
      if (j.verdict == Verdict::kUnknown) continue;
      if (profiles.size() > 1) j.name = fmt::format("{}: {}", profiles[i].name, j.name);
      judged.push_back(std::move(j));
    }
  if (num_measured == 0) return section;
  add_banner(judged, num_measured, page);
  // Numbers that need a look come first.
  std::stable_partition(judged.begin(), judged.end(),
                        [](const Judgement& j) { return !is_fine(j.verdict); });
  PageTable table{"", {"number", "verdict", "value", "unit", "ratio", "expected", "hint"}, {}, ""};
  for (const Judgement& j : judged)
    table.rows.push_back({j.name, std::string(to_string(j.verdict)), fmt::format("{:.4g}", j.value),
                          j.unit, j.ratio ? fmt::format("{:.2f}", *j.ratio) : "", j.expected,
                          j.hint});
  table.note =
      "Expected: the number of the earlier profile of the same machine, else what its links allow. "
      "good from 0.95 of it, normal from 0.85, low from 0.70, bad below. Numbers without a verdict "
      "have nothing to compare with.";
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

PageTable numbers_of(const Profile& profile) {
  PageTable table{
      "", {"number", "value", "unit", "spread", "source", "by", "date", "means"}, {}, ""};
  for (const ProfileKey& key : machine::profile_keys())
    if (const Quantity* q = profile.find(key.name))
      table.rows.push_back({std::string(key.name), fmt::format("{:.6g}", q->value), q->unit,
                            q->spread > 0 ? fmt::format("{:.1f} %", 100 * q->spread) : "",
                            std::string(to_string(q->origin)), q->from, q->date,
                            std::string(key.meaning)});
  return table;
}

// The numbers beside each other, with ratios to those of the first.
PageTable compared(std::span<const Profile> profiles) {
  PageTable table{"Beside each other", {"number", "unit"}, {}, ""};
  for (const Profile& profile : profiles) {
    table.columns.push_back(profile.name);
    if (&profile != &profiles[0]) table.columns.push_back("ratio");
  }
  for (const ProfileKey& key : machine::profile_keys()) {
    std::vector<std::string> row = {std::string(key.name), std::string(key.unit)};
    const Quantity* first = profiles[0].find(key.name);
    bool any_value = false;
    for (const Profile& profile : profiles) {
      const Quantity* q = profile.find(key.name);
      any_value |= q != nullptr;
      row.push_back(q ? fmt::format("{:.6g}", q->value) : "");
      if (&profile != &profiles[0])
        row.push_back(
            q && first && first->value > 0 ? fmt::format("{:.2f}", q->value / first->value) : "");
    }
    if (any_value) table.rows.push_back(std::move(row));
  }
  return table;
}

PageSection numbers_section(std::span<const Profile> profiles) {
  PageSection section{"Numbers", "", {}};
  if (profiles.size() > 1) section.items.emplace_back(compared(profiles));
  for (const Profile& profile : profiles) {
    PageTable table = numbers_of(profile);
    if (profiles.size() > 1) table.title = profile.name;
    if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  }
  return section;
}

PageSection calibration_section(std::span<const Profile> profiles) {
  PageSection section{"Calibration by whole runs", "", {}};
  for (const Profile& profile : profiles) {
    if (!profile.calibration) continue;
    const machine::Calibration& c = *profile.calibration;
    PageTable table{profiles.size() > 1 ? profile.name : "", {"category", "factor"}, {}, ""};
    for (const auto& [category, factor] : c.factors)
      table.rows.push_back({category, fmt::format("{:.4g}", factor)});
    table.note =
        fmt::format("{} layouts, {}, commit {}: mean error {:.1f} %, largest {:.1f} %.",
                    c.layouts.size(), c.date, c.commit, 100 * c.mean_error, 100 * c.largest_error);
    section.items.emplace_back(std::move(table));
  }
  return section;
}

void add_profile_facts(std::span<const Profile> profiles, Page& page) {
  for (const Profile& profile : profiles) {
    const auto add = [&](const std::string& name, const std::string& value) {
      if (!value.empty())
        page.facts.emplace_back(
            profiles.size() == 1 ? name : fmt::format("{} of {}", name, profile.name), value);
    };
    for (const auto& [key, text] : profile.identity) add(key, text);
    add("last change", profile.date);
    if (profiles.size() > 1) continue;
    add("fingerprint", profile.fingerprint());
    if (profile.kernels) add("times of kernels", profile.kernels->file);
    const std::vector<std::string> assumed = profile.assumed();
    if (!assumed.empty()) add("assumed numbers", fmt::format("{}", assumed.size()));
  }
}

}  // namespace

std::vector<Judgement> judgements_of(const Profile& profile, const Profile* earlier) {
  if (earlier) return machine::compare(profile, *earlier);
  std::vector<Judgement> judgements;
  judge_quantities(profile, judgements);
  judge_collectives(profile, judgements);
  judge_rates(profile, judgements);
  return judgements;
}

Page profile_page(std::span<const Profile> profiles) {
  Page page;
  page.title = profiles.size() == 1 ? fmt::format("Machine {}", profiles[0].name)
                                    : fmt::format("{} machines", profiles.size());
  if (profiles.size() > 1)
    for (const Profile& profile : profiles)
      page.subtitle += (page.subtitle.empty() ? "" : ", ") + profile.name;
  add_profile_facts(profiles, page);
  std::vector<PageSection> sections = {verdicts_section(profiles, page), limits_section(profiles),
                                       collectives_section(profiles)};
  for (PageSection& section : rate_sections(profiles)) sections.push_back(std::move(section));
  sections.push_back(storage_section(profiles));
  sections.push_back(numbers_section(profiles));
  sections.push_back(calibration_section(profiles));
  add_sections(std::move(sections), page);
  return page;
}

}  // namespace ashlar::report
