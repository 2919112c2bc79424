// A branch of a block: what it adds to the residual stream, o = f(a).  The mixer looks at other
// tokens, the feed-forward at one.  What a branch is made of (its tensors), what it keeps from
// forward to backward, and how it runs are one object's business; the model knows none of it.
// Techniques that change how a branch runs are branches around a branch (parallel/tp.h).
//
// A branch runs in parts, in their order: what one part posts to an exchange a later one waits for,
// so that its caller can run something else between them.  What lives from part to part stands in
// the workspace: the caller opens a scope before the first part and closes it after the last
// (run_forward, run_backward).
//
// Shapes   a [T, H] normed input, activation type; o [T, H] stream type; T: PassShape.
#pragma once

#include <cstdint>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/nn/exchange.h"
#include "ashlar/nn/late_products.h"
#include "ashlar/nn/parameters.h"

namespace ashlar::nn {

// What a branch hands to the next block's that takes it (ZAYA1's router state), in the stream
// type, [T, carry_width].  in and d_in are absent where no block before hands anything on, d_out
// where none after is handed it.
struct Carry {
  Tensor in{}, out{};      // forward fills out
  Tensor d_out{}, d_in{};  // backward overwrites d_in
};

// What a step's loss is made of beside the cross entropy: losses of the routers (linear_router.h),
// which add to the gradients in backward.  Coefficients; 0: none.
struct StepLosses {
  double aux_loss = 0.0, z_loss = 0.0;
  double token_share = 0.0;  // 1 / tokens of the step, of all ranks
  int64_t num_rows = 1;      // of the micro-batch; a layer has an equal part of each
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
  int64_t block;         // of the whole model
  int slot;              // which of the memories that lay_out took
  Tensor rope;           // [positions, rho]
  Tensor log_decay_H{};  // ExchangeNeeds::log_decay_H in the stream type; absent where it is empty
  // Gradients of products (Stored::is_product) are added to what is there; else backward overwrites
  // them unread.  All other gradients are always added.
  bool add_to_gradients = true;
  // What forward writes into o, and backward into da, is added to what is there: by the turns of a
  // branch that runs with one share of the model after another (parallel/tsp.h).
  bool add_to_output = false;
  int turn = 0;                  // the number of that share
  LateProducts* late = nullptr;  // keeps back the products that only gradients of weights need
  StepLosses losses{};
  bool recomputes() const { return mode == Mode::kBackwardRecompute; }
  // For products that run now, in a pass whose others are kept back.
  Pass at_once() const {
    Pass pass = *this;
    pass.late = nullptr;
    return pass;
  }
};

// Calls the part-th of `parts`.
template <typename... Parts>
void run_part(int part, Parts&&... parts) {
  ASHLAR_ASSERT(part >= 0 && part < int(sizeof...(parts)));
  int number = 0;
  ((number++ == part ? parts() : void()), ...);
}

struct BackwardTensors {
  Tensor a;     // what forward was given
  Tensor d_o;   // [T, H] gradient of o, activation type
  Tensor da;    // [T, H] overwritten
  Carry carry;  // as forward was given it, with the gradients
};

struct PassShape {
  int64_t num_tokens;
  int64_t num_halos;        // the most segments that continue a document (Sequence::num_halos)
  bool recomputes = false;  // every backward has Mode::kBackwardRecompute
  bool backward = true;     // there is one
  // Chunks of states here and of all ranks, where others hold those before and behind; else 0.
  int64_t num_chunks = 0, num_all_chunks = 0;
};

// Where a branch's memory of a slot comes from: what is read until the slot is used again, and what
// the branches of other blocks may overwrite as soon as the block has run.
struct SavedArenas {
  Arena &lasting, &block;
};

// What balancing and people want to know of experts; of the micro-batch that ran last in a slot.
struct ExpertLoad {
  Tensor count_X;    // [E + 1] I64: choices of each expert, then those that chose none
  Tensor expert_Tk;  // I32: of each token, in ascending order; of padding kernels::kNoClass
  // [2] in the stream type, of the last backward: aux_loss and z_loss of this rank's tokens,
  // as they are added to the step's loss.  Absent: the router has none.
  Tensor losses_2;
};

// What a branch says of itself once its tensors are listed.
struct BranchNeeds {
  int forward_parts = 1, backward_parts = 1;
  int64_t carry_width = 0;  // 0: hands nothing on
  ExchangeNeeds tokens{};   // empty: no row of it needs another
};

class Branch {
 public:
  virtual ~Branch() = default;
  // Its tensors, in the order in which forward meets them; sets its shapes.
  virtual void list(const LayerSpec& layer, StoredVisitor visit) = 0;
  virtual BranchNeeds needs() const = 0;
  // Takes what forward keeps for backward; anew for a slot that was laid out before.
  virtual void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) = 0;
  virtual void forward(const kernels::Context&, const Pass&, int part, const Tensor& a_TH,
                       const Carry&, const Tensor& o_TH) = 0;
  // Adds to the gradients (Pass::add_to_gradients).
  virtual void backward(const kernels::Context&, const Pass&, int part, const BackwardTensors&) = 0;
  virtual std::optional<ExpertLoad> load(int slot) const = 0;  // absent: it has no experts
};

// All parts, one after another.
void run_forward(Branch&, const kernels::Context&, const Pass&, const Tensor& a_TH, const Carry&,
                 const Tensor& o_TH);
void run_backward(Branch&, const kernels::Context&, const Pass&, const BackwardTensors&);

// What a branch has laid out, by slot.
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
