// Checks of a step, which list everything that is wrong instead of stopping at the first finding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

enum class VerifyLevel : uint8_t {
  kQuick,  // COMMIT, manifest, index and name against each other; sizes of all files
  kFiles,  // and every safetensors header against the index, every blob's CRC
  kDeep,   // and every chunk's CRC, exact cover of every tensor
};
std::optional<VerifyLevel> parse_verify_level(std::string_view name);  // "quick", "files", "deep"

struct Finding {
  std::string file;    // relative to the step, or the step itself
  int64_t chunk = -1;  // of 4 MiB; -1: not about one
  std::string message;
};

struct VerifyReport {
  std::vector<Finding> findings;             // empty: nothing is wrong
  int64_t files = 0, chunks = 0, bytes = 0;  // that were read
  bool ok() const { return findings.empty(); }
};

// One rank's share when several ranks verify a step together: the step's chunks, in the order of
// files, from number * count / of on, and the files that begin there.  Part 0 also makes the checks
// that concern the step as a whole.  The step is good if no part finds anything.
struct VerifyPart {
  int number = 0, of = 1;
};

// Damage is a finding; kStorage is thrown if the machine cannot read.  Shows progress.
VerifyReport verify_step(FileSystem& files, const std::string& directory, VerifyLevel level,
                         Log& log, VerifyPart part = {});
VerifyReport verify_step(const StepReader& reader, VerifyLevel level, Log& log,
                         VerifyPart part = {});

}  // namespace ashlar::checkpoint
