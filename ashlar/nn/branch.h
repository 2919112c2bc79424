// A branch of a block: what it adds to the residual stream, o = f(a).  The mixer looks at other
// tokens, the feed-forward at one.  What a branch is made of (its tensors), what it keeps from
// forward to backward, and how it runs are one object's business; the model knows none of it.
// Techniques that change how a branch runs are branches around a branch (parallel/tp.h).
//
// Shapes   a [T, H] normed input, activation type; o [T, H] stream type; T: PassShape.
#pragma once

#include <optional>

#include "ashlar/nn/exchange.h"
#include "ashlar/nn/parameters.h"

namespace ashlar::nn {

// What a branch hands to the same branch of the next block (ZAYA1's router state), in the stream
// type, [T, carry_width].  in and d_in are absent where no block before hands anything on, d_out
// where none after is handed it.
struct Carry {
  Tensor in{}, out{};      // forward fills out
  Tensor d_out{}, d_in{};  // backward overwrites d_in
};

// One micro-batch on its way through a branch.
struct Pass {
  const Types& types;
  const kernels::Sequence& sequence;
  const Exchanges& exchanges;
  int64_t block;  // of the whole model
  int slot;       // which of the memories that lay_out took
  Tensor rope;    // [positions, rho]
  // Gradients of products (Stored::is_product) are added to, or overwritten: then backward does not
  // read what was there.  All others are always added to.
  bool accumulate = true;
};

struct BackwardTensors {
  Tensor a;     // what forward was given
  Tensor d_o;   // [T, H] gradient of o, activation type
  Tensor da;    // [T, H] overwritten
  Carry carry;  // as forward was given it, with the gradients
};

struct PassShape {
  int64_t num_tokens;
  int64_t num_halos;  // the most segments that continue a document (Sequence::num_halos)
};

// Where a branch's memory of a slot comes from: what is read until the slot is used again, and what
// the branches of other blocks may overwrite as soon as the block has run.
struct SavedArenas {
  Arena &lasting, &block;
};

// What balancing and people want to know of experts; of the micro-batch that ran last in a slot.
struct ExpertLoad {
  Tensor count_X;   // [E + 1] I64: tokens of each expert, then those that no expert took
  Tensor expert_T;  // I32
};

class Branch {
 public:
  virtual ~Branch() = default;
  // Its tensors, in the order in which forward meets them; sets its shapes.
  virtual void list(const LayerSpec& layer, StoredVisitor visit) = 0;
  virtual int64_t carry_width() const = 0;  // 0: hands nothing on
  virtual ExchangeNeeds needs() const = 0;  // empty: no row of it needs another
  // Takes what forward keeps for backward; anew for a slot that was laid out before.
  virtual void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) = 0;
  virtual void forward(const kernels::Context&, const Pass&, const Tensor& a_TH, const Carry&,
                       const Tensor& o_TH) = 0;
  // Adds to the gradients (Pass::accumulate).
  virtual void backward(const kernels::Context&, const Pass&, const BackwardTensors&) = 0;
  virtual std::optional<ExpertLoad> load(int slot) const = 0;  // absent: it has no experts
};

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
