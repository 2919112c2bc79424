// The decode caches of one sequence: keys and values, the states of linear mixers, and the last
// rows that mixers read before a token (nn::Strip).  They serve nn::TokenExchanges, so that
// decoding and prefill in chunks run the same forward pass as training.
//
// Memory   per block: keys and values of max_tokens in the activation type; sliding blocks keep
//          window - 1 tokens beside the current chunk.  The last rows and the states are in the
//          stream type; a linear mixer needs the same for any length.
// Device   on meta it records, and copies nothing.
// Limits   forward only; chunks must follow each other in position without a gap.
#pragma once

#include <vector>

#include "ashlar/nn/model.h"

namespace ashlar::eval {

class DecodeCache final : public nn::HaloExchange, public nn::KeyExchange, public nn::ChunkStates {
 public:
  // max_chunk: tokens of the longest forward call.
  DecodeCache(Allocator& allocator, const nn::Model& model, int64_t max_tokens, int64_t max_chunk);

  int64_t length() const { return length_; }  // tokens seen
  int64_t max_tokens() const { return max_tokens_; }
  // The segment of the next `num_tokens` tokens; call it before forward().
  Segment next(int64_t num_tokens);
  // Sets the lengths as if all tokens but the last num_tokens had been seen, in calls of
  // num_tokens, so that the next call is the largest possible.  For counting on meta; the caches
  // stay empty.
  void skip_to_last(int64_t num_tokens);
  // The exchanges of this cache, for a call of the model.
  nn::TokenExchanges exchanges() {
    return {.halos = this, .keys = this, .states = this, .rows = &rows_};
  }

  void halo_forward(const kernels::Context&, const nn::Pass&, std::span<const nn::Strip>) override;
  void post_keys(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override {}
  void attend(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  std::span<const kernels::StateChunk> chunks(const nn::Pass&) override {
    return std::span(&chunk_, 1);
  }
  Tensor states_here(const nn::Pass&) override;
  [[noreturn]] void halo_backward(const kernels::Context&, const nn::Pass&,
                                  std::span<const nn::Strip>) override;
  [[noreturn]] void post_backward(const kernels::Context&, const nn::Pass&,
                                  const kernels::Attention&) override;
  [[noreturn]] void attend_backward(const kernels::Context&, const nn::Pass&,
                                    const kernels::Attention&,
                                    const kernels::AttentionGradients&) override;
  [[noreturn]] void finish_key_gradients(const kernels::Context&, const nn::Pass&,
                                         const kernels::AttentionGradients&) override;

 private:
  struct Layer {
    OwnedTensor k, v;                 // [capacity, K D], [capacity, K V]
    std::vector<OwnedTensor> strips;  // [reach, cols]: the last rows, older first
    OwnedTensor states;               // [1, H, dk, dv]; of a linear mixer
    int64_t window = 0;               // 0: none
    Segment held{};  // rows [0, length) of k and v: positions from held.position on
  };
  void keep(const kernels::Context&, Layer& cache, int64_t fresh, const Tensor& k, const Tensor& v);
  std::vector<Layer> layers_;
  kernels::StateChunk chunk_{};  // the tokens of the current call
  int64_t max_tokens_, length_ = 0;
  nn::LocalRowSums rows_;
};

}  // namespace ashlar::eval
