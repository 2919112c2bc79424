// `eval` of tasks and texts, and its comparison of two models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/cli/compute_flags.h"

namespace ashlar::cli {

struct JudgeFlags {
  std::string tasks, text, out;
  std::vector<std::string> compare;  // two files, or none
  std::string shots_from;            // a file of examples
  int64_t shots = 0;                 // examples before each question
  int64_t limit = 0;                 // 0: all questions
  Existing existing = Existing::kRefuseUnlessForced;
  // Shared with eval of datasets:
  std::string model, weights;
  eval::ComputeFlags compute;
  std::optional<int64_t> length;
  bool beyond_positions = false, json = false;
};

void add_judge_flags(CLI::App& app, JudgeFlags& flags);
int judge_model(const JudgeFlags& flags, Log& log);
int compare_judged(const std::vector<std::string>& paths, bool json);

}  // namespace ashlar::cli
