#include "ashlar/nn/lora.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ashlar/kernels/copy.h"
#include "ashlar/nn/weights.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;

// The gradients of adapters are always added: they belong to the root, which a step begins with 0.
Pass adding(const Pass& pass) {
  Pass added = pass;
  added.add_to_gradients = true;
  return added;
}

// u = scale x A^T, in memory that a deferred product may read.
Matrix into_rank(const Context& ctx, const Pass& pass, const Adapter& adapter, const Matrix& x) {
  const int64_t rank = adapter.a.operand.n();
  const Tensor u = gradient_room(ctx, pass, pass.types.activation, {x.rows, rank});
  linear_forward(ctx, pass.types.compute, x, adapter.a.operand, Matrix::of(u));
  scale(ctx, u, adapter.scale);
  return Matrix::of(u);
}

// v = scale dy B, likewise.
Matrix back_into_rank(const Context& ctx, const Pass& pass, const Adapter& adapter,
                      const Matrix& dy) {
  const int64_t rank = adapter.b.operand.k();
  const Tensor v = gradient_room(ctx, pass, pass.types.activation, {dy.rows, rank});
  linear_backward_input(ctx, pass.types.compute, dy.columns(adapter.begin, adapter.end),
                        adapter.b.operand, Matrix::of(v));
  scale(ctx, v, adapter.scale);
  return Matrix::of(v);
}

bool has_rows(const Adapter& adapter) {
  return adapter.begin < adapter.end;
}

}  // namespace

void adapted_forward(const Context& ctx, const Pass& pass, const Matrix& x, const Weight& w,
                     const Matrix& y, bool accumulate) {
  linear_forward(ctx, pass.types.compute, x, w.operand, y, accumulate);
  for (const Adapter& adapter : w.adapters) {
    if (!has_rows(adapter)) continue;
    const Arena::Scope scope(*ctx.workspace);
    const Matrix u = into_rank(ctx, pass.at_once(), adapter, x);
    linear_forward(ctx, pass.types.compute, u, adapter.b.operand,
                   y.columns(adapter.begin, adapter.end), /*accumulate=*/true);
  }
}

void adapted_backward_input(const Context& ctx, const Pass& pass, const Matrix& dy, const Weight& w,
                            const Matrix& x, const Matrix& dx, bool accumulate) {
  const DType compute = pass.types.compute;
  const bool has_dx = dx.cols > 0;
  if (has_dx) linear_backward_input(ctx, compute, dy, w.operand, dx, accumulate);
  for (const Adapter& adapter : w.adapters) {
    if (!has_rows(adapter)) continue;
    const Arena::Scope scope(*ctx.workspace);
    const Matrix v = back_into_rank(ctx, pass, adapter, dy);
    if (has_dx) linear_backward_input(ctx, compute, v, adapter.a.operand, dx, /*accumulate=*/true);
    weight_gradient(ctx, adding(pass), v, x, adapter.a.gradient);
  }
}

void adapted_backward_weight(const Context& ctx, const Pass& pass, const Matrix& dy,
                             const Matrix& x, const Weight& w) {
  if (w.gradient) weight_gradient(ctx, pass, dy, x, w.gradient);
  for (const Adapter& adapter : w.adapters) {
    if (!has_rows(adapter)) continue;
    const Arena::Scope scope(*ctx.workspace);
    const Matrix u = into_rank(ctx, pass, adapter, x);
    weight_gradient(ctx, adding(pass), dy.columns(adapter.begin, adapter.end), u,
                    adapter.b.gradient);
  }
}

namespace {

// factor * x W^T of a stack, in the memory y.
void grouped_into(const Context& ctx, const Pass& pass, const Matrix& x, const kernels::Operand& w,
                  const Tensor& row_of_group, const Tensor& y, double factor) {
  grouped_linear_forward(ctx, pass.types.compute, x, w, row_of_group, Matrix::of(y));
  scale(ctx, y, factor);
}

}  // namespace

void adapted_grouped_forward(const Context& ctx, const Pass& pass, const Matrix& x, const Weight& w,
                             const Tensor& row_of_group, const Matrix& y) {
  const DType activation = pass.types.activation, compute = pass.types.compute;
  grouped_linear_forward(ctx, compute, x, w.operand, row_of_group, y);
  for (const Adapter& adapter : w.adapters) {
    const Arena::Scope scope(*ctx.workspace);
    const Tensor u = ctx.workspace->take(activation, {x.rows, adapter.a.operand.n()});
    const Tensor more = ctx.workspace->take(pass.types.wide, {y.rows, y.cols});
    grouped_into(ctx, pass, x, adapter.a.operand, row_of_group, u, adapter.scale);
    grouped_linear_forward(ctx, compute, Matrix::of(u), adapter.b.operand, row_of_group,
                           Matrix::of(more));
    add(ctx, Matrix::of(more), y);
  }
}

