#include <algorithm>
#include <array>

#include "ashlar/sizing/rank_weights.h"
#include "ashlar/sizing/step_time.h"

namespace ashlar::sizing {
namespace {

// Bytes that forward keeps of one token in a block, beside the stream that enters it.
double saved_of_mixer(const AttentionSpec& m, double tp, double a) {
  const double q = double(m.q_dim()) / tp, kv = double(m.kv_dim()) / tp;
  const double heads = double(m.num_query_heads) / tp;
  const double raw = m.qk_norm == QkNorm::kRms ? q + 2 * kv : 0, gate = m.output_gate ? q : 0;
  return (2 * q + 2 * kv + raw + gate) * a + heads * kStreamBytes;
}
double saved_of_mixer(const CcaSpec& m, double tp, double a) {
  const double q = double(m.q_dim()) / tp, kv = double(m.kv_dim()) / tp;
  return (2 * (q + 2 * kv) + 2 * (q + kv) + q) * a + double(m.num_query_heads) / tp * kStreamBytes;
}
double saved_of_mixer(const LinearSpec& m, double tp, double a) {
  const double C = double(m.conv_channels()) / tp, v = double(m.value_dim()) / tp;
  return (3 * C + 2 * v) * a + v * kStreamBytes;
}
double saved_of_feed(const MlpSpec& m, double, double tp, double, double, double a) {
  return 3 * double(m.width) / tp * a;
}
double saved_of_feed(const MoeSpec& m, double H, double tp, double ep, double room, double a) {
  const double k = double(m.experts_of_token()), F = double(m.width) / tp;
  double router = double(m.num_experts) * kStreamBytes;
  if (const auto* mlp = std::get_if<MlpRouterSpec>(&m.router))
    router += double(mlp->width) * (4 * kStreamBytes + 3 * a);
  // With ep, experts compute in rooms for rows of all ranks, beside the rows of this one.
  const double rows = ep > 1 ? std::min(room, ep) : 1;
  const double own = ep > 1 ? 2 * H : 0;
  return router + k * (own + rows * (2 * H + 3 * F)) * a + 3 * double(m.shared.width) / tp * a;
}

struct Saved {
  double block = 0, stream = 0;  // bytes of a token: inside, and at its border
};
Saved saved_of(const BlockSpec& block, const StepShape& shape, double a) {
  const ParallelSpec& p = shape.parallel;
  const double tp = double(p.tp), H = double(shape.model.hidden_size);
  const double shared = p.sequence_parallel ? tp : 1;  // ranks that divide the stream's tokens
  Saved saved;
  std::visit([&](const auto& m) { saved.block += saved_of_mixer(m, tp, a); }, block.mixer);
  std::visit(
      [&](const auto& m) {
        saved.block += saved_of_feed(m, H, tp, double(p.ep), p.expert_rows, a);
      },
      block.feed_forward);
  // Normed inputs of both branches, the stream between them, statistics; scaled merges read what
  // was added.
  saved.block +=
      (2 * H * a + H * shape.stream_bytes() + (block.reads_summands() ? 2 * H * a : 0)) / shared;
  saved.stream = H * shape.stream_bytes() / shared;
  return saved;
}

// Bytes of a token beside a stack of experts with adapters: what they add, and both of its halves.
double of_adapters(const BlockTuning& tuning, const MoeSpec& moe, double tp, double a) {
  double largest = 0;
  for (const MatrixStack& m : tuning.adapted)
    if (m.part == BlockPart::kExperts)
      largest = std::max(
          largest, std::max(m.rows_here(tp), m.cols_here(tp)) * kStreamBytes + 2 * tuning.rank * a);
  return largest * double(moe.experts_of_token());
}

// Bytes of a token in temporaries of the largest branch: gradients of queries, keys and values in
// the type of the stream, or of the inside of a feed-forward.
double largest_temporary(const StepShape& shape, double a) {
  const double tp = double(shape.parallel.tp);
  double largest = 0;
  for (size_t l = 0; l < shape.model.blocks.size(); ++l) {
    const BlockSpec& block = shape.model.blocks[l];
    double mixer = 0, feed = 0;
    std::visit(
        [&](const auto& m) {
          if constexpr (requires { m.q_dim(); })
            mixer = double(m.q_dim() + 2 * m.kv_dim()) / tp * (kStreamBytes + a);
          else
            mixer = double(m.conv_channels() + m.value_dim()) / tp * (kStreamBytes + a);
        },
        block.mixer);
    if (const auto* mlp = std::get_if<MlpSpec>(&block.feed_forward))
      feed = 3 * double(mlp->width) / tp * a;
    if (const auto* moe = std::get_if<MoeSpec>(&block.feed_forward))
      feed = double(moe->experts_of_token()) * a *
                 (3 * double(moe->width) / tp + 2 * double(shape.model.hidden_size)) +
             of_adapters(shape.tuning.blocks[l], *moe, tp, a);
    largest = std::max({largest, mixer, feed});
  }
  return largest;
}

// Micro-batches whose activations a stage keeps at once.
double kept_batches(const StepShape& shape) {
  const ParallelSpec& p = shape.parallel;
  const double m = double(shape.micro_batches()), stages = double(p.pp);
  if (p.pp == 1) return 1;
  if (p.schedule == Schedule::kGpipe) return m;
  if (p.schedule == Schedule::kInterleaved)
    return std::min(m, stages + (stages - 1) / double(p.virtual_stages));
  return std::min(m, stages);
}

}  // namespace

MemoryEstimate step_memory(const StepShape& shape) {
  const ParallelSpec& p = shape.parallel;
  const double a = shape.bf16 ? 2 : kStreamBytes, H = double(shape.model.hidden_size);
  const double tokens = double(shape.micro_batch * shape.sequence_length) / double(p.cp * p.tsp);
  MemoryEstimate fullest;
  for (int64_t stage = 0; stage < p.pp; ++stage) {
    const RankWeights w = rank_weights(shape, stage);
    MemoryEstimate memory;
    // Operands are packed for the product and for its transpose.
    const double operands = 2 * a, slots = 2 * w.largest_block;
    // A single data rank shares nothing, and has no slots.
    const int64_t zero = p.dp * p.cp * p.tsp > 1 ? p.zero : 0;
    memory.weights = (w.root + w.frozen_root) * kStreamBytes +
                     (w.root_packed + w.frozen_head) * operands + w.frozen * (a + operands);
    memory.weights += zero == 0   ? w.blocks * (kStreamBytes + operands)
                      : zero == 3 ? w.kept_blocks * kStreamBytes + slots * (a + operands)
                                  : w.kept_blocks * kStreamBytes + w.blocks * operands + slots * a;
    memory.gradients =
        w.root * kStreamBytes + (zero >= 2 ? w.kept_blocks + slots : w.blocks) * kStreamBytes;
    const double moments = shape.matrices == MatrixOptimizer::kMuon ? 4 : 8;
    memory.optimizer = 8 * (w.kept - w.kept_matrices) + moments * w.kept_matrices;
    double blocks = 0, streams = 0, largest = 0;
    for (int64_t l = 0; l < shape.model.num_blocks(); ++l) {
      if (stage_of(shape, l) != stage) continue;
      const Saved saved = saved_of(shape.model.blocks[size_t(l)], shape, a);
      blocks += saved.block, streams += saved.stream;
      largest = std::max(largest, saved.block);
    }
    const double kept = kept_batches(shape);
    memory.saved =
        tokens * (shape.recompute ? kept * streams + largest : kept * (blocks + streams));
    const double V = double(shape.model.vocab_size);
    const double chunk =
        std::clamp(double(int64_t(double(int64_t{16} << 20) / V) / 64 * 64), 64.0, 256.0);
    memory.workspace = tokens * H * 3 * kStreamBytes + tokens * largest_temporary(shape, a) +
                       (stage + 1 == p.pp ? std::min(tokens, chunk) * V * (kStreamBytes + a) : 0);
    memory.total =
        memory.weights + memory.gradients + memory.optimizer + memory.saved + memory.workspace;
    if (memory.total > fullest.total) fullest = memory;
  }
  return fullest;
}

}  // namespace ashlar::sizing
