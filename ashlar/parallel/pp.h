// Pipeline parallelism: what a stage does in a step (schedule.h), and what it sends to its
// neighbours and receives from them.  A message is the stream [T, H] that one chunk of blocks hands
// to the next, and with it what blocks hand on (nn::Carry), [T, R], where a later block takes it;
// or the gradients of both, on the way back.
//
//                         label               bytes, in the stream type
//   kSendForward          "pp activations"    T H, and T R
//   kSendBackward         "pp gradients"      the same
//
// Each of the v p - 1 borders between virtual stages has both once for every micro-batch.  With
// parallel.sequence_parallel the stream has T / tp tokens here.
//
// Memory   none: a message is received where forward and backward read it (nn::Saved).
// Errors   kComm, as comm/group.h.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "ashlar/comm/channel.h"
#include "ashlar/nn/model.h"
#include "ashlar/parallel/program.h"

namespace ashlar::parallel {

// A program with what follows from it.
struct StageProgram {
  std::vector<Action> actions;
  std::vector<int> slot_of_action;  // of the action's chunk
  std::vector<int> slots_of_chunk;
  // Products that wait between kInputs and kWeights: so many micro-batches of them at a time, and
  // by action which.
  int num_late = 0;
  std::vector<int> late_of_action;
  std::vector<nn::Use> uses;
};
// Of a step, and of the forward pass of one micro-batch.  stage: of the model's share; chunks: its
// blocks.
StageProgram step_program(const ParallelSpec& resolved, const nn::Stage& stage,
                          std::span<const nn::BlockRange> chunks, int64_t micro_batches,
                          bool recompute);
StageProgram evaluation_program(const nn::Stage& stage, std::span<const nn::BlockRange> chunks);

class PpTransfers {
 public:
  // pp: the stages.  slots_of_chunk: of this stage.
  PpTransfers(comm::Group& pp, std::span<const int> slots_of_chunk);
  ~PpTransfers();
  PpTransfers(const PpTransfers&) = delete;

  // Before any action of a chunk on a slot: waits for what it reads or overwrites.
  void wait_before(const Action& action, const nn::Saved& saved);
  // Posts what the action sends or receives; nothing for others.
  void post(const Action& action, const nn::Saved& saved);
  // Waits for all that is under way.
  void finish();
  std::vector<const comm::Group*> groups() const;

 private:
  using Messages = std::array<comm::Work, 2>;  // of the stream, of what blocks hand on
  // Under way between a slot and the neighbours.
  struct Slot {
    Messages receives_forward, sends_forward, receives_backward, sends_backward;
  };
  Slot& slot(int chunk, int number) { return slots_[size_t(chunk)][size_t(number)]; }

  std::unique_ptr<comm::Channel> forward_in_, forward_out_, backward_in_, backward_out_;
  std::vector<std::vector<Slot>> slots_;  // by chunk
};

}  // namespace ashlar::parallel
