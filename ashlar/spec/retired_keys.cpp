#include "ashlar/spec/retired_keys.h"

namespace ashlar {

std::span<const RetiredKey> retired_keys() {
  static constexpr RetiredKey kKeys[] = {
      {"health.max_z", "health.max_norm_ratio and health.max_loss_rise"},
      {"train.eval_batches", "train.eval_sequences"},
  };
  return kKeys;
}

}  // namespace ashlar
