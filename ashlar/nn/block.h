// One block: norm, attention, merge, norm, mixture of experts, merge.  The second merge is fused
// with the norm that follows it and so belongs to the model.
//
// BlockRunner says *how* attention and experts run on the weights that stand here; LocalRunner
// calls the layers.  Techniques that shard weights are further runners; nothing in nn knows them.
#pragma once

#include "ashlar/kernels/norm.h"
#include "ashlar/nn/cca_attention.h"
#include "ashlar/nn/moe.h"

namespace ashlar::nn {

struct MergeWeights {
  Weight hidden_scale, hidden_bias, residual_scale, residual_bias;  // [H]
  void list(const LayerSpec& layer, StoredVisitor visit);
  kernels::MergeParams params() const;
  kernels::MergeParams gradients() const;
};

struct BlockWeights {
  Weight attention_norm, moe_norm;  // [H]
  AttentionWeights attention;
  MergeWeights attention_merge, moe_merge;
  MoeWeights moe;
  void list(const LayerSpec& layer, StoredVisitor visit);
};

// A vector [H] that is applied to the stream.
ParameterInfo stream_vector(const LayerSpec& layer, const char* name, double value);

// How many tokens the stream has here, with norms and merges, and how many the layers see: more
// where the stream is shared with others, else the same.
struct TokenCounts {
  int64_t stream, layer;
  TokenCounts(int64_t both) : stream(both), layer(both) {}
  TokenCounts(int64_t stream, int64_t layer) : stream(stream), layer(layer) {}
};

// T: tokens of the stream here, of the layers inside attention and moe.
struct BlockSaved {
  Tensor a;  // [T, H] activation: normed input
  AttentionSaved attention;
  Tensor o, h;       // [T, H] stream: attention output, stream after the first merge
  Tensor m, rstd_m;  // [T, H] activation, [T]
  MoeSaved moe;
  Tensor e;  // [T, H] stream: output of the experts
  static BlockSaved make(Arena& arena, const BlockWeights& weights, const Types& types,
                         TokenCounts tokens, int64_t num_halos);
};

class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  virtual void attention_forward(const kernels::Context&, const AttentionCall&,
                                 const BlockSaved&) = 0;
  virtual void attention_backward(const kernels::Context&, const AttentionCall&, const BlockSaved&,
                                  const Tensor& do_TH, const Tensor& da_TH) = 0;
  virtual void moe_forward(const kernels::Context&, const AttentionCall&, const BlockSaved&,
                           const Tensor& r_prev_TR) = 0;
  virtual void moe_backward(const kernels::Context&, const AttentionCall&, const BlockSaved&,
                            const Tensor& r_prev_TR, const Tensor& de_TH, const Tensor& dr_next_TR,
                            const Tensor& dr_prev_TR, const Tensor& dm_TH) = 0;
};

class LocalRunner final : public BlockRunner {
 public:
  explicit LocalRunner(std::span<const BlockWeights> weights) : weights_(weights) {}
  void attention_forward(const kernels::Context&, const AttentionCall&, const BlockSaved&) override;
  void attention_backward(const kernels::Context&, const AttentionCall&, const BlockSaved&,
                          const Tensor& do_TH, const Tensor& da_TH) override;
  void moe_forward(const kernels::Context&, const AttentionCall&, const BlockSaved&,
                   const Tensor& r_prev_TR) override;
  void moe_backward(const kernels::Context&, const AttentionCall&, const BlockSaved&,
                    const Tensor& r_prev_TR, const Tensor& de_TH, const Tensor& dr_next_TR,
                    const Tensor& dr_prev_TR, const Tensor& dm_TH) override;

 private:
  std::span<const BlockWeights> weights_;
};

}  // namespace ashlar::nn
