// The report of a machine's profile (docs/formats/machine.md), or of several over each other: its
// numbers with unit, spread, source and date; verdicts; every curve with its law.
#pragma once

#include <span>
#include <vector>

#include "ashlar/machine/profile.h"
#include "ashlar/machine/verdict.h"
#include "ashlar/report/page.h"

namespace ashlar::report {

// Names of several profiles must differ.
Page profile_page(std::span<const machine::Profile> profiles);

// Verdicts on what was measured of a machine: by an earlier profile of it (machine/compare.h), else
// by what its links allow.
std::vector<machine::Judgement> judgements_of(const machine::Profile& profile,
                                              const machine::Profile* earlier);

}  // namespace ashlar::report
