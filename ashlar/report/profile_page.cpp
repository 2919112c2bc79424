#include "ashlar/report/profile_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "ashlar/core/text.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::Profile;
using machine::ProfileKey;
using machine::Quantity;

// Bytes with a unit that fits, other numbers with the unit of their key.
std::string value_text(const Quantity& q) {
  return q.unit == "B" ? size_text(q.value) : fmt::format("{:.6g}", q.value);
}

PageTable numbers_of(const Profile& profile) {
  PageTable table{
      "", {"number", "value", "unit", "means", "spread", "source", "by", "date"}, {}, ""};
  for (const ProfileKey& key : machine::profile_keys())
    if (const Quantity* q = profile.find(key.name))
      table.rows.push_back(
          {std::string(key.name), value_text(*q), q->unit == "B" || q->unit == "1" ? "" : q->unit,
           std::string(key.meaning), q->spread > 0 ? fmt::format("{:.1f} %", 100 * q->spread) : "",
           std::string(to_string(q->origin)), q->from, q->date});
  tidy({"date"}, table);
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
      row.push_back(q ? value_text(*q) : "");
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

// Launches have no curves: the numbers of the profile as bars.
PageSection launches_section(std::span<const Profile> profiles, PageSection section) {
  BarChart chart{"Launching and waking", "", "us", {}, {{"time", {}}}, ""};
  for (const Profile& profile : profiles)
    for (const ProfileKey& key : machine::profile_keys())
      if (const Quantity* q = profile.find(key.name);
          q && key.name.starts_with("launch.") && key.unit == "us") {
        chart.categories.push_back(prefix_of(profiles, profile) + std::string(key.name.substr(7)));
        chart.series[0].second.push_back(q->value);
      }
  chart.note =
      "kernel: from the call of an empty kernel to its end; wake_idle, wake_busy: waking a thread "
      "on "
      "an idle core, and on one that computes.";
  if (!chart.categories.empty()) section.items.insert(section.items.begin(), std::move(chart));
  return section;
}

// Takes the section of that heading out of `sections`; one without items if there is none.
PageSection taken(const char* heading, std::vector<PageSection>& sections) {
  const auto found = std::find_if(sections.begin(), sections.end(),
                                  [&](const PageSection& s) { return s.heading == heading; });
  if (found == sections.end()) return {heading, "", {}};
  PageSection section = std::move(*found);
  sections.erase(found);
  return section;
}

// Adds a section, which says how to measure what it has nothing of.
void add_measured(PageSection section, const char* part, Page& page) {
  if (section.items.empty() && section.text.empty())
    section.text = fmt::format("Never measured. `ashlar bench {} --profile FILE` does.", part);
  page.sections.push_back(std::move(section));
}

}  // namespace

std::string prefix_of(std::span<const Profile> profiles, const Profile& profile) {
  return profiles.size() == 1 ? "" : profile.name + ", ";
}

Page profile_page(std::span<const Profile> profiles, const ProfileSides& sides) {
  Page page;
  page.title = profiles.size() == 1 ? fmt::format("Machine {}", profiles[0].name)
                                    : fmt::format("{} machines", profiles.size());
  if (profiles.size() > 1)
    for (const Profile& profile : profiles)
      page.subtitle += (page.subtitle.empty() ? "" : ", ") + profile.name;
  add_profile_facts(profiles, page);
  add_sections(
      {verdicts_section(profiles, sides.baseline, page), changes_section(profiles, sides.baseline)},
      page);
  add_measured(collectives_section(profiles), "collectives --ranks N", page);
  add_measured(pairs_section(profiles), "p2p --ranks N", page);
  add_sections({roofline_section(profiles, sides)}, page);
  std::vector<PageSection> rates = rate_sections(profiles);
  for (const auto& [heading, part] :
       {std::pair("Products", "products"), {"Memory bandwidth", "stream"}, {"Attention", "layers"}})
    add_measured(taken(heading, rates), part, page);
  add_measured(launches_section(profiles, taken("Launches", rates)), "launch", page);
  PageSection storage = storage_section(profiles), disks = taken("Storage", rates);
  std::move(disks.items.begin(), disks.items.end(), std::back_inserter(storage.items));
  add_sections(std::move(rates), page);
  add_measured(std::move(storage), "storage", page);
  add_measured(kernels_section(profiles, sides), "kernels RECIPE --ranks N", page);
  add_sections({numbers_section(profiles), calibration_section(profiles)}, page);
  return page;
}

}  // namespace ashlar::report
