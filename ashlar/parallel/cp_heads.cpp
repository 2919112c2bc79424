// How it works.  T local tokens, n ranks; a tensor of all heads goes through three forms:
//
//   tokens       [T, all heads]           the layer's form
//   chunks       [n][T, heads of rank p]  split_heads, join_heads: chunk p goes to rank p
//   all tokens   [n T, heads here]        all_to_all: chunk p comes from rank p, rows in rank order
//
//   forward      q k v  -> chunks -> all tokens, for q (and k v) in the memory of the layer's own
//                attention on all tokens: out, lse, in the memory of the layer's own
//                out    -> chunks -> tokens
//   backward     out    -> chunks -> all tokens, during the product that makes dout
//                dout   -> chunks -> all tokens
//                attention backward on all tokens: dq dk dv
//                dq dk dv -> chunks -> tokens, while the layer computes what does not need them
//
// q, out and dout use the same chunks_, one after the other: each transfer ends before the next
// tensor is split.  A tensor of all tokens for N/n of N heads has as many elements as the local one
// of all heads, so the layer's memory holds either.
#include "ashlar/parallel/cp_heads.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {
namespace {

using kernels::Attention;
using kernels::AttentionGradients;
using kernels::Context;
using kernels::Matrix;

constexpr std::string_view kQueryChunks = "queries", kKeyChunks = "keys values", kOutput = "output";
constexpr std::string_view kQueryGradient = "queries gradient",
                           kKeyGradient = "keys values gradient",
                           kOutputGradient = "output gradient";

}  // namespace

CpHeads::CpHeads(comm::Group& ranks, const CpSplit& split, const CpParts& parts,
                 const nn::ExchangeNeeds& needs, const nn::Types& types, Allocator& allocator)
    : CpKeys(ranks, split, parts),
      queries_(heads_of(needs.query_cols / needs.head_dim, needs.head_dim)),
      outputs_(heads_of(queries_.all, needs.value_head_dim())),
      keys_(heads_of(needs.key_cols / needs.head_dim, needs.head_dim)),
      values_(heads_of(keys_.all, needs.value_head_dim())) {
  const int n = ranks.size();
  ASHLAR_ASSERT(queries_.all % n == 0 && (keys_.all % n == 0 || n % keys_.all == 0));
  const int64_t tokens = split.num_rows * split.length;
  whole_segments_.reserve(size_t(tokens));
  whole_.reserve(tokens);
  const auto take = [&](DType dtype, int64_t width) {
    return make_tensor(allocator, dtype, {tokens, width}, Tag::kCommunication);
  };
  chunks_ = take(types.activation, std::max(queries_.width(), outputs_.width()));
  out_ = take(types.activation, outputs_.width());
  dq_chunks_ = take(types.wide, queries_.width());
  key_chunks_ = pair_of(allocator, types.activation);
  if (shares_keys()) shared_keys_ = pair_of(allocator, types.activation);
  dkeys_ = pair_of(allocator, types.wide), dkey_chunks_ = pair_of(allocator, types.wide);
}

CpHeads::Heads CpHeads::heads_of(int64_t all, int64_t cols) const {
  return {all, std::max<int64_t>(1, all / ranks_.size()), cols};
}

CpHeads::Pair CpHeads::pair_of(Allocator& allocator, DType dtype) const {
  const int64_t tokens = split_.num_rows * split_.length;
  return {make_tensor(allocator, dtype, {tokens, keys_.width()}, Tag::kCommunication),
          make_tensor(allocator, dtype, {tokens, values_.width()}, Tag::kCommunication)};
}

Tensor CpHeads::chunks(const Heads& heads) const {
  const Tensor& memory = chunks_.tensor;
  const int64_t tokens = memory.shape[0], numel = tokens * heads.width();
  return memory.view({memory.numel()}).slice(0, numel).view({tokens, heads.width()});
}

void CpHeads::assign() {
  whole_segments_.clear();
  for (size_t rank = 0; rank < parts_.size(); ++rank)
    for (Segment segment : parts_[rank]) {
      segment.row += int64_t(rank) * split_.local_tokens();
      whole_segments_.push_back(segment);
    }
  whole_.assign(whole_segments_);
}

void CpHeads::split_heads(const Context& ctx, const Heads& heads, const Tensor& tokens,
                          const Tensor& chunks) const {
  const int64_t T = split_.local_tokens(), width = heads.width();
  for (int p = 0; p < ranks_.size(); ++p) {
    const int64_t first = heads.first_col(p, ranks_.size());
    copy(ctx, Matrix::of(tokens).columns(first, first + width),
         Matrix::of(chunks).row_range(p * T, (p + 1) * T));
  }
}

