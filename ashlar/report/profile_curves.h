// The parts of a profile's page with charts: collectives, rates, limits, storage.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/machine/profile.h"
#include "ashlar/report/page.h"

namespace ashlar::report {

// GB/s of busbw that the links allow the groups of a curve, and the share of it that collectives
// usually reach, if the profile describes its links and their layout follows from the curve.
struct LinkLimit {
  double gbps = 0;
  double usable = 1;
  std::string formula;  // "7 x 64 GB/s"
};
std::optional<LinkLimit> link_limit(const machine::Profile& profile,
                                    const machine::CollectiveCurve& curve);

// "all_reduce of F32 over 2 ranks (thread)".
std::string name_of(const machine::CollectiveCurve& curve);

PageSection limits_section(std::span<const machine::Profile> profiles);
PageSection collectives_section(std::span<const machine::Profile> profiles);
// One section for each first word of subjects, such as "stream" and "products".
std::vector<PageSection> rate_sections(std::span<const machine::Profile> profiles);
PageSection storage_section(std::span<const machine::Profile> profiles);

// The numbers of a provenance for a table: source, command or publication, date.
std::vector<std::string> cells_of(const machine::Provenance& provenance);

}  // namespace ashlar::report
