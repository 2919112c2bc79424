// How it works.  A slot holds one micro-batch of a chunk, from the action that receives its input
// to the one that sends the gradient of that input.  Messages in flight between a slot and the
// neighbours, and the actions that wait for them:
//
//   posted by            memory               waited for by
//   kReceiveForward      x[begin], carry in   kForward
//   kSendForward         x[end], carry out    kReceiveBackward, which writes to x[end]
//   kReceiveBackward     x[end], d_carry      kBackward, kInputs
//   kSendBackward        x[end], d_carry      the first action of the slot's next micro-batch
//
// The programs run to their end even if every send blocks until it is received (schedule.h), so a
// stage may wait for its own sends without a deadlock.
#include "ashlar/parallel/pp.h"

#include <algorithm>

#include "ashlar/parallel/schedule.h"

namespace ashlar::parallel {
namespace {

using Kind = Action::Kind;

StageProgram with_slots(std::vector<Action> actions, std::span<const nn::BlockRange> chunks,
                        bool recompute) {
  StageProgram program;
  program.uses = uses_of(actions, chunks, recompute);
  // Gives slots of their own to the actions for which `takes` holds; returns the number of slots.
  const auto give_slots = [&](std::vector<int>& slot_of_action, auto takes) {
    std::vector<Action> those;
    std::vector<size_t> at;
    for (size_t i = 0; i < actions.size(); ++i)
      if (takes(actions[i])) those.push_back(actions[i]), at.push_back(i);
    const PairSlots slots = slots_of(those);
    slot_of_action.resize(actions.size());
    for (size_t i = 0; i < at.size(); ++i) slot_of_action[at[i]] = slots.of[i];
    return slots.count;
  };
  for (size_t c = 0; c < chunks.size(); ++c)
    program.slots_of_chunk.push_back(give_slots(
        program.slot_of_action, [&](const Action& action) { return size_t(action.chunk) == c; }));
  program.num_late = give_slots(program.late_of_action, [](const Action& action) {
    return action.kind == Kind::kInputs || action.kind == Kind::kWeights;
  });
  program.actions = std::move(actions);
  return program;
}

void wait(std::array<comm::Work, 2>& messages) {
  for (comm::Work& work : messages) work.wait();
}

}  // namespace

StageProgram step_program(const ParallelSpec& resolved, const nn::Stage& stage,
                          std::span<const nn::BlockRange> chunks, int64_t micro_batches,
                          bool recompute) {
  if (stage.count == 1) return with_slots(one_stage(micro_batches), chunks, recompute);
  Programs all = with_transfers(
      compute_order(resolved.schedule, stage.count, stage.num_chunks(), micro_batches));
  return with_slots(std::move(all[size_t(stage.index)]), chunks, recompute);
}

StageProgram evaluation_program(const nn::Stage& stage, std::span<const nn::BlockRange> chunks) {
  std::vector<Action> forwards;
  for (int c = 0; c < stage.num_chunks(); ++c) forwards.push_back({Kind::kForward, int16_t(c), 0});
  if (stage.count == 1) return with_slots(std::move(forwards), chunks, false);
  Programs all = with_transfers(Programs(size_t(stage.count), forwards));
  return with_slots(std::move(all[size_t(stage.index)]), chunks, false);
}

PpTransfers::PpTransfers(comm::Group& pp, std::span<const int> slots_of_chunk) {
  const int me = pp.rank(), last = pp.size() - 1;
  const bool ring = slots_of_chunk.size() > 1;
  const int next = me < last ? me + 1 : 0, before = me > 0 ? me - 1 : last;
  const char *activations = "pp activations", *gradients = "pp gradients";
  if (me < last || ring) {
    forward_out_ = pp.channel(me, next, activations);
    backward_in_ = pp.channel(next, me, gradients);
  }
  if (me > 0 || ring) {
    forward_in_ = pp.channel(before, me, activations);
    backward_out_ = pp.channel(me, before, gradients);
  }
  for (const int count : slots_of_chunk) slots_.emplace_back(size_t(count));
}

PpTransfers::~PpTransfers() = default;

void PpTransfers::wait_before(const Action& action, const nn::Saved& saved) {
  Slot& s = slot(action.chunk, saved.slot);
  switch (action.kind) {
    case Kind::kReceiveForward:
    case Kind::kForward:
      wait(s.sends_forward);
      wait(s.sends_backward);
      if (action.kind == Kind::kForward) wait(s.receives_forward);
      break;
    case Kind::kReceiveBackward:
      wait(s.sends_forward);
      break;
    case Kind::kBackward:
    case Kind::kInputs:
      wait(s.receives_backward);
      break;
    default:
      break;
  }
}

void PpTransfers::post(const Action& action, const nn::Saved& saved) {
  Slot& s = slot(action.chunk, saved.slot);
  const Tensor none;
  const Tensor &in = saved.x[size_t(saved.chunk.begin)], &out = saved.x[size_t(saved.chunk.end)];
  const Tensor& carry_in = saved.carry[size_t(saved.chunk.begin)];
  const Tensor& carry_out = saved.hands_on ? saved.carry[size_t(saved.chunk.end)] : none;
  const auto send = [](comm::Channel& to, Messages& messages, const Tensor& a, const Tensor& b,
                       const char* label) {
    messages[0] = to.send(a, label);
    if (b) messages[1] = to.send(b, label);
  };
  const auto receive = [](comm::Channel& from, Messages& messages, const Tensor& a, const Tensor& b,
                          const char* label) {
    messages[0] = from.receive(a, label);
    if (b) messages[1] = from.receive(b, label);
  };
  switch (action.kind) {
    case Kind::kReceiveForward:
      return receive(*forward_in_, s.receives_forward, in, carry_in, "pp activations");
    case Kind::kSendForward:
      return send(*forward_out_, s.sends_forward, out, carry_out, "pp activations");
    case Kind::kReceiveBackward:
      return receive(*backward_in_, s.receives_backward, saved.d_stream(),
                     carry_out ? saved.d_carry : none, "pp gradients");
    case Kind::kSendBackward:
      return send(*backward_out_, s.sends_backward, saved.d_stream(),
                  carry_in ? saved.d_carry : none, "pp gradients");
    default:
      return;
  }
}

void PpTransfers::finish() {
  for (std::vector<Slot>& slots : slots_)
    for (Slot& s : slots) wait(s.sends_forward), wait(s.sends_backward);
}

std::vector<const comm::Group*> PpTransfers::groups() const {
  std::vector<const comm::Group*> list;
  for (const auto* channel : {&forward_in_, &forward_out_, &backward_in_, &backward_out_})
    if (*channel) list.push_back(&(*channel)->group());
  return list;
}

}  // namespace ashlar::parallel
