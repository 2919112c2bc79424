// The report of a machine's profile (docs/formats/machine.md), or of several over each other: its
// numbers with unit, spread, source and date; verdicts; every curve with its law.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/machine/kernel_table.h"
#include "ashlar/machine/profile.h"
#include "ashlar/machine/verdict.h"
#include "ashlar/report/page.h"

namespace ashlar::report {

// The table of kernel times beside a profile, or why it cannot be shown.
struct KernelTimes {
  std::vector<machine::TimedKernel> calls;
  std::string problem;
};
struct ProfileSides {
  std::span<const KernelTimes> kernels = {};   // of each profile; empty: no profile has a table
  const machine::Profile* baseline = nullptr;  // with which every profile is compared
};

// Names of several profiles must differ.  Without a baseline, a profile is compared with one of the
// same machine before it.
Page profile_page(std::span<const machine::Profile> profiles, const ProfileSides& sides = {});

// Verdicts on what was measured of a machine: by an earlier profile of it (machine/compare.h), else
// by what its links allow.
std::vector<machine::Judgement> judgements_of(const machine::Profile& profile,
                                              const machine::Profile* earlier);

}  // namespace ashlar::report
