// The decode caches of several sequences: keys and values, the states of linear mixers, and the
// last rows that mixers read before a token (nn::Strip).  They serve nn::TokenExchanges, so that
// decoding and prefill in chunks run the same forward pass as training.
//
// Places   sequences have places, numbered from 0.  A call runs the next tokens of one of them, or
//          one token of each of the first `count`; so live sequences are kept in the first places
//          (move).
// Memory   one arena.  Per block and place: keys and values of max_tokens in the activation type;
//          sliding blocks keep window - 1 tokens beside the current chunk.  The last rows and the
//          states are in the stream type; a linear mixer needs the same for any length.
// Device   on meta it records, and copies nothing.
// Limits   forward only; chunks must follow each other in position without a gap.
#pragma once

#include <vector>

#include "ashlar/nn/model.h"

namespace ashlar::eval {

class DecodeCache final : public nn::HaloExchange, public nn::KeyExchange, public nn::ChunkStates {
 public:
  // max_chunk: tokens of the longest forward call of one sequence.
  DecodeCache(Allocator& allocator, const nn::Model& model, int64_t max_tokens, int64_t max_chunk,
              int64_t num_places = 1);

  int64_t length(int64_t place = 0) const { return length_[size_t(place)]; }  // tokens seen
  int64_t max_tokens() const { return max_tokens_; }
  // The segment of the next `num_tokens` tokens of one sequence; call it before forward().
  Segment next(int64_t num_tokens, int64_t place = 0);
  // The segments of the next token of each sequence in places [0, count), in their order.
  std::span<const Segment> next_of_each(int64_t count);
  // A new sequence begins in the place.
  void clear(const kernels::Context&, int64_t place);
  // The sequence in place `from` goes on in place `to`; what was there is lost.
  void move(const kernels::Context&, int64_t from, int64_t to);
  // The sequence in place `from` is in place `to` as well; what was there is lost.
  void duplicate(const kernels::Context&, int64_t from, int64_t to);
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
  std::span<const kernels::StateChunk> chunks(const nn::Pass&) override { return chunks_; }
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
    int64_t capacity = 0, window = 0;  // rows of an area; window 0: none
    Tensor k, v;                       // [areas * capacity, K D], [areas * capacity, K V]
    std::vector<Tensor> strips;        // [places, reach, cols]: the last rows, older first
    Tensor states;                     // [places, H, dk, dv]; of a linear mixer
    // By area: rows [row, row + length) of k and v hold the positions from `position` on.
    std::vector<Segment> held;
  };
  void lay_out(Arena& arena, const nn::Model& model, int64_t max_chunk);
  void begin_call(int64_t first, int64_t count, int64_t num_tokens);
  void copy_states(const kernels::Context&, const Layer& cache, int64_t from, int64_t to);
  void keep(const kernels::Context&, Layer& cache, Segment& held, const Tensor& k, const Tensor& v);
  int64_t max_tokens_;
  std::vector<int64_t> length_;  // of each place
  std::vector<int64_t> area_;    // of each place: where its keys and values are
  std::vector<Layer> layers_;
  Arena arena_;
  // The current call: num_tokens_ tokens of each of places [first_, first_ + count_).
  int64_t first_ = 0, count_ = 0, num_tokens_ = 0;
  std::vector<Segment> segments_, keys_;
  std::vector<kernels::StateChunk> chunks_;
  nn::LocalRowSums rows_;
};

}  // namespace ashlar::eval
