#include "ashlar/sizing/exchange_waits.h"

#include <algorithm>
#include <cmath>

namespace ashlar::sizing {
namespace {

using machine::CollectiveOp;

// Adds up the waits of one block.
class Exchanges {
 public:
  Exchanges(const StepShape& shape, const BlockTime& kernels, const RankPass& pass,
            const MachineRates& rates)
      : shape_(shape),
        p_(shape.parallel),
        kernels_(kernels),
        pass_(pass),
        rates_(rates),
        H_(double(shape.model.hidden_size)),
        a_(shape.bf16 ? 2 : kStreamBytes) {}
  void add_tp();
  void add_adapters(const BlockSpec& spec, const BlockTuning& tuning);
  void add_cp(const BlockSpec& spec);
  void add_tsp(const BlockTuning& tuning);
  void add_ep(const BlockSpec& spec);
  const ExchangeWaits& waits() const { return waits_; }

 private:
  void add_states(const LinearSpec& linear, const RankSpan& cp);

  const StepShape& shape_;
  const ParallelSpec& p_;
  const BlockTime& kernels_;
  const RankPass& pass_;
  const MachineRates& rates_;
  const double H_, a_;
  ExchangeWaits waits_;
};

// Each branch's output is summed over the ranks, and the gradient of its input.
void Exchanges::add_tp() {
  const RankSpan tp = rates_.group(p_.tp, 1);
  const double stream = pass_.tokens * H_ * kStreamBytes, activation = pass_.tokens * H_ * a_;
  const auto time = [&](CollectiveOp op, double S) { return rates_.collective_s(op, tp, S); };
  if (!p_.sequence_parallel) {
    waits_.forward_s += 2 * time(CollectiveOp::kAllReduce, stream);
    waits_.backward_s +=
        time(CollectiveOp::kAllReduce, activation) + time(CollectiveOp::kAllReduce, stream);
    return;
  }
  waits_.forward_s += 2 * time(CollectiveOp::kReduceScatter, stream) +
                      2 * time(CollectiveOp::kAllGather, activation);
  waits_.backward_s += time(CollectiveOp::kReduceScatter, activation) +
                       time(CollectiveOp::kReduceScatter, stream) +
                       4 * time(CollectiveOp::kAllGather, activation);
}

// Ranks add up the rows between A and B of experts' adapters.
void Exchanges::add_adapters(const BlockSpec& spec, const BlockTuning& tuning) {
  const auto* moe = std::get_if<MoeSpec>(&spec.feed_forward);
  if (!moe) return;
  const double rows = pass_.tokens * double(moe->experts_of_token());
  for (const MatrixStack& m : tuning.adapted)
    if (m.part == BlockPart::kExperts)
      waits_.backward_s += rates_.collective_s(CollectiveOp::kAllReduce, rates_.group(p_.tp, 1),
                                               rows * tuning.rank * a_);
}

// States of linear mixers, and their gradients.
void Exchanges::add_states(const LinearSpec& linear, const RankSpan& cp) {
  const double chunks = double(cp.ranks) * pass_.rows * (p_.cp_layout == CpLayout::kZigzag ? 2 : 1);
  const double state = double(linear.num_value_heads) / pass_.tp *
                       double(linear.key_head_dim * linear.value_head_dim) * kStreamBytes;
  if (p_.state_exchange == StateExchange::kAllGather) {
    waits_.forward_s += rates_.collective_s(CollectiveOp::kAllGather, cp, chunks * state);
    waits_.backward_s += rates_.collective_s(CollectiveOp::kAllGather, cp, chunks * state);
    return;
  }
  const double hops = p_.state_exchange == StateExchange::kChain
                          ? double(cp.ranks - 1)
                          : std::ceil(std::log2(double(cp.ranks)));
  const double message_s = rates_.message_s(rates_.group(2, p_.tp), pass_.rows * state);
  waits_.forward_s += hops * message_s;
  waits_.backward_s += hops * message_s;
}

// Keys and values of the other ranks, and their gradients back.
void Exchanges::add_cp(const BlockSpec& spec) {
  const int64_t n = p_.cp * p_.tsp;
  const RankSpan cp = rates_.group(n, p_.tp);
  if (spec.halo_reach() > 0) {
    const double halo_s = rates_.message_s(rates_.group(2, p_.tp), 1);
    waits_.forward_s += halo_s, waits_.backward_s += halo_s;
  }
  const auto* moe = std::get_if<MoeSpec>(&spec.feed_forward);
  if (moe && shape_.aux_loss && std::holds_alternative<LinearRouterSpec>(moe->router))
    waits_.backward_s += rates_.collective_s(CollectiveOp::kAllReduce, cp,
                                             pass_.rows * double(moe->num_experts) * kStreamBytes);
  if (const auto* linear = std::get_if<LinearSpec>(&spec.mixer)) return add_states(*linear, cp);
  const auto [q, kv] = std::visit(
      [](const auto& m) -> std::pair<double, double> {
        if constexpr (requires { m.q_dim(); })
          return {double(m.q_dim()), double(m.kv_dim())};
        else
          return {0.0, 0.0};
      },
      spec.mixer);
  const double tokens = pass_.tokens * double(n), keys = tokens * 2 * kv / pass_.tp;
  const double mixer_f = kernels_.mixer_forward_s, mixer_b = kernels_.mixer_backward_s;
  switch (p_.cp_exchange) {
    case CpExchange::kAllGather: {
      const double gather_s = rates_.collective_s(CollectiveOp::kAllGather, cp, keys * a_);
      waits_.forward_s += gather_s;
      waits_.backward_s +=
          gather_s + rates_.collective_s(CollectiveOp::kReduceScatter, cp, keys * kStreamBytes);
      break;
    }
    case CpExchange::kRing: {
      const double hops = double(n - 1), part = 1 / double(n);
      const RankSpan pair{2, cp.nodes > 1 ? 2 : 1};
      const double there_s = rates_.message_s(pair, keys * part * a_);
      const double back_s = rates_.message_s(pair, keys * part * kStreamBytes);
      waits_.forward_s += hops * std::max(0.0, there_s - mixer_f * part);
      waits_.backward_s += hops * std::max(0.0, there_s + back_s - mixer_b * part) + back_s;
      break;
    }
    case CpExchange::kAllToAll: {
      const auto time = [&](double width, double bytes) {
        return rates_.collective_s(CollectiveOp::kAllToAll, cp,
                                   tokens * width / pass_.tp * bytes / double(n));
      };
      const double key = std::max(kv, double(n) * 64 * pass_.tp);
      waits_.forward_s += 2 * time(q, a_) + time(2 * key, a_);
      waits_.backward_s += 2 * time(q, a_) + time(q, kStreamBytes) + time(2 * key, kStreamBytes);
      break;
    }
  }
}

// A turn for the share of each rank: shares arrive while the turn before runs.
void Exchanges::add_tsp(const BlockTuning& tuning) {
  const RankSpan tsp = rates_.group(p_.tsp, p_.tp);
  const BlockWeights trained = weights_of(tuning.trained), frozen = weights_of(tuning.frozen);
  const double n = double(p_.tsp), taken = (trained.mixer + trained.mlp) / pass_.tp;
  const double shared = taken + (frozen.mixer + frozen.mlp) / pass_.tp;
  const double brought_s = n * rates_.collective_s(CollectiveOp::kBroadcast, tsp, shared / n * a_);
  const double taken_s =
      taken > 0 ? n * rates_.collective_s(CollectiveOp::kReduce, tsp, taken / n * kStreamBytes) : 0;
  const double forward_s = kernels_.forward_s(), backward_s = kernels_.backward_s();
  const double hidden = (n - 1) / n;
  waits_.forward_s += std::max(0.0, brought_s - hidden * forward_s);
  waits_.backward_s += std::max(taken_s / n, brought_s + taken_s - hidden * backward_s);
  waits_.turn_pack_s = hidden * rates_.memory_s(shared * 3 * a_);
}

// Rows go to their experts in two rounds, and back; one round moves while the other computes.
void Exchanges::add_ep(const BlockSpec& spec) {
  const auto* moe = std::get_if<MoeSpec>(&spec.feed_forward);
  if (!moe) return;
  const RankSpan ep = rates_.group(p_.ep, p_.tp);
  const double rows = pass_.tokens * double(moe->experts_of_token());
  const double counts_s =
      rates_.collective_s(CollectiveOp::kAllGather, ep, 4 * double((moe->num_experts + 1) * p_.ep));
  // One grouped send_receive with all partners a round.
  const double leaving = rows / 2 * double(p_.ep - 1) / double(p_.ep);
  const double round_s = rates_.collective_s(CollectiveOp::kSendReceive, ep, leaving * H_ * a_);
  const auto waited = [&](double compute_s) {
    return 2 * round_s + 2 * std::max(0.0, round_s - compute_s / 2);
  };
  waits_.forward_s += counts_s + waited(kernels_.experts_forward_s);
  waits_.backward_s += waited(kernels_.experts_backward_s);
}

}  // namespace

ExchangeWaits exchange_waits(const StepShape& shape, const BlockSpec& block,
                             const BlockTuning& tuning, const BlockTime& kernels,
                             const RankPass& pass, const MachineRates& rates) {
  const ParallelSpec& p = shape.parallel;
  Exchanges exchanges(shape, kernels, pass, rates);
  if (p.tp > 1) exchanges.add_tp();
  if (p.tp > 1) exchanges.add_adapters(block, tuning);
  if (p.sequence_ranks() > 1) exchanges.add_cp(block);
  if (p.tsp > 1) exchanges.add_tsp(tuning);
  if (p.ep > 1) exchanges.add_ep(block);
  return exchanges.waits();
}

}  // namespace ashlar::sizing
