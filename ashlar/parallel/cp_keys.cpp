// How it works.  CpGather passes the keys of all ranks to the kernel, in rank order.  In a ring of
// n ranks, each step computes on one part while it sends that part on; n = 3:
//
//              rank 0       rank 1       rank 2
//   step 0     part 0       part 1       part 2       the rank's own: gives every query a key
//   step 1     part 2       part 0       part 1       starts the sum of the part's gradients
//   step 2     part 1       part 2       part 0       adds to the sum that came from step 1
//   then       sum of 0     sum of 1     sum of 2     is added to the owner's gradients
//
// Step s computes on `here` and receives the next part into under_way_[s % 2], whose part of step
// s - 1 is no longer read.  The sum of step s is in sums_[s % 2]; after the step it is sent to
// sums_[(s + 1) % 2] of the next rank, in flight during the next step.  All ranks post in one
// order: keys 0, keys 1, sum 1, keys 2, sum 2, ..
#include "ashlar/parallel/cp_keys.h"

#include <algorithm>
#include <array>
#include <limits>

#include "ashlar/kernels/copy.h"
#include "ashlar/parallel/cp_heads.h"

namespace ashlar::parallel {
namespace {

using kernels::Attention;
using kernels::AttentionGradients;
using kernels::Context;
using kernels::Sequence;

// x with other keys and values.
Attention with_keys(Attention x, const Tensor& k, const Tensor& v) {
  x.k = k, x.v = v;
  return x;
}

constexpr std::string_view kKeys = "keys values", kGradient = "keys values gradient";

OwnedTensor memory_of(Allocator& allocator, DType dtype, int64_t rows, int64_t cols) {
  return make_tensor(allocator, dtype, {rows, cols}, Tag::kCommunication);
}

// The smallest distance in tokens from a query back to a key that it sees without a window; the
// largest number if no query sees a key.
int64_t nearest_key(std::span<const Segment> queries, std::span<const Segment> keys) {
  int64_t nearest = std::numeric_limits<int64_t>::max();
  for (const Segment& query : queries)
    for (const Segment& key : keys) {
      const int64_t last_query = query.position + query.length - 1;
      if (key.document != query.document || key.position > last_query) continue;
      const int64_t gap = query.position - (key.position + key.length - 1);
      nearest = std::min(nearest, std::max<int64_t>(gap, 0));
    }
  return nearest;
}

class CpGather final : public CpKeys {
 public:
  CpGather(comm::Group& ranks, const CpSplit& split, const CpParts& parts,
           const nn::ExchangeNeeds& needs, const nn::Types& types, Allocator& allocator);
  void assign() override;
  void post_keys(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend_backward(const kernels::Context&, const nn::Pass&, const kernels::Attention&,
                       const kernels::AttentionGradients&) override;
  void finish_key_gradients(const kernels::Context&, const nn::Pass&,
                            const kernels::AttentionGradients&) override;

 private:
  // Keys and values of all ranks, rank by rank; turn t uses number t % 2.
  struct Gathered {
    OwnedTensor k, v;
    comm::Work keys_come, values_come;  // posted by post_keys
    void wait() { keys_come.wait(), values_come.wait(); }
  };
  Gathered& gathered(const nn::Pass& pass) { return gathered_[size_t(pass.turn) % 2]; }
  std::array<Gathered, 2> gathered_;
  OwnedTensor dk_, dv_;                   // gradients of all ranks' keys and values
  comm::Work keys_leave_, values_leave_;  // the sums of gradients, posted by attend_backward
  std::vector<Segment> keys_;             // their segments
};

CpGather::CpGather(comm::Group& ranks, const CpSplit& split, const CpParts& parts,
                   const nn::ExchangeNeeds& needs, const nn::Types& types, Allocator& allocator)
    : CpKeys(ranks, split, parts) {
  const int64_t rows = split.num_rows * split.length;
  keys_.reserve(size_t(rows));
  ASHLAR_ASSERT(size_t(needs.num_turns) <= gathered_.size());
  for (int turn = 0; turn < needs.num_turns; ++turn) {
    gathered_[size_t(turn)].k = memory_of(allocator, types.activation, rows, needs.key_cols);
    gathered_[size_t(turn)].v = memory_of(allocator, types.activation, rows, needs.value_cols);
  }
  dk_ = memory_of(allocator, types.wide, rows, needs.key_cols);
  dv_ = memory_of(allocator, types.wide, rows, needs.value_cols);
}

void CpGather::assign() {
  keys_.clear();
  for (size_t rank = 0; rank < parts_.size(); ++rank)
    for (Segment key : parts_[rank]) {
      key.row += int64_t(rank) * split_.local_tokens();
      keys_.push_back(key);
    }
}

void CpGather::post_keys(const Context&, const nn::Pass& pass, const Attention& x) {
  Gathered& all = gathered(pass);
  all.keys_come = ranks_.all_gather(x.k, all.k.tensor, kKeys);
  all.values_come = ranks_.all_gather(x.v, all.v.tensor, kKeys);
}

void CpGather::attend(const Context& ctx, const nn::Pass& pass, const Attention& x) {
  Gathered& all = gathered(pass);
  all.wait();
  attention_forward(ctx, pass.sequence, keys_, with_keys(x, all.k.tensor, all.v.tensor));
}

void CpGather::attend_backward(const Context& ctx, const nn::Pass& pass, const Attention& x,
                               const AttentionGradients& g) {
  Gathered& all = gathered(pass);
  all.wait();
  attention_backward(ctx, pass.sequence, keys_, with_keys(x, all.k.tensor, all.v.tensor),
                     {.dout = g.dout, .dq = g.dq, .dk = dk_.tensor, .dv = dv_.tensor});
  keys_leave_ = ranks_.reduce_scatter(dk_.tensor, g.dk, kGradient);
  values_leave_ = ranks_.reduce_scatter(dv_.tensor, g.dv, kGradient);
}

void CpGather::finish_key_gradients(const Context&, const nn::Pass&, const AttentionGradients&) {
  keys_leave_.wait();
  values_leave_.wait();
}

class CpRing final : public CpKeys {
 public:
  CpRing(comm::Group& ranks, const CpSplit& split, const CpParts& parts,
         const nn::ExchangeNeeds& needs, const nn::Types& types, Allocator& allocator);
  void assign() override;
  void post_keys(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend_backward(const kernels::Context&, const nn::Pass&, const kernels::Attention&,
                       const kernels::AttentionGradients&) override;
  void finish_key_gradients(const kernels::Context&, const nn::Pass&,
                            const kernels::AttentionGradients&) override;

 private:
  struct Pair {  // k and v, or their gradients
    Tensor k, v;
  };
  struct Passing {  // the messages of a Pair, kept while they are in flight
    comm::Transfer sends[2], receives[2];
  };
  int part_at(int step) const;
  std::span<const Segment> part(int step) const;
  bool sees(int part, int64_t window) const;
  // Sends `from` to the next rank and receives `to` from the rank before.
  comm::Work transfer_at(int step, const Pair& here);
  comm::Work pass_on(Passing& passing, const Pair& from, const Pair& to, std::string_view label);

  static void add(const kernels::Context& ctx, const Pair& from, const Pair& to);

  OwnedTensor memory_[2], sum_memory_[2];
  Pair under_way_[2], sums_[2];
  Passing passing_keys_, passing_gradients_;
  comm::Work first_;              // the first transfer of keys, posted by post_keys
  comm::Work last_sum_;           // the last transfer of gradients, posted by attend_backward
  std::vector<int64_t> nearest_;  // by part: tokens from the nearest query back to its nearest key
};

CpRing::CpRing(comm::Group& ranks, const CpSplit& split, const CpParts& parts,
               const nn::ExchangeNeeds& needs, const nn::Types& types, Allocator& allocator)
    : CpKeys(ranks, split, parts), nearest_(size_t(split.num_ranks)) {
  const int64_t rows = split.local_tokens();
  const auto pair = [&](DType dtype, OwnedTensor& memory) {
    memory = memory_of(allocator, dtype, rows, needs.key_cols + needs.value_cols);
    const Tensor flat = memory.tensor.view({memory.tensor.numel()});
    const int64_t keys = rows * needs.key_cols;
    return Pair{flat.slice(0, keys).view({rows, needs.key_cols}),
                flat.slice(keys, flat.numel()).view({rows, needs.value_cols})};
  };
  for (size_t i = 0; i < 2; ++i) {
    under_way_[i] = pair(types.activation, memory_[i]);
    sums_[i] = pair(types.wide, sum_memory_[i]);
  }
}

void CpRing::assign() {
  for (size_t part = 0; part < parts_.size(); ++part)
    nearest_[part] = nearest_key(parts_[size_t(ranks_.rank())], parts_[part]);
}

// The part that is here at a step; in step 0 it is the rank's own.
int CpRing::part_at(int step) const {
  return (ranks_.rank() - step + ranks_.size()) % ranks_.size();
}

std::span<const Segment> CpRing::part(int step) const {
  return parts_[size_t(part_at(step))];
}

bool CpRing::sees(int part, int64_t window) const {
  return nearest_[size_t(part)] < (window > 0 ? window : std::numeric_limits<int64_t>::max());
}

comm::Work CpRing::pass_on(Passing& passing, const Pair& from, const Pair& to,
                           std::string_view label) {
  const int n = ranks_.size(), next = (ranks_.rank() + 1) % n, last = (ranks_.rank() + n - 1) % n;
  passing = {{{next, from.k}, {next, from.v}}, {{last, to.k}, {last, to.v}}};
  return ranks_.send_receive(passing.sends, passing.receives, label);
}

void CpRing::add(const Context& ctx, const Pair& from, const Pair& to) {
  kernels::add(ctx, from.k, to.k);
  kernels::add(ctx, from.v, to.v);
}

void CpRing::post_keys(const Context&, const nn::Pass&, const Attention& x) {
  if (ranks_.size() > 1) first_ = pass_on(passing_keys_, {x.k, x.v}, under_way_[0], kKeys);
}

// The transfer that brings the part of step + 1 into under_way_[step % 2] while attention runs on
// `here`.
comm::Work CpRing::transfer_at(int step, const Pair& here) {
  if (step == 0) return std::move(first_);  // post_keys posted it
  if (step + 1 == ranks_.size()) return {};
  return pass_on(passing_keys_, here, under_way_[step % 2], kKeys);
}

void CpRing::attend(const Context& ctx, const nn::Pass& pass, const Attention& x) {
  const Sequence& sequence = pass.sequence;
  const int n = ranks_.size();
  const Arena::Scope scope(*ctx.workspace);
  // The result over several parts, in the wide type; it is rounded once, at the last of them.
  const Tensor sum = ctx.workspace->take(x.lse_TN.dtype, x.out.shape);
  Attention other = x;         // over a part of another rank
  other.shape.partial = true;  // only the rank's own part holds a key for every query
  other.out = ctx.workspace->take(x.out.dtype, x.out.shape);
  other.lse_TN = ctx.workspace->take(x.lse_TN.dtype, x.lse_TN.shape);
  int last = 0;  // the last step with a visible part, whose merge fills x.out
  for (int step = 1; step < n; ++step)
    if (sees(part_at(step), x.shape.window)) last = step;
  Pair here{x.k, x.v};
  bool merged = false;
  for (int step = 0; step < n; ++step) {
    const Pair& next = under_way_[step % 2];
    comm::Work transfer = transfer_at(step, here);
    if (step == 0) {
      attention_forward(ctx, sequence, part(0), x);
    } else if (sees(part_at(step), x.shape.window)) {
      attention_forward(ctx, sequence, part(step), with_keys(other, here.k, here.v));
      attention_merge(ctx, {.V = x.shape.V,
                            .out_a = merged ? sum : x.out,
                            .lse_a_TN = x.lse_TN,
                            .out_b = other.out,
                            .lse_b_TN = other.lse_TN,
                            .out = step == last ? x.out : sum,
                            .lse_TN = x.lse_TN});
      merged = true;
    }
    transfer.wait();
    here = next;
  }
}

void CpRing::attend_backward(const Context& ctx, const nn::Pass& pass, const Attention& x,
                             const AttentionGradients& g) {
  const Sequence& sequence = pass.sequence;
  const int n = ranks_.size();
  const Arena::Scope scope(*ctx.workspace);
  const Tensor part_dq = ctx.workspace->take(g.dq.dtype, g.dq.shape);
  const Pair part_d{ctx.workspace->take(g.dk.dtype, g.dk.shape),
                    ctx.workspace->take(g.dv.dtype, g.dv.shape)};
  Pair here{x.k, x.v};
  comm::Work sum_comes;
  for (int step = 0; step < n; ++step) {
    const Pair &next = under_way_[step % 2], &sum = sums_[step % 2];
    comm::Work transfer = transfer_at(step, here);
    const bool own = step == 0, first = step == 1, seen = sees(part_at(step), x.shape.window);
    if (seen) {
      // Step 1 starts the sum by writing it; later steps add to it once it has arrived.
      const Pair to = own ? Pair{g.dk, g.dv} : first ? sum : part_d;
      Attention part_x = with_keys(x, here.k, here.v);
      part_x.shape.partial = !own;
      attention_backward(ctx, sequence, part(step), part_x,
                         {.dout = g.dout, .dq = own ? g.dq : part_dq, .dk = to.k, .dv = to.v});
    }
    sum_comes.wait();  // the sum of this part, from the ranks that had it before
    if (seen && !own) kernels::add(ctx, part_dq, g.dq);
    if (seen && step > 1) add(ctx, part_d, sum);
    if (!seen && first) {  // zeros are sent too: traffic does not depend on documents
      fill(ctx, sum.k, 0.0);
      fill(ctx, sum.v, 0.0);
    }
    if (!own) sum_comes = pass_on(passing_gradients_, sum, sums_[(step + 1) % 2], kGradient);
    transfer.wait();
    here = next;
  }
  last_sum_ = std::move(sum_comes);
}

void CpRing::finish_key_gradients(const Context& ctx, const nn::Pass&,
                                  const AttentionGradients& g) {
  last_sum_.wait();
  if (ranks_.size() > 1) add(ctx, sums_[ranks_.size() % 2], {g.dk, g.dv});
}

}  // namespace

std::unique_ptr<CpKeys> CpKeys::make(CpExchange kind, comm::Group& ranks, const CpSplit& split,
                                     const CpParts& parts, const nn::ExchangeNeeds& needs,
                                     const nn::Types& types, Allocator& allocator) {
  if (kind == CpExchange::kAllToAll && needs.key_cols > 0)
    return std::make_unique<CpHeads>(ranks, split, parts, needs, types, allocator);
  if (kind == CpExchange::kRing)
    return std::make_unique<CpRing>(ranks, split, parts, needs, types, allocator);
  return std::make_unique<CpGather>(ranks, split, parts, needs, types, allocator);
}

}  // namespace ashlar::parallel
