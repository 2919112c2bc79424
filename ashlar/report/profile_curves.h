// The sections of a profile's page, each in the file of its name.  A section without data has no
// items.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/machine/profile.h"
#include "ashlar/machine/verdict.h"
#include "ashlar/report/page.h"
#include "ashlar/report/profile_page.h"

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

// profile_verdicts.cpp; the first also sets the banner.
PageSection verdicts_section(std::span<const machine::Profile> profiles,
                             const machine::Profile* baseline, Page& page);
PageSection changes_section(std::span<const machine::Profile> profiles,
                            const machine::Profile* baseline);
// profile_collectives.cpp
PageSection collectives_section(std::span<const machine::Profile> profiles);
// profile_links.cpp: bandwidth over ranks beside what links allow, as items of the collectives; and
// every pair of ranks.
void add_links(std::span<const machine::Profile> profiles, std::vector<Item>& items);
PageSection pairs_section(std::span<const machine::Profile> profiles);
// profile_rates.cpp: one section for each first word of subjects, such as "stream" and "product".
std::vector<PageSection> rate_sections(std::span<const machine::Profile> profiles);
// profile_products.cpp: points of a chart of rates that stand out, by the subject of its lines; and
// rates over the rows and columns of products, as maps.
void point_out(std::span<const machine::Profile> profiles,
               std::span<const machine::RateCurve* const> curves, LineChart& chart);
bool is_of_map(const machine::RateCurve& curve);
void add_product_maps(std::span<const machine::Profile> profiles, std::vector<Item>& items);
// profile_kernels.cpp
PageSection roofline_section(std::span<const machine::Profile> profiles, const ProfileSides& sides);
PageSection kernels_section(std::span<const machine::Profile> profiles, const ProfileSides& sides);
// profile_storage.cpp
PageSection storage_section(std::span<const machine::Profile> profiles);

// The numbers of a provenance for a table: source, command or publication, date.
std::vector<std::string> cells_of(const machine::Provenance& provenance);

// "" for one profile, else its name and what stands between it and the name of a line.
std::string prefix_of(std::span<const machine::Profile> profiles, const machine::Profile& profile);

}  // namespace ashlar::report
