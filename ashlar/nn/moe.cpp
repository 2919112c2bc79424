// How it works.  The parts, and what each of them reads and fills:
//
//   forward    route             m -> router's choices -> plan; m -> x_rows, sorted by expert
//              experts           x_rows -> gate_up -> act -> y_rows, on the rank with the expert
//              combine           y_rows, weights -> e;  e += the shared expert's
//   backward   combine_backward  de -> dy_rows, dweights
//              experts_backward  dy_rows -> dact -> dgate_up -> dx_rows
//              route_backward    dweights through the router -> dm;  dm += dx_rows, and the
//                                shared expert's
//
// Rows are sent to experts and back through ExpertExchange, in forward and in backward: one part
// posts them, the next receives them.  The shared expert needs no exchange and runs in between.
//
// If ranks share the experts, rows are sent in rounds that alternate between two rooms: while the
// experts compute one round, the rows of the next arrive and the results of the last one leave.
//
//   forward    round 0, 1, ...; room = number % 2; the rooms keep the data of the last two rounds
//   backward   the last two rounds first, from the kept data (index 0: room 0); then 0, 1, ...,
//              whose rows are sent once more and whose gate_up and act are recomputed, in room
//              index % 2
#include "ashlar/nn/moe.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"
#include "ashlar/nn/lora.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;
using kernels::RoutePlan;

// Whether this rank adds p * m of the skipped tokens.
bool adds_skipped(const MoeShape& shape, const ExpertExchange& experts) {
  return shape.skip_identity && experts.leads();
}

// The first `rows` rows.
Matrix rows_of(const Tensor& all, int64_t rows) {
  return Matrix::of(all.slice(0, rows));
}

// A dry run gives every expert the same number of rows, but a real step may bring more: counts the
// workspace of a full room too, without a trace.
template <typename Run>
void for_a_full_room(const Context& ctx, const ExpertRound& round, Run run) {
  if (!ctx.meta() || round.counts.empty()) return;
  Context counting = ctx;
  counting.trace = nullptr;
  run(counting, ExpertRows{round.rows_here, round.results_here, round.row_of_expert_here});
}

Matrix as_column(const Tensor& vector_T) {
  return Matrix::of(vector_T.view({vector_T.numel(), 1}));
}

}  // namespace

void MoeBranch::lay_out(const SavedArenas& arenas, const Types& types, const PassShape& shape,
                        int slot) {
  router_->lay_out(arenas, types, shape.num_tokens, slot);
  saved_.set(slot, MoeSaved::make(arenas, weights_, types, shape.num_tokens));
  const size_t num_slots = std::max(rounds_.size(), size_t(slot) + 1);
  rounds_.resize(num_slots);
  counts_.resize(num_slots);
  if (shares_experts())
    counts_[size_t(slot)].resize(size_t(weights_.share.experts.count * (weights_.shape.E + 1)));
}

std::optional<ExpertLoad> MoeBranch::load(int slot) const {
  return ExpertLoad{saved_[slot].plan.count_X, router_->choice(slot).expert_Tk,
                    router_->losses(slot)};
}

void MoeBranch::forward(const Context& ctx, const Pass& pass, int part, const Tensor& m_TH,
                        const Carry& carry, const Tensor& e_TH) {
  run_part(
      part, [&] { route(ctx, pass, m_TH, carry); }, [&] { experts(ctx, pass); },
      [&] { combine(ctx, pass, m_TH, e_TH); });
}

void MoeBranch::backward(const Context& ctx, const Pass& pass, int part, const BackwardTensors& t) {
  run_part(
      part, [&] { combine_backward(ctx, pass, t); }, [&] { experts_backward(ctx, pass); },
      [&] { route_backward(ctx, pass, t); });
}

void MoeBranch::route(const Context& ctx, const Pass& pass, const Tensor& m_TH,
                      const Carry& carry) {
  const MoeSaved& saved = saved_[pass.slot];
  router_->forward(ctx, pass, m_TH, carry);
  route_plan(ctx, weights_.shape.E, router_->choice(pass.slot).expert_Tk, saved.plan);
  gather_rows(ctx, saved.plan, m_TH, saved.x_rows);
  ExpertExchange& exchange = *pass.exchanges.experts;
  int& rounds = rounds_[size_t(pass.slot)];
  rounds = exchange.count(ctx, saved.plan, counts_[size_t(pass.slot)]);
  for (int round = 0; round < std::min(2, rounds); ++round)
    exchange.post_rows(ctx, forward_round(round, pass.slot));
  if (weights_.shared) shared(ctx, pass, m_TH);
}

