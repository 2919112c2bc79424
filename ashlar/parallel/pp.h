// Pipeline parallelism: the program of a stage (schedule.h), and its messages to and from its
// neighbours.  A message is the stream [T, H] that one chunk of blocks hands to the next, together
// with the carry (nn::Carry), [T, R], if a later block reads it; or the gradients of both, on the
// way back.
//
//                         label               elements, the carry's in the wide type
//   kSendForward          "pp activations"    T H, and T R
//   kSendBackward         "pp gradients"      the same
//
// Both cross each of the v p - 1 borders between virtual stages once for every micro-batch.  With
// parallel.sequence_parallel the stream has T / tp tokens here.
//
// Memory   none: a message is received where forward or backward reads it (nn::Saved).
// Errors   kComm, as comm/group.h.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "ashlar/comm/channel.h"
#include "ashlar/nn/model.h"
#include "ashlar/parallel/program.h"

namespace ashlar::parallel {

// A program, and the memory and uses that follow from it.
struct StageProgram {
  std::vector<Action> actions;
  std::vector<int> slot_of_action;  // among the slots of the action's chunk
  std::vector<int> slots_of_chunk;
  // Deferred products wait between kInputs and kWeights: the number of micro-batches whose products
  // wait at a time, and the place of each action's.
  int num_late = 0;
  std::vector<int> late_of_action;
  std::vector<nn::Use> uses;
};
// The programs of a step, and of the forward pass of one micro-batch.  stage: that of the model's
// share; chunks: the blocks of each of its chunks.
StageProgram step_program(const ParallelSpec& resolved, const nn::Stage& stage,
                          std::span<const nn::BlockRange> chunks, int64_t micro_batches,
                          bool recompute);
StageProgram evaluation_program(const nn::Stage& stage, std::span<const nn::BlockRange> chunks);

class PpTransfers {
 public:
  // pp: the group of the stages.  slots_of_chunk: those of this stage.
  PpTransfers(comm::Group& pp, std::span<const int> slots_of_chunk);
  ~PpTransfers();
  PpTransfers(const PpTransfers&) = delete;

  // To be called before any action of a chunk on a slot: waits for the messages that the action
  // reads or overwrites.
  void wait_before(const Action& action, const nn::Saved& saved);
  // Posts the messages of an action that sends or receives; does nothing for others.
  void post(const Action& action, const nn::Saved& saved);
  // Waits for all messages in flight.
  void finish();
  std::vector<const comm::Group*> groups() const;

 private:
  using Messages = std::array<comm::Work, 2>;  // of the stream, of the carry
  // Messages in flight between a slot and the neighbours.
  struct Slot {
    Messages receives_forward, sends_forward, receives_backward, sends_backward;
  };
  Slot& slot(int chunk, int number) { return slots_[size_t(chunk)][size_t(number)]; }

  std::unique_ptr<comm::Channel> forward_in_, forward_out_, backward_in_, backward_out_;
  std::vector<std::vector<Slot>> slots_;  // by chunk
};

}  // namespace ashlar::parallel
