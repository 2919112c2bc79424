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

std::vector<nn::Use> uses_of(std::span<const Action> program,
                             std::span<const nn::BlockRange> chunks, bool recompute) {
  using Why = nn::Use::Why;
  using Kind = Action::Kind;
  std::vector<nn::Use> uses;
  // The block that ran last, and its micro-batch.
  int32_t last = -1, last_batch = -1;
  for (const Action& action : program) {
    const nn::BlockRange& chunk = chunks[size_t(action.chunk)];
    const auto begin = int32_t(chunk.begin), end = int32_t(chunk.end);
    const auto ran = [&](int32_t block) { last = block, last_batch = action.micro_batch; };
    if (action.kind == Kind::kForward) {
      for (int32_t block = begin; block < end; ++block) uses.push_back({Why::kForward, block});
      ran(end - 1);
    } else if (action.kind == Kind::kBackward || action.kind == Kind::kInputs) {
      for (int32_t block = end - 1; block >= begin; --block) {
        if (recompute && (block != last || action.micro_batch != last_batch)) {
          uses.push_back({Why::kRecompute, block});
          ran(block);
        }
        uses.push_back({action.kind == Kind::kBackward ? Why::kBackward : Why::kInputs, block});
      }
    } else if (action.kind == Kind::kWeights) {
      for (int32_t block = end - 1; block >= begin; --block) uses.push_back({Why::kWeights, block});
    }
  }
  return uses;
}

}  // namespace ashlar::parallel
