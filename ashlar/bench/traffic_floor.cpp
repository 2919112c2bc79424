#include "ashlar/bench/traffic_floor.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/nn/model.h"

namespace ashlar::bench {
namespace {

using comm::Op;

// The numbers in the formulas.
struct Sizes {
  double s, a, stream;         // bytes of an element: wide, activation, stream
  double m, layers, forwards;  // passes of a block in a micro-batch: layers backward, and forward
  double feed_forwards;        // passes of its feed-forward: only scaled residuals need it again
  double tokens, hidden;       // T, H of a rank's layers
  double root, blocks;         // parameters of a rank, without experts
  double experts = 0;          // parameters of experts of a rank
  double routed = 0;           // gradients of routing weights, for a token in all blocks
  double adapted = 0;          // elements between A and B of experts' adapters, likewise
  double row_loads = 0;        // elements that cp ranks sum for the routers' losses
  // The passes of mixers that read rows before a token, that have keys, and that have states.
  struct Runs {
    double backward = 0, forward = 0;
  } halos, keys, states;
  double partial_vectors = 0, partial_tables = 0;  // elements that tp ranks add up
  nn::ExchangeNeeds needs;

  Sizes(const Recipe& recipe, const ParallelSpec& p, const nn::Share& share, DType compute) {
    const nn::Types types = nn::Types::of(compute, recipe.train.stream);
    s = double(size_of(types.wide));
    a = double(size_of(types.activation));
    stream = double(size_of(types.stream));
    m = double(recipe.train.global_batch / recipe.train.micro_batch / p.dp);
    const nn::ModelWeights weights(model_of(recipe.model), share, {}, recipe.tune);
    layers = double(recipe.model.num_hidden_layers);
    for (const BlockSpec& block : weights.spec.blocks) {
      const auto* moe = std::get_if<MoeSpec>(&block.feed_forward);
      if (!moe) continue;
      routed += double(moe->experts_of_token() + (moe->shared.gate ? 1 : 0));
      if (recipe.balance.aux_loss_coef > 0 && std::holds_alternative<LinearRouterSpec>(moe->router))
        row_loads += double(recipe.train.micro_batch * moe->num_experts);
    }
    for (const nn::Stored& stored : weights.tensors) {
      if (!stored.is_trained()) continue;
      const bool vector = stored.shape.ndim() == 1 || stored.is_adapter;
      if (is_of_experts(stored)) experts += double(stored.shape.numel()) / double(p.ep);
      if (is_of_experts(stored) && stored.logical[0].adapter) {  // half of one
        const BlockSpec& block = weights.spec.blocks[size_t(stored.block)];
        const int64_t chosen = std::get<MoeSpec>(block.feed_forward).experts_of_token();
        adapted += double(chosen * recipe.tune.lora.rank) / 2;
      }
      if (partial_over_shares(stored.logical[0], p.sequence_parallel))
        (vector ? partial_vectors : partial_tables) += double(stored.shape.numel());
    }
    needs = weights.needs();
    weights.for_each_block([&](const nn::Block& block, int64_t l) {
      const nn::ExchangeNeeds own = block.mixer->needs().tokens;
      const bool again = recipe.train.recompute && l + 1 < recipe.model.num_hidden_layers;
      const auto count = [&](Runs& runs, bool has) {
        if (has) runs.backward += 1, runs.forward += again ? 2 : 1;
      };
      count(halos, !own.strips().empty());
      count(keys, own.key_cols > 0);
      count(states, own.state.heads > 0);
    });
    forwards = layers + (recipe.train.recompute ? layers - 1 : 0);
    feed_forwards = recipe.model.residual == Residual::kScaled ? forwards : layers;
    tokens = double(recipe.train.micro_batch * recipe.data.sequence_length / p.cp);
    hidden = double(recipe.model.hidden_size);
    root = blocks = 0;
    for (const nn::FlatRange& range :
         nn::flat_layout(model_of(recipe.model), share, types.wide, recipe.tune).ranges)
      (range.unit == 0 ? root : blocks) += double(range.numel);
    blocks -= experts * double(p.ep);
  }

