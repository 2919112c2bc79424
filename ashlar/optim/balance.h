// Load balancing by selection biases alone: once per optimizer step the bias of each expert follows
// its load.
//
//   f_e = choices of e / choices of all;  g_e = f_e - 1/E
//   AdamW on b_e with gradient g_e, no decay
//   b_e <- b_e - mean(b_0..b_{E-1});  the skip class keeps its bias
//
// At rate 0 the biases stay as they are, whatever their mean.
//
// With target all_classes the skip class takes part: g = f - 1/(E+1) over E+1 classes, and no mean
// is subtracted.  A router without a skip class has biases of its E experts only, and is balanced
// as with real_experts.
//
// Source     arXiv 2605.05365 (form of the gradient); rate, betas and the frozen skip class are
//            this project's.
// Numerics   kernels/balance.h; state and biases are of one type.
// Invariants sum of the E biases is 0 to rounding, the skip bias is unchanged bit for bit
//            (real_experts).
#pragma once

#include <optional>
#include <vector>

#include "ashlar/kernels/context.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::optim {

// Normalised entropy of a load: 1 = uniform.  counts: of the E experts, without the skip class.  A
// load of no tokens gives 0.
double load_entropy(std::span<const int64_t> counts);

// The state that a Balancer keeps for biases: optim.exp_avg.<bias>, optim.exp_avg_sq.<bias>.
std::vector<LogicalTensor> balancing_state(const LogicalTensor& biases);

class Balancer {
 public:
  // The biases of one block.
  struct Biases {
    Tensor values;     // [E+1], or [E] where the router has no skip class
    std::string name;  // of the buffer
    size_t counts;     // number of the block in the counts of update
  };
  Balancer(Allocator&, std::vector<Biases> biases, const BalanceSpec&);

  // counts_X: by block with experts, [E+1], choices per class since the last update; a block
  // without choices stays as it is.  factor: current over base learning rate.
  void update(const kernels::Context& ctx, std::span<const Tensor> counts_X, double factor);

  // With scope micro_batch updates are made before it is known whether the step is applied: keep()
  // is called at its beginning, and undo() restores biases, moments and num_updates().  With scope
  // global_batch both do nothing.
  void keep(const kernels::Context& ctx);
  void undo(const kernels::Context& ctx);
  // Where keep() copies these biases or moments.  A save may have them copied there before the next
  // step and read them during it: its keep() writes the same bytes again.  Absent: keep() does
  // nothing.
  std::optional<Tensor> copy_of(const Tensor& live) const;

  int64_t num_updates() const { return num_updates_; }
  void set_num_updates(int64_t updates) { num_updates_ = updates; }
  std::vector<Piece> pieces() const;  // in the order of balancing_state

 private:
  std::vector<Biases> biases_;
  BalanceSpec spec_;
  std::vector<OwnedTensor> first_, second_;
  int64_t num_updates_ = 0;
  struct Kept {
    Tensor live;
    OwnedTensor copy;
  };
  std::vector<Kept> kept_;  // biases and moments, with scope micro_batch
  int64_t kept_updates_ = 0;
};

}  // namespace ashlar::optim
