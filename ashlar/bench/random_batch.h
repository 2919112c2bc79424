// A micro-batch of random tokens on which measurements train, the same in every step.
#pragma once

#include <vector>

#include "ashlar/core/rng.h"
#include "ashlar/kernels/sequence.h"
#include "ashlar/train/trainer.h"

namespace ashlar::bench {

class RandomBatch {
 public:
  explicit RandomBatch(const train::Trainer& trainer)
      : sequence_(kernels::Sequence::rows(trainer.recipe().train.micro_batch,
                                          trainer.recipe().data.sequence_length)),
        ids_(size_t(sequence_.num_tokens())) {
    const Recipe& recipe = trainer.recipe();
    const Rng rng(recipe.train.seed, "bench");
    const int64_t reader = trainer.model().groups().coordinate(parallel::Axis::kDp);
    for (size_t t = 0; t < ids_.size(); ++t)
      ids_[t] =
          int32_t(rng.below(uint64_t(reader) * ids_.size() + t, uint64_t(recipe.model.vocab_size)));
  }

  // Runs a whole step: its micro-batches, the sums over ranks, the update.
  void step(train::Trainer& trainer, int64_t number) const {
    const train::MicroBatch batch{ids_, ids_, sequence_.segments()};
    trainer.run(number, std::vector(size_t(trainer.model().micro_batches_per_step()), batch));
    trainer.reduce();
    trainer.apply(trainer.measure());
  }

 private:
  kernels::Sequence sequence_;
  std::vector<int32_t> ids_;
};

}  // namespace ashlar::bench
