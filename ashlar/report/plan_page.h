// The report of layouts: what `ashlar plan dry-run --json` says about one, or about several over
// each other.
#pragma once

#include <span>
#include <string>

#include "ashlar/machine/profile.h"
#include "ashlar/report/page.h"

namespace ashlar::report {

struct PlanFile {
  std::string path, text;
};

// With a machine's profile also the least times of a step that its numbers allow.
// Errors   kData: a file that holds no plan, named.
Page plan_page(std::span<const PlanFile> files, const machine::Profile* machine);

}  // namespace ashlar::report