void CpHeads::join_heads(const Context& ctx, const Heads& heads, const Tensor& chunks,
                         const Tensor& tokens) const {
  const int64_t T = split_.local_tokens(), width = heads.width();
  for (int p = 0, n = ranks_.size(); p < n; ++p) {
    const int64_t first = heads.first_col(p, n);
    const bool shared = p > 0 && first == heads.first_col(p - 1, n);  // one key head, two ranks
    const Matrix from = Matrix::of(chunks).row_range(p * T, (p + 1) * T);
    const Matrix to = Matrix::of(tokens).columns(first, first + width);
    shared ? add(ctx, from, to) : copy(ctx, from, to);
  }
}

Tensor CpHeads::all_tokens(const Heads& heads, const Tensor& tokens) const {
  return tokens.view({split_.num_rows * split_.length, heads.width()});
}

Attention CpHeads::all_tokens(const Attention& x) const {
  Attention all = x;
  all.shape.N = queries_.each;
  all.shape.K = keys_.each;
  all.q = all_tokens(queries_, x.q);
  all.k = shares_keys() ? shared_keys_.k.tensor : all_tokens(keys_, x.k);
  all.v = shares_keys() ? shared_keys_.v.tensor : all_tokens(values_, x.v);
  all.out = all_tokens(outputs_, x.out);
  all.lse_TN = x.lse_TN.view({all.q.shape[0], queries_.each});
  return all;
}

void CpHeads::send_keys(const Context& ctx, const Attention& x) {
  const Attention all = all_tokens(x);
  split_heads(ctx, keys_, x.k, key_chunks_.k.tensor);
  split_heads(ctx, values_, x.v, key_chunks_.v.tensor);
  keys_come_ = ranks_.all_to_all(key_chunks_.k.tensor, all.k, kKeyChunks);
  values_come_ = ranks_.all_to_all(key_chunks_.v.tensor, all.v, kKeyChunks);
}

void CpHeads::wait_for_keys() {
  keys_come_.wait();
  values_come_.wait();
}

void CpHeads::post_keys(const Context& ctx, const nn::Pass&, const Attention& x) {
  split_heads(ctx, queries_, x.q, chunks(queries_));
  queries_come_ = ranks_.all_to_all(chunks(queries_), all_tokens(x).q, kQueryChunks);
  send_keys(ctx, x);
}

void CpHeads::attend(const Context& ctx, const nn::Pass&, const Attention& x) {
  const Attention all = all_tokens(x);
  queries_come_.wait();
  wait_for_keys();
  attention_forward(ctx, whole_, whole_segments_, all);
  ranks_.all_to_all(all.out, chunks(outputs_), kOutput).wait();
  join_heads(ctx, outputs_, chunks(outputs_), x.out);
}

void CpHeads::post_backward(const Context& ctx, const nn::Pass&, const Attention& x) {
  split_heads(ctx, outputs_, x.out, chunks(outputs_));
  output_comes_ = ranks_.all_to_all(chunks(outputs_), out_.tensor, kOutput);
  if (shares_keys()) send_keys(ctx, x);
}

void CpHeads::attend_backward(const Context& ctx, const nn::Pass&, const Attention& x,
                              const AttentionGradients& g) {
  output_comes_.wait();
  split_heads(ctx, outputs_, g.dout, chunks(outputs_));
  const Tensor dout = all_tokens(outputs_, g.dout), dq = all_tokens(queries_, g.dq);
  ranks_.all_to_all(chunks(outputs_), dout, kOutputGradient).wait();
  wait_for_keys();
  Attention all = all_tokens(x);
  all.out = out_.tensor;
  const Tensor &dk = dkeys_.k.tensor, &dv = dkeys_.v.tensor;
  attention_backward(ctx, whole_, whole_segments_, all,
                     {.dout = dout, .dq = dq, .dk = dk, .dv = dv});
  dq_comes_ = ranks_.all_to_all(dq, dq_chunks_.tensor, kQueryGradient);
  dk_comes_ = ranks_.all_to_all(dk, dkey_chunks_.k.tensor, kKeyGradient);
  dv_comes_ = ranks_.all_to_all(dv, dkey_chunks_.v.tensor, kKeyGradient);
}

void CpHeads::finish_key_gradients(const Context& ctx, const nn::Pass&,
                                   const AttentionGradients& g) {
  dq_comes_.wait();
  join_heads(ctx, queries_, dq_chunks_.tensor, g.dq);
  dk_comes_.wait();
  join_heads(ctx, keys_, dkey_chunks_.k.tensor, g.dk);
  dv_comes_.wait();
  join_heads(ctx, values_, dkey_chunks_.v.tensor, g.dv);
}

}  // namespace ashlar::parallel