  static bool is_of_experts(const nn::Stored& stored) {
    for (const nn::Cut& cut : stored.logical[0].cuts)
      for (const nn::Section& section : cut.sections)
        if (section.grain == nn::Grain::kExpert) return true;
    return false;
  }
};

double share_of(double n) {
  return (n - 1) / n;
}

// The floors of a group of n ranks with the same parameters.
void add_zero(std::vector<TrafficFloor>& floors, const ParallelSpec& p, const Sizes& z,
              const char* group, double n, double root, double blocks) {
  const double share = share_of(n);
  if (share == 0) return;
  if (p.zero == 0) {
    floors.push_back({group, Op::kAllReduce, "gradients", 2 * share * (root + blocks) * z.s});
    return;
  }
  const double reduced = p.zero >= 2 ? z.m : 1;
  const double turns = std::min(2.0, z.layers) * (2 * z.m - 1) / z.layers;
  const double gathered = p.zero == 3 ? 2 * z.m - turns : 1;
  floors.push_back(
      {group, Op::kReduceScatter, "gradients", share * (root + reduced * blocks) * z.s});
  floors.push_back(
      {group, Op::kAllGather, "weights", share * (root * z.s + gathered * blocks * z.a)});
}

void add_zero(std::vector<TrafficFloor>& floors, const ParallelSpec& p, const Sizes& z) {
  const double n = double(p.dp * p.cp);
  if (p.ep == 1) return add_zero(floors, p, z, "data", n, z.root, z.blocks + z.experts);
  add_zero(floors, p, z, "data", n, z.root, z.blocks);
  add_zero(floors, p, z, "experts data", n / double(p.ep), 0, z.experts);
}

// The floor of each border between stages, over which one rank of p sends, or none.
void add_pp(std::vector<TrafficFloor>& floors, const Recipe& recipe, const ParallelSpec& p,
            const Sizes& z) {
  const ModelKeys& m = recipe.model;
  const bool carries = m.has_feed_forward(MoeSpec::kKind) && m.router == RouterKind::kMlp;
  if (p.virtual_stages > 1 || (carries && m.has_feed_forward(MlpSpec::kKind))) return;
  const double tokens = z.tokens / double(p.sequence_parallel ? p.tp : 1);
  const double carry = carries ? double(m.router_hidden_size) * z.s : 0;
  const double bytes = z.m * tokens * (z.hidden * z.stream + carry) / double(p.pp);
  for (int64_t stage = 0; stage + 1 < p.pp; ++stage) {
    floors.push_back({fmt::format("{}>{} pp activations", stage, stage + 1), Op::kSendReceive,
                      "pp activations", bytes});
    floors.push_back({fmt::format("{}>{} pp gradients", stage + 1, stage), Op::kSendReceive,
                      "pp gradients", bytes});
  }
}

void add_cp_heads(std::vector<TrafficFloor>& floors, double n, const Sizes& z) {
  const double size = double(z.needs.head_dim), value_size = double(z.needs.value_head_dim());
  const double query = share_of(n) * z.tokens * double(z.needs.query_cols);
  const double output = query / size * value_size;
  const double key_heads = double(z.needs.key_cols) / size;
  // At least one key head a rank: then ranks share them.
  const double key = share_of(n) * z.tokens * std::max(key_heads, n) * (size + value_size);
  const double forward = z.m * z.keys.forward, backward = z.m * z.keys.backward;
  const double again = key_heads < n ? backward : 0;
  const auto add = [&](const char* label, double bytes) {
    floors.push_back({"cp", Op::kAllToAll, label, bytes});
  };
  add("queries", forward * query * z.a);
  add("keys values", (forward + again) * key * z.a);
  add("output", (forward + backward) * output * z.a);
  add("output gradient", backward * output * z.a);
  add("queries gradient", backward * query * z.s);
  add("keys values gradient", backward * key * z.s);
}

// Recomputation sends nothing again.
void add_states(std::vector<TrafficFloor>& floors, const Recipe& recipe, const ParallelSpec& p,
                const Sizes& z) {
  const nn::ExchangeNeeds::StateShape& state = z.needs.state;
  const double n = double(p.cp), rows = double(recipe.train.micro_batch);
  const bool zigzag = p.cp_layout == CpLayout::kZigzag;
  const double passes = z.m * z.states.backward * z.s;
  if (p.state_exchange == StateExchange::kAllGather) {
    const double chunks = (n - 1) * rows * (zigzag ? 2 : 1);
    floors.push_back({"cp", Op::kAllGather, "states", passes * chunks * double(state.message())});
    floors.push_back(
        {"cp", Op::kAllGather, "state gradients", passes * chunks * double(state.made())});
    return;
  }
  if (p.state_exchange == StateExchange::kExclusiveScan) {
    const int64_t num = p.cp * (zigzag ? 2 : 1);
    const auto owner = [&](int64_t chunk) { return std::min(chunk, 2 * p.cp - 1 - chunk); };
    int64_t messages = 0;
    for (int64_t distance = 1; distance < num; distance *= 2)
      for (int64_t chunk = 0; chunk + distance < num; ++chunk)
        messages += owner(chunk) != owner(chunk + distance);
    const double bytes = passes * double(messages) / n * rows * double(state.message());
    floors.push_back({"cp", Op::kSendReceive, "states", bytes});
    floors.push_back({"cp", Op::kSendReceive, "state gradients", bytes});
    return;
  }
  // States go up the ranks in forward and down in backward; with zigzag both ways in both.  Only
  // one rank of n sends across a border, so the mean over the ranks is an n-th of its bytes.
  const double bytes = passes * rows * double(state.numel()) / n;
  for (int64_t rank = 0; rank + 1 < p.cp; ++rank) {
    const std::string up = fmt::format("{}>{} states up", rank, rank + 1),
                      down = fmt::format("{}>{} states down", rank + 1, rank);
    floors.push_back({up, Op::kSendReceive, "states", bytes});
    floors.push_back({down, Op::kSendReceive, "state gradients", bytes});
    if (!zigzag) continue;
    floors.push_back({down, Op::kSendReceive, "states", bytes});
    floors.push_back({up, Op::kSendReceive, "state gradients", bytes});
  }
}

void add_cp(std::vector<TrafficFloor>& floors, const Recipe& recipe, const ParallelSpec& p,
            const Sizes& z) {
  const double n = double(p.cp);
  if (n == 1) return;
  // Borders after which a rank's stretches of a row continue elsewhere; the row's last has none.
  const double behind = (p.cp_layout == CpLayout::kZigzag ? 2 : 1) * share_of(n);
  const double message = double(recipe.train.micro_batch) * double(z.needs.halo_numel()) * z.s;
  const double keys = (n - 1) * z.tokens * double(z.needs.key_cols + z.needs.value_cols);
  const bool ring = p.cp_exchange == CpExchange::kRing;
  if (message > 0) {
    const double forward = z.m * z.halos.forward, backward = z.m * z.halos.backward;
    floors.push_back({"cp", Op::kSendReceive, "halo", forward * behind * message});
    floors.push_back({"cp", Op::kSendReceive, "halo gradient", backward * behind * message});
  }
  if (z.states.backward > 0) add_states(floors, recipe, p, z);
  if (z.row_loads > 0)
    floors.push_back(
        {"cp", Op::kAllReduce, "row loads", z.m * 2 * share_of(n) * z.row_loads * z.s});
  if (z.keys.backward == 0) return;
  if (p.cp_exchange == CpExchange::kAllToAll) return add_cp_heads(floors, n, z);
  floors.push_back({"cp", ring ? Op::kSendReceive : Op::kAllGather, "keys values",
                    z.m * (z.keys.forward + z.keys.backward) * keys * z.a});
  floors.push_back({"cp", ring ? Op::kSendReceive : Op::kReduceScatter, "keys values gradient",
                    z.m * z.keys.backward * keys * z.s});
}

void add_tp(std::vector<TrafficFloor>& floors, const ParallelSpec& p, const Sizes& z) {
  const double share = share_of(double(p.tp));
  if (share == 0) return;
  const double all = z.tokens * z.hidden * share;
  const double forward = z.m * z.forwards, backward = z.m * z.layers;
  const bool cut = p.sequence_parallel;
  const auto add = [&](Op op, const char* label, double bytes) {
    floors.push_back({"tp", op, label, bytes});
  };
  const Op sum = cut ? Op::kReduceScatter : Op::kAllReduce;
  const double twice = cut ? 1 : 2;
  add(sum, "tp attention", forward * twice * all * z.s);
  add(sum, "tp feed-forward", z.m * z.feed_forwards * twice * all * z.s);
  add(sum, "tp attention gradient", backward * twice * all * z.a);
  add(sum, "tp feed-forward gradient", backward * twice * all * z.s);
  if (z.routed > 0) add(Op::kAllReduce, "tp router", z.m * z.routed * 2 * share * z.tokens * z.s);
  if (z.adapted > 0)
    add(Op::kAllReduce, "tp adapters", z.m * z.adapted * 2 * share * z.tokens * z.a);
  if (z.partial_vectors > 0) add(Op::kAllReduce, "tp norms", 2 * share * z.partial_vectors * z.s);
  if (!cut) return;
  add(Op::kAllGather, "tp attention input", (forward + backward) * all * z.a);
  add(Op::kAllGather, "tp feed-forward input", (z.m * z.feed_forwards + backward) * all * z.a);
  for (const char* label : {"tp attention output gradient", "tp feed-forward output gradient"})
    add(Op::kAllGather, label, backward * all * z.a);
  add(Op::kAllReduce, "tp embedding", 2 * share * z.partial_tables * z.s);
}

}  // namespace

std::vector<TrafficFloor> traffic_floors(const Recipe& recipe, const ParallelSpec& parallel,
                                         DType compute) {
  const nn::Share share = nn::Share::even(0, int(parallel.tp));
  const Sizes sizes(recipe, parallel, share, compute);
  std::vector<TrafficFloor> floors;
  if (parallel.pp > 1) {  // stages hold different blocks, so other traffic differs between ranks
    add_pp(floors, recipe, parallel, sizes);
    return floors;
  }
  add_zero(floors, parallel, sizes);
  add_cp(floors, recipe, parallel, sizes);
  add_tp(floors, parallel, sizes);
  return floors;
}

}  // namespace ashlar::bench