ExpertRound MoeBranch::forward_round(int number, int slot) const {
  const MoeSaved& saved = saved_[slot];
  const MoeSaved::Room& room = saved.rooms[size_t(number) % 2];
  ExpertRound round{.kind = ExpertRound::Kind::kForward,
                    .number = number,
                    .total = rounds_[size_t(slot)],
                    .plan = saved.plan,
                    .counts = counts_[size_t(slot)],
                    .rows = Matrix::of(saved.x_rows),
                    .results = Matrix::of(saved.y_rows),
                    .room = number % 2};
  if (!shares_experts()) return round;
  round.rows_here = Matrix::of(room.x);
  round.results_here = Matrix::of(room.y);
  round.row_of_expert_here = room.row_of_expert;
  return round;
}

void MoeBranch::shared(const Context& ctx, const Pass& pass, const Tensor& m_TH) const {
  const MoeSaved& saved = saved_[pass.slot];
  mlp_inner(ctx, pass, *weights_.shared, saved.shared, m_TH);
  mlp_output(ctx, pass, *weights_.shared, saved.shared, saved.shared_out);
  if (weights_.gated)
    adapted_forward(ctx, pass, Matrix::of(m_TH), weights_.shared_gate, as_column(saved.gate));
}

void MoeBranch::experts(const Context& ctx, const Pass& pass) const {
  ExpertExchange& exchange = *pass.exchanges.experts;
  const int rounds = rounds_[size_t(pass.slot)];
  for (int number = 0; number < rounds; ++number) {
    const ExpertRound round = forward_round(number, pass.slot);
    const MoeSaved::Room& room = saved_[pass.slot].rooms[size_t(number) % 2];
    const ExpertRows here = exchange.receive_rows(ctx, round);
    for_a_full_room(ctx, round, [&](const Context& counting, const ExpertRows& full) {
      gate_up_and_act(counting, pass, full, room);
      results(counting, pass, full, room);
    });
    gate_up_and_act(ctx, pass, here, room);
    results(ctx, pass, here, room);
    exchange.post_results(ctx, round);
    if (number + 2 >= rounds) continue;
    exchange.receive_results(ctx, round);
    exchange.post_rows(ctx, forward_round(number + 2, pass.slot));
  }
}

void MoeBranch::gate_up_and_act(const Context& ctx, const Pass& pass, const ExpertRows& here,
                                const MoeSaved::Room& room) const {
  const int64_t rows = here.rows.rows;
  adapted_grouped_forward(ctx, pass, here.rows, weights_.gate_up, here.row_of_expert_E1,
                          rows_of(room.gate_up, rows));
  swiglu_forward(ctx, here.row_of_expert_E1, room.gate_up.slice(0, rows), room.act.slice(0, rows));
}

void MoeBranch::results(const Context& ctx, const Pass& pass, const ExpertRows& here,
                        const MoeSaved::Room& room) const {
  adapted_grouped_forward(ctx, pass, rows_of(room.act, here.rows.rows), weights_.down,
                          here.row_of_expert_E1, here.results);
}

// Receives the last two rounds' results, still in flight.
void MoeBranch::receive_results(const Context& ctx, const Pass& pass) const {
  const int rounds = rounds_[size_t(pass.slot)];
  for (int number = std::max(0, rounds - 2); number < rounds; ++number)
    pass.exchanges.experts->receive_results(ctx, forward_round(number, pass.slot));
}

void MoeBranch::combine(const Context& ctx, const Pass& pass, const Tensor& m_TH,
                        const Tensor& e_TH) const {
  const MoeSaved& saved = saved_[pass.slot];
  receive_results(ctx, pass);
  combine_forward(ctx, {.plan = saved.plan,
                        .identity = adds_skipped(weights_.shape, *pass.exchanges.experts),
                        .y_rows_RH = saved.y_rows,
                        .weight_Tk = router_->choice(pass.slot).weight_Tk,
                        .m_TH = m_TH,
                        .e_TH = e_TH});
  if (weights_.shared) shared_add_forward(ctx, saved.gate, saved.shared_out, e_TH);
}

