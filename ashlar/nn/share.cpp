#include "ashlar/nn/share.h"

#include "ashlar/core/error.h"

namespace ashlar::nn {

BlockRange Stage::chunk(int number, int64_t num_blocks) const {
  if (borders.empty()) return {0, num_blocks};
  const auto v = size_t(number) * size_t(count) + size_t(index);
  return {borders[v], borders[v + 1]};
}

bool Stage::holds(int64_t block) const {
  if (borders.empty()) return true;
  for (int c = 0; c < num_chunks(); ++c)
    if (const BlockRange blocks = chunk(c, 0); blocks.begin <= block && block < blocks.end)
      return true;
  return false;
}

Share Share::even(int index, int count) {
  ASHLAR_ASSERT(0 <= index && index < count);
  const Fraction part{index, count};
  return {.heads = part, .width = part, .expert_width = part, .experts = {}, .uncut = part};
}

Portion Share::of(Grain grain, int64_t total) const {
  const auto [index, count] = grain == Grain::kWidth         ? width
                              : grain == Grain::kExpertWidth ? expert_width
                              : grain == Grain::kExpert      ? experts
                                                             : heads;
  if (total % count == 0) return {total / count * index, total / count * (index + 1)};
  ASHLAR_ASSERT(count % total == 0);
  const int copies = int(count / total);
  return {index / copies, index / copies + 1, index % copies, copies};
}

}  // namespace ashlar::nn