void adapted_grouped_backward(const Context& ctx, const Pass& pass, const Matrix& dy,
                              const Weight& w, const Matrix& x, const Tensor& row_of_group,
                              const Matrix& dx, int64_t room) {
  const DType activation = pass.types.activation, compute = pass.types.compute;
  grouped_linear_backward_input(ctx, compute, dy, w.operand, row_of_group, dx);
  if (w.gradient) grouped_weight_gradient(ctx, pass, dy, x, row_of_group, w.gradient);
  for (const Adapter& adapter : w.adapters) {
    const Arena::Scope scope(*ctx.workspace);
    const int64_t rank = adapter.a.operand.n();
    const auto take = [&] {
      return gradient_room(ctx, pass, activation, {room, rank}).slice(0, x.rows);
    };
    const Tensor u = take(), v = take();
    grouped_into(ctx, pass, x, adapter.a.operand, row_of_group, u, adapter.scale);
    grouped_linear_backward_input(ctx, compute, dy, adapter.b.operand, row_of_group, Matrix::of(v));
    scale(ctx, v, adapter.scale);
    const Tensor more = ctx.workspace->take(pass.types.wide, {dx.rows, dx.cols});
    grouped_linear_backward_input(ctx, compute, Matrix::of(v), adapter.a.operand, row_of_group,
                                  Matrix::of(more));
    add(ctx, Matrix::of(more), dx);
    // dx above needs only this rank's part of v.
    pass.exchanges.experts->sum_adapted(ctx, adapter.cuts_inputs ? u : v);
    grouped_weight_gradient(ctx, pass, dy, Matrix::of(u), row_of_group, adapter.b.gradient);
    grouped_weight_gradient(ctx, pass, Matrix::of(v), x, row_of_group, adapter.a.gradient);
  }
}

namespace {

// The two tensors of the adapter of a tensor of `stored`.  Where the tensor is cut, the one that is
// whole meets a part of the rows or columns on every share.
std::array<ParameterInfo, 2> infos_of(const ParameterInfo& base, int64_t rank) {
  const int64_t rows = base.shape[0], cols = base.shape[1];
  ParameterInfo a{.name = lora_a_name(base.name),
                  .shape = {rank, cols},
                  .init = {InitRule::Kind::kUniform, 1.0 / std::sqrt(double(cols))},
                  .decay = true,
                  .adapter = true,
                  .applied = base.applied};
  ParameterInfo b{.name = lora_b_name(base.name),
                  .shape = {rows, rank},
                  .init = {InitRule::Kind::kConstant, 0.0},
                  .decay = true,
                  .adapter = true,
                  .applied = base.applied};
  if (base.cuts.empty()) return {a, b};
  ASHLAR_ASSERT(base.cuts.size() == 1);
  ParameterInfo& cut = base.cuts[0].dim == 0 ? b : a;
  ParameterInfo& whole = base.cuts[0].dim == 0 ? a : b;
  cut.cuts = base.cuts;
  whole.applied = Applied::kHeads;
  return {a, b};
}

// Likewise of a stack of experts.  The ranks that share the experts' width all hold the half that
// is whole.
std::array<ParameterInfo, 2> infos_of_stack(const ParameterInfo& base, int64_t rank) {
  const int64_t experts = base.shape[0], rows = base.shape[1], cols = base.shape[2];
  const Cut &by_expert = base.cuts[0], &by_width = base.cuts[1];
  // The extent of `dim` is one grain of the width, of which every share has a copy.
  const auto whole = [](int dim, int64_t extent) {
    return Cut{dim, {Section{Grain::kExpertWidth, 1, extent, 0, extent}}};
  };
  ParameterInfo a{.name = lora_a_name(base.name),
                  .shape = {experts, rank, cols},
                  .init = {InitRule::Kind::kUniform, 1.0 / std::sqrt(double(cols))},
                  .decay = true,
                  .adapter = true,
                  .cuts = {by_expert, by_width.dim == 2 ? by_width : whole(2, cols)}};
  ParameterInfo b{.name = lora_b_name(base.name),
                  .shape = {experts, rows, rank},
                  .init = {InitRule::Kind::kConstant, 0.0},
                  .decay = true,
                  .adapter = true,
                  .cuts = {by_expert, by_width.dim == 1 ? by_width : whole(1, rows)}};
  return {a, b};
}

void list_stacked_adapter(const TuneSpec& tune, const Stored& stored, StoredVisitor visit) {
  const ParameterInfo& base = stored.logical[0];
  if (!tune.adapts(base.name)) return;
  Adapter& adapter = stored.weight->adapters.emplace_back();
  const int64_t rank = tune.lora.rank, experts = stored.operand_shape[0],
                rows = stored.operand_shape[1], cols = stored.operand_shape[2];
  adapter.logical = 0, adapter.begin = 0, adapter.end = rows;
  adapter.scale = tune.lora.scale();
  adapter.cuts_inputs = base.cuts[1].dim == 2;
  auto [a, b] = infos_of_stack(base, rank);
  visit({.weight = &adapter.a, .logical = {std::move(a)}, .operand_shape = {experts, rank, cols}});
  visit({.weight = &adapter.b, .logical = {std::move(b)}, .operand_shape = {experts, rows, rank}});
}

}  // namespace