void MoeBranch::combine_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const MoeSaved& saved = saved_[pass.slot];
  if (pass.recomputes()) {
    route(ctx, pass, t.a, t.carry);
    experts(ctx, pass);
    receive_results(ctx, pass);
  }
  Arena& workspace = *ctx.workspace;
  const Tensor& weights = router_->choice(pass.slot).weight_Tk;
  const auto [stream, wide, activation, compute] = pass.types;
  const int64_t T = t.a.shape[0], R = weights.numel();
  Gradients& g = gradients_;
  g.partial = weights_.gated ? gradient_room(ctx, pass, wide, {R + T}) : workspace.take(wide, {R});
  g.dweights = g.partial.slice(0, R).view(weights.shape);
  if (weights_.gated) g.dgate = g.partial.slice(R, R + T);
  if (weights_.shared) g.dshared = workspace.take(activation, t.a.shape);
  g.dx_rows = workspace.take(activation, saved.x_rows.shape);
  g.outputs.emplace(workspace);
  // Operands of products that may be deferred: the rows here, or those in the rooms.
  const bool experts_are_remote = shares_experts();
  g.dy_rows = experts_are_remote ? workspace.take(activation, saved.y_rows.shape)
                                 : gradient_room(ctx, pass, activation, saved.y_rows.shape);
  for (size_t room = 0; experts_are_remote && room < 2; ++room) {
    g.dy_here[room] = gradient_room(ctx, pass, activation, saved.rooms[room].y.shape);
    g.dx_here[room] = workspace.take(activation, saved.rooms[room].x.shape);
  }
  kernels::combine_backward(ctx, {.plan = saved.plan,
                                  .identity = adds_skipped(weights_.shape, *pass.exchanges.experts),
                                  .de_TH = t.d_o,
                                  .y_rows_RH = saved.y_rows,
                                  .weight_Tk = weights,
                                  .m_TH = t.a,
                                  .dy_rows_RH = g.dy_rows,
                                  .dweight_Tk = g.dweights});
  for (int index = 0; index < std::min(2, rounds_[size_t(pass.slot)]); ++index)
    post_gradients(ctx, pass, index);
  if (weights_.shared) shared_backward(ctx, pass, t);
}

ExpertRound MoeBranch::backward_round(int index, int slot, ExpertRound::Kind kind) const {
  const MoeSaved& saved = saved_[slot];
  const int total = rounds_[size_t(slot)];
  // The last two rounds in the order of their rooms, then the others.
  const int number = index >= 2 ? index - 2 : total == 1 ? 0 : total - 2 + (total + index) % 2;
  const auto room = size_t(index) % 2;
  ExpertRound round{.kind = kind,
                    .number = number,
                    .total = total,
                    .plan = saved.plan,
                    .counts = counts_[size_t(slot)],
                    .rows = Matrix::of(saved.x_rows),
                    .results = {},
                    .room = int(room)};
  if (kind == ExpertRound::Kind::kBackward) {
    round.rows = Matrix::of(gradients_.dy_rows);
    round.results = Matrix::of(gradients_.dx_rows);
  }
  if (!shares_experts()) return round;
  round.row_of_expert_here = saved.rooms[room].row_of_expert;
  round.rows_here = Matrix::of(kind == ExpertRound::Kind::kBackward ? gradients_.dy_here[room]
                                                                    : saved.rooms[room].x);
  if (kind == ExpertRound::Kind::kBackward)
    round.results_here = Matrix::of(gradients_.dx_here[room]);
  return round;
}

void MoeBranch::post_gradients(const Context& ctx, const Pass& pass, int index) const {
  using Kind = ExpertRound::Kind;
  ExpertExchange& exchange = *pass.exchanges.experts;
  if (index >= 2) exchange.post_rows(ctx, backward_round(index, pass.slot, Kind::kRecompute));
  exchange.post_rows(ctx, backward_round(index, pass.slot, Kind::kBackward));
}

void MoeBranch::shared_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const MoeSaved& saved = saved_[pass.slot];
  const Arena::Scope scope(*ctx.workspace);
  Tensor ds = t.d_o;
  if (weights_.gated) {
    ds = gradient_room(ctx, pass, pass.types.activation, t.d_o.shape);
    shared_add_backward(ctx, {.de_TH = t.d_o,
                              .z_T = saved.gate,
                              .s_TH = saved.shared_out,
                              .ds_TH = ds,
                              .dz_T = gradients_.dgate});
  }
  const MlpWeights& w = *weights_.shared;
  const Tensor dgate_up =
      gradient_room(ctx, pass, pass.types.activation, saved.shared.gate_up.shape);
  mlp_backward_inputs(ctx, pass, w, saved.shared, t.a, ds, gradients_.dshared, dgate_up);
  mlp_backward_weights(ctx, pass, w, saved.shared, t.a, ds, dgate_up);
}

