// The replay of a micro-batch: ranks with the same weights compute each other's gradients again, so
// that a rank whose processor or memory changes bits is named (health.replay_every).
//
// Replicas  ranks that together compute gradients from their own tokens: a dp rank, or with ep
//           those that share experts.  Replica q repeats the first micro-batch of replica q + 1.
// Order     the repetition comes before the step, whose gradients take its place; both are
//           compared before weights are updated.  The first step repeats, and every so many after.
// Compared  a checksum of the gradient of every trained tensor, as backward leaves it: before ranks
//           add up, and before another micro-batch is added.  Equal inputs give equal bits.
// Differ    of three replicas or more, a third repeats it too, and the rank that two contradict is
//           named.  Of two, both repeat their work, and the rank that finds other bits is named; if
//           none does, both are.
// Cost      forward and backward of a micro-batch; its inputs, sent once; 8 bytes a rank.
// Errors    kDevice on all ranks: the ranks and a tensor.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ashlar/nn/weights.h"
#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/rank_model.h"

namespace ashlar::parallel {

class Replay {
 public:
  static constexpr int64_t kRoot = -1;
  // every: steps from one repetition to the next, at least 1.  All must outlive this.
  Replay(int64_t every, const nn::ModelWeights& weights, const Groups& groups,
         const ParallelSpec& resolved);

  // Whether any rank can repeat another's work.
  bool repeats() const { return num_replicas_ > 1; }
  // To be called once a step, before it: whether its first micro-batch is repeated.
  bool begin_step() { return num_steps_++ % every_ == 0; }

  // The inputs of the replica so many after this one.  Every rank calls it.
  MicroBatch inputs_of(int distance, const MicroBatch& own);
  // From here to end_pass the gradients are those of one micro-batch.  drops: of a repetition.
  void begin_pass(bool drops);
  // The gradients of a block, or of kRoot, are made.  True: they are dropped.
  bool take(int64_t block);
  void end_pass();

  // After the repetition of replica 1 away, and the step's own pass: whether all ranks agree.
  bool agrees();
  // The repetitions, in their order, that decide which rank is wrong; then `fail` names it.
  std::vector<int> deciding_distances() const;
  [[noreturn]] void fail();

 private:
  using Sums = std::vector<uint32_t>;  // by tensor
  int other(int rank, int distance) const;
  template <typename T>
  std::vector<T> received(int distance, std::vector<T> own, size_t size);

  const int64_t every_;
  const nn::ModelWeights& weights_;
  const Groups& groups_;
  const int64_t dp_of_replica_;
  const int num_replicas_;
  std::vector<int32_t> ids_, targets_;
  std::vector<Segment> segments_;
  std::vector<Sums> passes_;
  bool in_pass_ = false, drops_ = false;
  int64_t num_steps_ = 0;
};

}  // namespace ashlar::parallel
