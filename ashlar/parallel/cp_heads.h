// Context parallelism by heads (Ulysses): before attention, ranks exchange their tokens of all
// heads for all tokens of some heads, and after it the reverse.  Each rank runs attention as a
// single rank would, on N/n of the N query heads and their key heads.
//
// Source   Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509.
// Heads    n divides N.  n divides the K key heads, or K divides n.  In the second case n/K ranks
//          compute with the same key head, and the rank with the tokens adds up its gradients, in
//          rank order.
// Rows     all tokens are stored rank by rank, those of each rank in its own order (cp_split.h).
// Kept     q and lse of all tokens for some heads, and k and v if n divides K: from forward to
//          backward in the memory of the mixer's own q k v lse, which nothing else reads.  out is
//          sent again, since the output product reads the local one; so are k and v if ranks share
//          key heads.
// Memory   T (N (max(D, V) a + V a + D s) + C (D + V) (a + 2 s)) bytes, once (Tag::kCommunication);
//          T local tokens, D and V head sizes of keys and of values, a and s bytes of the
//          activation and the wide type; C = K where n divides K, else n and 2 a + 2 s for
//          a + 2 s.
// Traffic  docs/parallel/cp.md.
#pragma once

#include "ashlar/parallel/cp_keys.h"

namespace ashlar::parallel {

class CpHeads final : public CpKeys {
 public:
  CpHeads(comm::Group& ranks, const CpSplit& split, const CpParts& parts,
          const nn::ExchangeNeeds& needs, const nn::Types& types, Allocator& allocator);
  void assign() override;
  void post_keys(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void post_backward(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend_backward(const kernels::Context&, const nn::Pass&, const kernels::Attention&,
                       const kernels::AttentionGradients&) override;
  void finish_key_gradients(const kernels::Context&, const nn::Pass&,
                            const kernels::AttentionGradients&) override;

 private:
  // The heads of a tensor that each rank computes on: rank p has `each` heads, from p all / n on.
  struct Heads {
    int64_t all, each, cols;  // cols: columns of a head
    int64_t width() const { return each * cols; }
    int64_t first_col(int rank, int num_ranks) const { return rank * all / num_ranks * cols; }
  };
  struct Pair {  // keys and values
    OwnedTensor k, v;
  };
  Heads heads_of(int64_t all, int64_t cols) const;
  Pair pair_of(Allocator& allocator, DType dtype) const;
  bool shares_keys() const { return keys_.all < ranks_.size(); }
  // Convert between [T, all heads] and chunks [T, heads of a rank], one for each rank.
  void split_heads(const kernels::Context&, const Heads&, const Tensor& tokens,
                   const Tensor& chunks) const;
  void join_heads(const kernels::Context&, const Heads&, const Tensor& chunks,
                  const Tensor& tokens) const;
  Tensor all_tokens(const Heads&, const Tensor& tokens) const;  // the same memory, for some heads
  kernels::Attention all_tokens(const kernels::Attention&) const;
  void send_keys(const kernels::Context&, const kernels::Attention&);
  void wait_for_keys();

  const Heads queries_, outputs_, keys_, values_;
  kernels::Sequence whole_;  // all tokens
  std::vector<Segment> whole_segments_;
  Tensor chunks(const Heads&) const;      // chunks_ in the shape for q, or for out and dout
  OwnedTensor chunks_, out_, dq_chunks_;  // chunks_: q, out or dout in flight
  Pair key_chunks_, shared_keys_, dkeys_, dkey_chunks_;
  comm::Work queries_come_, keys_come_, values_come_, output_comes_;
  comm::Work dq_comes_, dk_comes_, dv_comes_;
};

}  // namespace ashlar::parallel
