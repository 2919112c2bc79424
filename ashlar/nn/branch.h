// A branch of a block computes what is added to the residual stream, o = f(a).  The mixer reads
// other tokens, the feed-forward one token at a time.  One object holds a branch's tensors, what it
// keeps from forward to backward, and how it runs; the model knows nothing of these.  A technique
// that changes how a branch runs is a branch around a branch (parallel/tp.h).
//
// A branch runs in parts, in order.  A later part waits for what an earlier one posted to an
// exchange, so the caller can run something else in between.  Data that lives from part to part is
// in the workspace: the caller opens a scope before the first part and closes it after the last
// (run_forward, run_backward).
//
// Shapes   a [T, H] normed input, o [T, H], both activation type; T: PassShape.
#pragma once

#include <cstdint>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/nn/exchange.h"
#include "ashlar/nn/late_products.h"
#include "ashlar/nn/parameters.h"

namespace ashlar::nn {

// Data that a branch hands to the next block with a branch of its kind (ZAYA1's router state), in
// the wide type, [T, carry_width].  in and d_in are absent if no earlier block hands anything on,
// d_out if no later block receives it.
struct Carry {
  Tensor in{}, out{};      // forward fills out
  Tensor d_out{}, d_in{};  // backward overwrites d_in
};

// The losses of routers (linear_router.h) in a step's loss, beside the cross entropy; their
// gradients are added in backward.
struct StepLosses {
  double aux_loss = 0.0, z_loss = 0.0;  // coefficients; 0: no such loss
  double token_share = 0.0;             // 1 / tokens of the step, over all ranks
  int64_t num_rows = 1;                 // of the micro-batch; a layer has an equal part of each row
};

// Why a branch runs.
enum class Mode : uint8_t {
  kForward,
  // Forward once more on the same tokens: what it keeps in SavedArenas::block was overwritten, what
  // it keeps in SavedArenas::lasting is still there.
  kRecompute,
  kBackward,
  // Backward that first recomputes, from a, what forward keeps in SavedArenas::block.  Asked of a
  // mixer only where its exchange lets keys come once for both (CpGather of parallel/cp_keys.cpp).
  kBackwardRecompute,
};

// One micro-batch on its way through a branch.  The members that depend on the mode, and the modes
// that read them:
//
//                     kForward   kRecompute   kBackward   kBackwardRecompute
//   rope, log_decay,  yes        yes          yes         yes
//   turn
//   add_to_output     of o       of o         of da       of da
//   add_to_gradients  -          -            yes         yes
//   late, losses      -          -            yes         yes
struct Pass {
  const Types& types;
  const kernels::Sequence& sequence;
  const Exchanges& exchanges;
  Mode mode;
  int64_t block;         // number in the whole model
  int slot;              // selects one of the memories that lay_out took
  Tensor rope;           // [positions, rho]
  Tensor log_decay_H{};  // ExchangeNeeds::log_decay_H in the wide type; absent if that is empty
  // Gradients of products (Stored::is_product) are added to what is there; else backward overwrites
  // them unread.  All other gradients are always added.
  bool add_to_gradients = true;
  // Forward adds to what is in o, and backward to what is in da, instead of overwriting it: used by
  // a branch that runs with one share of the model after another (parallel/tsp.h).
  bool add_to_output = false;
  int turn = 0;                  // the number of that share
  LateProducts* late = nullptr;  // defers the products that only gradients of weights need
  StepLosses losses{};
  bool recomputes() const { return mode == Mode::kBackwardRecompute; }
  // The same pass without deferred products.
  Pass at_once() const {
    Pass pass = *this;
    pass.late = nullptr;
    return pass;
  }
};

// Calls number `part` of `parts`.
template <typename... Parts>
void run_part(int part, Parts&&... parts) {
  ASHLAR_ASSERT(part >= 0 && part < int(sizeof...(parts)));
  int number = 0;
  ((number++ == part ? parts() : void()), ...);
}

struct BackwardTensors {
  Tensor a;     // the input of forward
  Tensor d_o;   // [T, H] gradient of o, activation type
  Tensor da;    // [T, H] overwritten
  Carry carry;  // as in forward, with the gradients
};

struct PassShape {
  int64_t num_tokens;
  int64_t num_halos;        // the most segments that continue a document (Sequence::num_halos)
  bool recomputes = false;  // every backward has Mode::kBackwardRecompute
  bool backward = true;     // false for inference
  // Chunks of states here and on all ranks if other ranks hold some of them; else 0.
  int64_t num_chunks = 0, num_all_chunks = 0;
};

// The arenas from which a branch takes the memory of a slot.  Memory from `lasting` keeps its
// contents until the slot is used again; that from `block` may be overwritten by the branches of
// other blocks as soon as the block has run.
struct SavedArenas {
  Arena &lasting, &block;
};

// The load of experts by the micro-batch that ran last in a slot, for balancing and metrics.
struct ExpertLoad {
  Tensor count_X;    // [E + 1] I64: choices of each expert, then choices of no expert
  Tensor expert_Tk;  // I32: each token's experts in ascending order; kernels::kNoClass for padding
  // [2] in the wide type: aux_loss and z_loss of this rank's tokens in the last backward, as
  // added to the step's loss.  Absent if the router has no losses.
  Tensor losses_2;
};

// The needs of a branch, known once its tensors are listed.
struct BranchNeeds {
  int forward_parts = 1, backward_parts = 1;
  int64_t carry_width = 0;  // 0: hands nothing on
  ExchangeNeeds tokens{};   // empty if no token reads another
};

class Branch {
 public:
  virtual ~Branch() = default;
  // Lists its tensors in the order in which forward uses them, and sets its shapes.
  virtual void list(const LayerSpec& layer, StoredVisitor visit) = 0;
  virtual BranchNeeds needs() const = 0;
  // Takes memory for what forward keeps for backward; a slot may be laid out again.
  virtual void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) = 0;
  virtual void forward(const kernels::Context&, const Pass&, int part, const Tensor& a_TH,
                       const Carry&, const Tensor& o_TH) = 0;
  // Adds to the gradients (Pass::add_to_gradients).
  virtual void backward(const kernels::Context&, const Pass&, int part, const BackwardTensors&) = 0;
  virtual std::optional<ExpertLoad> load(int slot) const = 0;  // absent if there are no experts
};

// Run all parts, one after another.
void run_forward(Branch&, const kernels::Context&, const Pass&, const Tensor& a_TH, const Carry&,
                 const Tensor& o_TH);
void run_backward(Branch&, const kernels::Context&, const Pass&, const BackwardTensors&);

// Memory that a branch has laid out, by slot.
template <typename Saved>
class Slots {
 public:
  void set(int slot, Saved saved) {
    if (slots_.size() <= size_t(slot)) slots_.resize(size_t(slot) + 1);
    slots_[size_t(slot)] = std::move(saved);
  }
  const Saved& operator[](int slot) const { return slots_[size_t(slot)]; }

 private:
  std::vector<Saved> slots_;
};

}  // namespace ashlar::nn
