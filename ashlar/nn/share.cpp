#include "ashlar/nn/share.h"

#include "ashlar/core/error.h"

namespace ashlar::nn {

Share Share::even(int index, int count) {
  ASHLAR_ASSERT(0 <= index && index < count);
  const Fraction part{index, count};
  return {part, part, part};
}

Portion Share::of(Grain grain, int64_t total) const {
  const auto [index, count] = grain == Grain::kWidth ? width : heads;
  if (total % count == 0) return {total / count * index, total / count * (index + 1)};
  ASHLAR_ASSERT(count % total == 0);
  const int copies = int(count / total);
  return {index / copies, index / copies + 1, index % copies, copies};
}

}  // namespace ashlar::nn
