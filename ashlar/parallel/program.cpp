#include "ashlar/parallel/program.h"

namespace ashlar::parallel {

std::vector<Action> one_stage(int64_t num_micro_batches) {
  std::vector<Action> program;
  for (int32_t i = 0; i < num_micro_batches; ++i) {
    program.push_back({Action::Kind::kForward, 0, i});
    program.push_back({Action::Kind::kBackward, 0, i});
  }
  return program;
}

std::vector<nn::Use> uses_of(std::span<const Action> program, int64_t num_blocks, bool recompute) {
  using Why = nn::Use::Why;
  std::vector<nn::Use> uses;
  const auto last = int32_t(num_blocks);
  for (const Action& action : program) {
    if (action.kind == Action::Kind::kForward) {
      for (int32_t unit = 1; unit <= last; ++unit) uses.push_back({Why::kForward, unit});
      continue;
    }
    for (int32_t unit = last; unit >= 1; --unit) {
      if (recompute && unit != last) uses.push_back({Why::kReplay, unit});
      uses.push_back({Why::kBackward, unit});
    }
  }
  return uses;
}

}  // namespace ashlar::parallel