void freeze(const TuneSpec& tune, Stored& stored) {
  for (ParameterInfo& info : stored.logical) info.frozen = tune.freezes(info.name);
  for (const ParameterInfo& info : stored.logical)
    ASHLAR_REQUIRE(info.frozen == stored.is_frozen(), kConfig,
                   "{} freezes one of {} and {}, which are one product; name both or none",
                   tune.has_adapters() ? "lora.modules_to_save" : "train.freeze",
                   stored.logical[0].name, info.name);
}

void list_adapters(const TuneSpec& tune, const Stored& stored, StoredVisitor visit) {
  if (!stored.is_linear()) return;
  if (stored.is_stack()) return list_stacked_adapter(tune, stored, visit);
  std::vector<size_t> adapted;
  for (size_t i = 0; i < stored.logical.size(); ++i)
    if (tune.adapts(stored.logical[i].name)) adapted.push_back(i);
  std::vector<Adapter>& adapters = stored.weight->adapters;
  adapters.resize(adapted.size());  // once: the list points to them
  const int64_t rank = tune.lora.rank, cols = stored.operand_shape[1];
  for (size_t n = 0; n < adapted.size(); ++n) {
    const size_t i = adapted[n];
    Adapter& adapter = adapters[n];
    adapter.logical = i;
    adapter.begin = stored.rows[i], adapter.end = stored.rows[i + 1];
    adapter.scale = tune.lora.scale();
    auto [a, b] = infos_of(stored.logical[i], rank);
    visit({.weight = &adapter.a,
           .logical = {std::move(a)},
           .operand_shape = {rank, cols},
           .is_adapter = true});
    const int64_t rows = adapter.end - adapter.begin;
    visit({.weight = &adapter.b,
           .logical = {std::move(b)},
           .operand_shape = rows > 0 ? Shape{rows, rank} : Shape{},
           .is_adapter = true});
  }
}

namespace {

void require_matches(const char* key, const std::vector<std::string>& patterns,
                     const ModelWeights& weights) {
  for (const std::string& pattern : patterns) {
    bool found = false;
    weights.for_each([&](const ParameterInfo& info, const Tensor&, const Tensor&) {
      found |= matches_pattern(pattern, info.name);
    });
    ASHLAR_REQUIRE(found, kConfig,
                   "{} has \"{}\", which no tensor of the model matches; they have names as {}",
                   key, pattern, weights.tensors.back().logical[0].name);
  }
}

void require_targets(const TuneSpec& tune, const ModelWeights& weights) {
  for (const std::string& target : tune.lora.targets) {
    TuneSpec one = tune;
    one.lora.targets = {target};
    bool found = false;
    for (const Stored& stored : weights.tensors)
      for (const ParameterInfo& info : stored.logical)
        found |= stored.is_linear() && one.adapts(info.name);
    ASHLAR_REQUIRE(found, kConfig,
                   "lora.targets has \"{}\", which no linear layer of the model matches; choose "
                   "attention, mlp, experts, or names as q_proj",
                   target);
  }
}

}  // namespace

void require_tunable(const ModelSpec& model, const TuneSpec& tune) {
  if (tune.trains_all()) return;
  const ModelWeights weights(model, {}, {}, tune);
  require_matches("train.freeze", tune.freeze, weights);
  require_matches("lora.modules_to_save", tune.lora.modules_to_save, weights);
  if (tune.has_adapters()) require_targets(tune, weights);
  const auto trains = [](const Stored& stored) { return stored.is_trained(); };
  ASHLAR_REQUIRE(std::ranges::any_of(weights.tensors, trains), kConfig,
                 "train.freeze names every tensor of the model; leave one to train");
  // One kernel makes the gradients of both.
  const bool scaled = model.scaled_embedding();
  ASHLAR_REQUIRE(!scaled || !tune.freezes("model.embed_tokens.weight") ||
                     (tune.freezes("model.input_hidden_states_scale") &&
                      tune.freezes("model.input_hidden_states_bias")),
                 kConfig,
                 "model.embed_tokens.weight is frozen but model.input_hidden_states_scale or _bias "
                 "is not; freeze model.input_hidden_states_* too");
}

}  // namespace ashlar::nn
