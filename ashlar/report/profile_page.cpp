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

PageSection verdicts_section(std::span<const Profile> profiles, Page& page) {
  PageSection section{"Verdicts", "", {}};
  PageTable table{"", {"number", "verdict", "value", "unit", "ratio", "expected", "hint"}, {}, ""};
  if (profiles.size() > 1) table.columns.insert(table.columns.begin(), "machine");
  std::vector<Judgement> all;
  std::map<Verdict, int> counts;
  for (size_t i = 0; i < profiles.size(); ++i)
    for (const Judgement& j : judgements_of(profiles[i], earlier_of(profiles, i))) {
      all.push_back(j);
      ++counts[j.verdict];
      if (j.verdict == Verdict::kUnknown) continue;
      std::vector<std::string> row = {j.name,
                                      std::string(to_string(j.verdict)),
                                      fmt::format("{:.4g}", j.value),
                                      j.unit,
                                      j.ratio ? fmt::format("{:.2f}", *j.ratio) : "",
                                      j.expected,
                                      j.hint};
      if (profiles.size() > 1) row.insert(row.begin(), profiles[i].name);
      table.rows.push_back(std::move(row));
    }
  if (all.empty()) return section;
  const int unknown = counts[Verdict::kUnknown], judged = int(all.size()) - unknown;
  counts.erase(Verdict::kUnknown);
  for (const auto& [verdict, count] : counts)
    page.banner +=
        fmt::format("{}{} {}", page.banner.empty() ? "" : ", ", count, to_string(verdict));
  if (judged == 0)
    page.banner =
        "No measured number is judged: there is nothing to compare them with. Give an earlier "
        "profile of the machine before this one.";
  else
    page.banner =
        fmt::format("{} of {} measured numbers are judged: {}.", judged, all.size(), page.banner);
  const Verdict worst = worst_of(all);
  page.mood =
      judged == 0                                             ? Mood::kPlain
      : worst == Verdict::kGood || worst == Verdict::kUnknown ? Mood::kGood
      : worst == Verdict::kBad || worst == Verdict::kWrongData || worst == Verdict::kTimedOut
          ? Mood::kBad
          : Mood::kWarning;
  table.note = fmt::format(
      "Expected: the number of the earlier profile of the same machine, else what its links allow. "
      "good from 0.95 of it, normal from 0.85, low from 0.70, bad below. {} numbers have nothing "
      "to compare with.",
      unknown);
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

PageTable numbers_of(const Profile& profile) {
  PageTable table{
      "", {"number", "value", "unit", "means", "spread", "source", "by", "date"}, {}, ""};
  for (const ProfileKey& key : machine::profile_keys())
    if (const Quantity* q = profile.find(key.name))
      table.rows.push_back({std::string(key.name), fmt::format("{:.6g}", q->value), q->unit,
                            std::string(key.meaning),
                            q->spread > 0 ? fmt::format("{:.1f} %", 100 * q->spread) : "",
                            std::string(to_string(q->origin)), q->from, q->date});
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
  for (PageSection& section : sections)
    if (!section.items.empty()) page.sections.push_back(std::move(section));
  return page;
}

}  // namespace ashlar::report