void MoeBranch::experts_backward(const Context& ctx, const Pass& pass) {
  const int rounds = rounds_[size_t(pass.slot)];
  // Deferred products need their operands, and the rooms keep two rounds only.
  ASHLAR_ASSERT(!pass.late || rounds <= 2);
  for (int index = 0; index < rounds; ++index) {
    Pass round = pass;
    round.add_to_gradients = pass.add_to_gradients || index > 0;
    round_backward(ctx, round, index);
    if (index + 2 >= rounds) continue;
    pass.exchanges.experts->receive_results(
        ctx, backward_round(index, pass.slot, ExpertRound::Kind::kBackward));
    post_gradients(ctx, pass, index + 2);
  }
  if (!shares_experts()) gradients_.outputs.reset();  // nothing is in flight
}

void MoeBranch::round_backward(const Context& ctx, const Pass& pass, int index) {
  using Kind = ExpertRound::Kind;
  const MoeSaved::Room& room = saved_[pass.slot].rooms[size_t(index) % 2];
  ExpertExchange& exchange = *pass.exchanges.experts;
  if (index >= 2)
    gate_up_and_act(ctx, pass,
                    exchange.receive_rows(ctx, backward_round(index, pass.slot, Kind::kRecompute)),
                    room);
  const ExpertRound round = backward_round(index, pass.slot, Kind::kBackward);
  const ExpertRows here = exchange.receive_rows(ctx, round);
  const Arena::Scope scope(*ctx.workspace);
  // Sized for a whole room, so that memory does not depend on the tokens.
  const Tensor dact = ctx.workspace->take(pass.types.activation, room.act.shape),
               dgate_up = gradient_room(ctx, pass, pass.types.activation, room.gate_up.shape);
  for_a_full_room(ctx, round, [&](const Context& counting, const ExpertRows& full) {
    products_backward(counting, pass.at_once(), full, room, dact, dgate_up);
  });
  products_backward(ctx, pass, here, room, dact, dgate_up);
  exchange.post_results(ctx, round);
}

void MoeBranch::products_backward(const Context& ctx, const Pass& pass, const ExpertRows& here,
                                  const MoeSaved::Room& room, const Tensor& dact_room,
                                  const Tensor& dgate_up_room) const {
  const MoeWeights& w = weights_;
  const auto& [dy, dx, row_of_expert] = here;
  const int64_t rows = dy.rows, all_rows = room.act.shape[0];
  const Tensor dact = dact_room.slice(0, rows), dgate_up = dgate_up_room.slice(0, rows),
               act = room.act.slice(0, rows), gate_up = room.gate_up.slice(0, rows),
               x = (room.x ? room.x : saved_[pass.slot].x_rows).slice(0, rows);
  adapted_grouped_backward(ctx, pass, dy, w.down, Matrix::of(act), row_of_expert, Matrix::of(dact),
                           all_rows);
  swiglu_backward(ctx, row_of_expert, dact, gate_up, dgate_up);
  adapted_grouped_backward(ctx, pass, Matrix::of(dgate_up), w.gate_up, Matrix::of(x), row_of_expert,
                           dx, all_rows);
}

// Receives the last two rounds' gradients, still in flight.
void MoeBranch::receive_gradients(const Context& ctx, const Pass& pass) const {
  const int rounds = rounds_[size_t(pass.slot)];
  for (int index = std::max(0, rounds - 2); index < rounds; ++index)
    pass.exchanges.experts->receive_results(
        ctx, backward_round(index, pass.slot, ExpertRound::Kind::kBackward));
}

void MoeBranch::route_backward(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  const MoeSaved& saved = saved_[pass.slot];
  ExpertExchange& experts = *pass.exchanges.experts;
  const Gradients& g = gradients_;
  experts.sum_partial(g.partial);
  router_->backward(ctx, pass, t.a, t.carry, g.dweights, t.da);
  if (weights_.gated) gate_backward(ctx, pass, t);
  // All ranks compute the part of router and gate alike; only one includes it.
  if (!experts.leads()) fill(ctx, t.da, 0.0);
  receive_gradients(ctx, pass);
  gradients_.outputs.reset();
  scatter_rows_add(ctx, {.plan = saved.plan,
                         .identity = adds_skipped(weights_.shape, experts),
                         .shared_TH = g.dshared,
                         .dx_rows_RH = g.dx_rows,
                         .weight_Tk = router_->choice(pass.slot).weight_Tk,
                         .de_TH = t.d_o,
                         .dm_TH = t.da});
}

void MoeBranch::gate_backward(const Context& ctx, const Pass& pass,
                              const BackwardTensors& t) const {
  const Matrix dgate = as_column(gradients_.dgate);
  adapted_backward_weight(ctx, pass, dgate, Matrix::of(t.a), weights_.shared_gate);
  adapted_backward_input(ctx, pass, dgate, weights_.shared_gate, Matrix::of(t.a), Matrix::of(t.da),
                         true);
}

}  // namespace ashlar::nn
