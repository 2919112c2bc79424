// How it works.  Attention has D turns, in three slots (turn % 3; fewer if D is less) of weights
// and of gradients.  Part p of turn t runs after part p - 1 of turn t + 1, so that keys are in
// flight meanwhile:
//
//   begin      posts the broadcasts of turns 0, 1, 2
//   acquire    at a turn's first part: waits for its weights, packs them
//   release    after its last part: posts the broadcast of turn + 3 into the slot; in backward the
//              reduce of its gradients, which turn + 3 waits for
//
// An MLP on rank p: in forward, step k computes with share p - k; in backward with share p + 1 + k,
// and so with its own share last.  There are two buffers of weights and two of gradients, used in
// turn:
//
//   forward    step k    post: share to p + 1, next share from p - 1;  compute;  wait
//   backward   before    own share to p - 1, share p + 1 from there, waited for
//              step k    post: share to p - 1, next from p + 1;  compute inputs' gradients;
//                        wait for the sum of this share's gradients from p + 1, add to it;
//                        post: the sum to p - 1;  wait for the share
#include "ashlar/parallel/tsp.h"

#include "ashlar/kernels/copy.h"
#include "ashlar/nn/make_branch.h"

namespace ashlar::parallel {

using kernels::Context;
using nn::BackwardTensors;
using nn::Carry;
using nn::Pass;

FoldedBranch::FoldedBranch(const nn::Model& model, int64_t block, std::unique_ptr<nn::Branch> held,
                           Branches turns, comm::Group& ranks, const ShardCounts& counts,
                           int num_alive)
    : held_(std::move(held)),
      turns_(std::move(turns)),
      ranks_(ranks),
      shards_(model, block, *held_, turns_, ranks, counts),
      num_alive_(num_alive) {}

nn::BranchNeeds FoldedBranch::needs() const {
  nn::BranchNeeds needs = turns_[0]->needs();
  needs.forward_parts = needs.backward_parts = 1;
  needs.tokens.num_turns = 2;
  // Turns have halos of different widths: with delayed values, or without.
  for (const auto& turn : turns_) {
    const auto strips = turn->needs().tokens.most_strips;
    for (size_t i = 0; i < strips.size(); ++i)
      needs.tokens.most_strips[i].cols = std::max(needs.tokens.most_strips[i].cols, strips[i].cols);
  }
  return needs;
}

void FoldedBranch::lay_out(const nn::SavedArenas& arenas, const nn::Types& types,
                           const nn::PassShape& shape, int slot) {
  // Later turns may overwrite what a turn recomputes.
  const int apart = shape.recomputes ? std::min(num_alive_, num_turns()) : num_turns();
  for (int first = 0; first < apart; ++first)
    for (int turn = first; turn < num_turns(); turn += apart) {
      std::optional<Arena::Scope> shared;
      if (turn + apart < num_turns()) shared.emplace(arenas.block);
      turns_[size_t(turn)]->lay_out(arenas, types, shape, slot);
    }
}

Pass FoldedBranch::pass_of(const Pass& pass, int turn, bool first) {
  Pass through = pass;
  through.turn = turn;
  through.add_to_output = !first;
  return through;
}

Tensor FoldedBranch::room_for_sum(const Context& ctx, const Pass& pass, const Tensor& place) {
  const DType wide = pass.types.wide;
  return place.dtype == wide ? place : ctx.workspace->take(wide, place.shape);
}

void FoldedBranch::keep_sum(const Context& ctx, const Tensor& sum, const Tensor& place) {
  if (sum.dtype != place.dtype) copy(ctx, sum, place);
}

// --- attention ---

FoldedMixer::FoldedMixer(const nn::Model& model, int64_t block, std::unique_ptr<nn::Branch> held,
                         Branches turns, comm::Group& ranks)
    : FoldedBranch(model, block, std::move(held), std::move(turns), ranks,
                   {num_slots(model), num_slots(model), num_slots(model)}, 2),
      num_slots_(num_slots(model)) {}

// At most one slot per turn.
int FoldedMixer::num_slots(const nn::Model& model) {
  const nn::Share& share = model.weights().share;
  return std::min(kMostSlots, share.heads.count * share.head_buckets);
}

void FoldedMixer::post_weights(const Context& ctx, int turn) {
  if (turn >= num_turns()) return;
  const size_t slot = slot_of(turn);
  const int owner = shards_.owner(turn);
  const Tensor message =
      owner == ranks_.rank() ? shards_.own_message(ctx, turn, slot) : shards_.weights(slot);
  weights_come_[slot] = ranks_.broadcast(message, owner, "attention weights");
}

void FoldedMixer::begin(const Context& ctx) {
  for (int turn = 0; turn < num_slots_; ++turn) post_weights(ctx, turn);
}

void FoldedMixer::acquire(const Context& ctx, int turn, bool backward) {
  const size_t slot = slot_of(turn);
  weights_come_[slot].wait();
  shards_.use(ctx, turn, shards_.weights(slot), slot, slot, backward);
}

void FoldedMixer::release(const Context& ctx, int turn) {
  post_weights(ctx, turn + num_slots_);
}

void FoldedMixer::reduce(int turn) {
  if (!shards_.has_gradients()) return;
  const size_t slot = slot_of(turn);
  const Tensor& sum = shards_.gradient(slot);
  gradients_leave_[slot] = ranks_.reduce(sum, sum, shards_.owner(turn), "attention gradients");
}

void FoldedMixer::finish_reduce(const Context& ctx, const Pass& pass, int turn) {
  if (turn < 0 || !shards_.has_gradients()) return;
  const size_t slot = slot_of(turn);
  gradients_leave_[slot].wait();
  if (shards_.owner(turn) == ranks_.rank())
    shards_.keep_gradient(ctx, turn, slot, pass.add_to_gradients);
}

void FoldedMixer::forward(const Context& ctx, const Pass& pass, int, const Tensor& a_TH,
                          const Carry&, const Tensor& o_TH) {
  const int num_parts = turns_[0]->needs().forward_parts;
  const Tensor o = room_for_sum(ctx, pass, o_TH);
  begin(ctx);
  skew(num_turns(), num_parts, false, [&](int turn, int part) {
    if (part == 0) acquire(ctx, turn, false);
    turns_[size_t(turn)]->forward(ctx, pass_of(pass, turn, turn == 0), part, a_TH, {}, o);
    if (part + 1 == num_parts) release(ctx, turn);
  });
  keep_sum(ctx, o, o_TH);
}

void FoldedMixer::backward(const Context& ctx, const Pass& pass, int, const BackwardTensors& t) {
  const int num_parts = turns_[0]->needs().backward_parts;
  const Tensor da = room_for_sum(ctx, pass, t.da);
  begin(ctx);
  // A turn's last part ends before the next turn's second part begins; first parts leave nothing in
  // the workspace.
  std::optional<Arena::Scope> scope;
  skew(num_turns(), num_parts, true, [&](int turn, int part) {
    if (part == 0) {
      finish_reduce(ctx, pass, turn - num_slots_);
      acquire(ctx, turn, true);
    }
    if (part == 1) scope.emplace(*ctx.workspace);
    Pass through = pass_of(pass, turn, turn == 0);
    through.add_to_gradients = false;
    turns_[size_t(turn)]->backward(ctx, through, part,
                                   {.a = t.a, .d_o = t.d_o, .da = da, .carry = {}});
    if (part + 1 < num_parts) return;
    scope.reset();
    release(ctx, turn);
    reduce(turn);
  });
  for (int turn = num_turns() - num_slots_; turn < num_turns(); ++turn)
    finish_reduce(ctx, pass, turn);
  keep_sum(ctx, da, t.da);
}

// --- MLP ---

FoldedMlp::FoldedMlp(const nn::Model& model, int64_t block, std::unique_ptr<nn::Branch> held,
                     Branches turns, comm::Group& ranks)
    : FoldedBranch(model, block, std::move(held), std::move(turns), ranks,
                   {.weights = 2, .operands = 1, .gradients = 2}, 1) {}

int FoldedMlp::rank_after(int steps) const {
  return (ranks_.rank() + steps + 2 * ranks_.size()) % ranks_.size();
}

void FoldedMlp::post(Hop& hop, int steps, const Tensor& send, const Tensor& receive,
                     std::string_view label) {
  hop.send = {rank_after(steps), send};
  hop.receive = {rank_after(-steps), receive};
  hop.work = ranks_.send_receive({&hop.send, 1}, {&hop.receive, 1}, label);
}

void FoldedMlp::forward(const Context& ctx, const Pass& pass, int, const Tensor& a_TH,
                        const Carry& carry, const Tensor& o_TH) {
  const Tensor o = room_for_sum(ctx, pass, o_TH);
  Tensor here = shards_.own_message(ctx, ranks_.rank(), 0);
  for (int step = 0; step < num_turns(); ++step) {
    const int turn = rank_after(-step);
    const Tensor& next = shards_.weights(size_t(step + 1) % 2);
    if (step + 1 < num_turns()) post(weights_, 1, here, next, "mlp weights");
    shards_.use(ctx, turn, here, 0, 0, false);
    turns_[size_t(turn)]->forward(ctx, pass_of(pass, turn, step == 0), 0, a_TH, carry, o);
    weights_.work.wait();
    here = next;
  }
  keep_sum(ctx, o, o_TH);
}

void FoldedMlp::backward(const Context& ctx, const Pass& pass, int, const BackwardTensors& t) {
  const int last = num_turns() - 1;
  const BackwardTensors tensors{
      .a = t.a, .d_o = t.d_o, .da = room_for_sum(ctx, pass, t.da), .carry = {}};
  post(weights_, -1, shards_.own_message(ctx, ranks_.rank(), 1), shards_.weights(0), "mlp weights");
  weights_.work.wait();
  for (int step = 0; step <= last; ++step) {
    const int turn = rank_after(step + 1);
    const size_t slot = size_t(step) % 2, other = 1 - slot;
    if (step + 1 < last)
      post(weights_, -1, shards_.weights(slot), shards_.weights(other), "mlp weights");
    shards_.use(ctx, turn, shards_.weights(slot), 0, slot, true);
    Pass through = pass_of(pass, turn, step == 0);
    through.add_to_gradients = step > 0;
    const Arena::Scope scope(*ctx.workspace);
    turns_[size_t(turn)]->backward(ctx, through, 0, tensors);
    gradients_.work.wait();  // the sum over the ranks that had this share before
    turns_[size_t(turn)]->backward(ctx, through, 1, tensors);
    if (step < last && shards_.has_gradients())
      post(gradients_, -1, shards_.gradient(slot), shards_.gradient(other), "mlp gradients");
    weights_.work.wait();
  }
  shards_.keep_gradient(ctx, ranks_.rank(), size_t(last) % 2, pass.add_to_gradients);
  keep_sum(ctx, tensors.da, t.da);
}

// --- a model ---

ShardMemory fold_branches(const Context& ctx, Allocator& allocator, nn::Model& model,
                          const Groups& groups) {
  std::vector<BranchShards*> all;
  const auto turns_of = [](int num_turns, auto make, const auto& spec) {
    FoldedBranch::Branches turns;
    for (int turn = 0; turn < num_turns; ++turn) turns.push_back(make(spec));
    return turns;
  };
  comm::Group &heads = groups.heads(), &widths = groups.tsp();
  const int head_turns = heads.size() * model.weights().share.head_buckets;
  model.weights().for_each_block([&](nn::Block& block, int64_t l) {
    const BlockSpec& spec = model.spec().blocks[size_t(l)];
    auto mixer = std::make_unique<FoldedMixer>(
        model, l, std::move(block.mixer), turns_of(head_turns, nn::make_mixer, spec.mixer), heads);
    all.push_back(&mixer->shards());
    block.mixer = std::move(mixer);
    if (!std::holds_alternative<MlpSpec>(spec.feed_forward)) return;
    auto mlp = std::make_unique<FoldedMlp>(
        model, l, std::move(block.feed_forward),
        turns_of(widths.size(), nn::make_feed_forward, spec.feed_forward), widths);
    all.push_back(&mlp->shards());
    block.feed_forward = std::move(mlp);
  });
  const auto lay_out = [&](Arena& weights, Arena& gradients) {
    for (BranchShards* shards : all) {
      const Arena::Scope of_weights(weights), of_gradients(gradients);
      shards->take_room(ctx, weights, gradients);
    }
  };
  Arena unused(Device::kMeta);
  ShardMemory memory{
      arena_for(allocator, Tag::kWeights, [&](Arena& arena) { lay_out(arena, unused); }),
      arena_for(allocator, Tag::kGradients, [&](Arena& arena) { lay_out(unused, arena); })};
  lay_out(memory.weights, memory.gradients);
  return memory;
}

}  // namespace ashlar::parallel
