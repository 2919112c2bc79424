// The rows of a run's metrics.jsonl (docs/metrics.md), for its report: numbers of steps as columns,
// events as JSON.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/json.h"

namespace ashlar::report {

// The columns of a step row that reports show.
enum class StepColumn : uint8_t {
  kStep,
  kTokens,
  kLoss,
  kLr,
  kGradientNorm,
  kAuxLoss,
  kZLoss,
  kLoadEntropy,
  kMaxLoad,
  kStepS,
  kDataStallS,
  kCheckpointBlockedS,
  kTokensPerS,
  kMfu,
  kMemoryPeakBytes,
};
inline constexpr std::array<std::string_view, 15> kStepColumns = {
    "step",         "tokens",        "loss",
    "lr",           "gradient_norm", "aux_loss",
    "z_loss",       "load_entropy",  "max_load",
    "step_s",       "data_stall_s",  "checkpoint_blocked_s",
    "tokens_per_s", "mfu",           "memory_peak_bytes"};

struct RunRows {
  // Value i of each column belongs to step row i; NaN: the row has none.
  std::array<std::vector<double>, kStepColumns.size()> columns;
  std::vector<Json> events;  // of very many with loads of experts some, after all others
  int64_t num_damaged = 0;   // lines that are neither

  const std::vector<double>& of(StepColumn column) const { return columns[size_t(column)]; }
  size_t num_steps() const { return columns[0].size(); }
};

// A number of an event; NaN: it has none.
bool has_number(const Json& event, const char* key);
double number_of(const Json& event, const char* key);
// "?": it has none.
std::string text_in(const Json& event, const char* key);

// A last line without its end, which a kill leaves, is no row.  Where a later start repeated steps,
// its rows replace the earlier ones.
RunRows read_rows(std::string_view metrics_jsonl);

}  // namespace ashlar::report
