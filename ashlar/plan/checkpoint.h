// The planned size of a save: files, boxes and bytes of a step and of its busiest writer.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/checkpoint/save/step_size.h"
#include "ashlar/train/node_saves.h"
#include "ashlar/train/state.h"

namespace ashlar::plan {

inline constexpr int kRanksPerNode = 8;  // where nobody says how many ranks share a machine

// Counts what the first saved step writes, rank by rank, in one of two ways: every rank writes its
// own part, or one rank of each machine writes for all.  The leader's extra files are those of a
// run; a short text takes the place of the tokenizer, which nobody has read.
class CheckpointMeter {
 public:
  // gathers: one rank of each machine writes.  first_rank: the first of its machine; the ranks from
  // there on are added in their order.
  CheckpointMeter(const Recipe& recipe, int num_ranks, int ranks_per_node, bool gathers,
                  int first_rank = 0)
      : recipe_(recipe),
        gathers_(gathers),
        num_ranks_(num_ranks),
        ranks_per_node_(std::min(ranks_per_node, num_ranks)),
        rank_(first_rank) {}

  void add(const train::Trainer& trainer);  // of the next rank
  void add(checkpoint::NodeShare share);    // what the next rank writes; not rank 0
  void join(const CheckpointMeter& next);   // of the machines behind these
  // The way that the run takes, which the busiest rank decides.
  bool should_gather() const { return gathers(recipe_, ranks_per_node_, busiest_bytes_); }
  static bool gathers(const Recipe& recipe, int ranks_per_node, int64_t busiest_bytes);
  // Errors   kConfig as at the start of the run.
  checkpoint::StepSize size() const;

 private:
  void add(checkpoint::NodeShare share, checkpoint::SaveRequest request);
  void add_machine();
  void add(const checkpoint::SaveRequest& request, int writer, int num_writers);

  const Recipe& recipe_;
  bool gathers_;
  int num_ranks_, ranks_per_node_, rank_;
  int64_t step_ = recipe_.checkpoint.every > 0 ? recipe_.checkpoint.every : recipe_.train.steps;
  int64_t busiest_bytes_ = 0;
  // Members of the machine whose ranks are being added.
  std::vector<checkpoint::NodeShare> members_;
  checkpoint::SaveRequest first_;               // of their first
  std::unique_ptr<train::StateWriter> leader_;  // rank 0's, to which its request points
  checkpoint::StepMeter meter_;
  std::string problem_;
};

// The pieces that the rank of the trainer writes.
checkpoint::NodeShare share_of(const train::Trainer& trainer);

// The size of a saved step, if ranks_per_node ranks share a machine.  A tokenizer of at most 4 MiB
// is taken to be part of the step.
checkpoint::StepSize plan_checkpoint(const Recipe& recipe, DType compute, int num_ranks,
                                     int num_threads = 0, int ranks_per_node = kRanksPerNode);

}  // namespace ashlar::plan
