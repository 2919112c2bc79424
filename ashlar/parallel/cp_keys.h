// Keys and values in context parallelism: three ways to bring those of all ranks to the queries.
//
//   gather      all ranks gather them for each layer, once more in backward; their gradients are
//               reduce-scattered
//   ring        they are sent from rank to rank, while attention runs over the part that is here,
//               and results are merged; in backward the gradients of a part follow it, and end at
//               its owner
//   all_to_all  queries are sent too, so that each rank has all tokens of some heads (cp_heads.h)
//
// Source   docs/parallel/cp.md has bytes and launches as closed formulas.
// Numerics order of sums over ranks: gather in group order; ring the ranks after a part's owner in
//          order, then the owner itself.  The bits do not depend on timing.
// Errors   those of comm::Group.
#pragma once

#include <memory>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/branch.h"
#include "ashlar/parallel/cp_split.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::parallel {

// Segments of a micro-batch by rank, in the rank's own rows.
using CpParts = std::vector<std::vector<Segment>>;

class CpKeys : public nn::KeyExchange {
 public:
  // parts: those of the current micro-batch; outlives this.
  static std::unique_ptr<CpKeys> make(CpExchange kind, comm::Group& ranks, const CpSplit& split,
                                      const CpParts& parts, const nn::ExchangeNeeds& needs,
                                      const nn::Types& types, Allocator& allocator);
  // Call after the parts changed.  Allocates nothing.
  virtual void assign() = 0;
  // Sends the keys once more.
  void post_backward(const kernels::Context& ctx, const nn::Pass& pass,
                     const kernels::Attention& x) override {
    post_keys(ctx, pass, x);
  }

 protected:
  CpKeys(comm::Group& ranks, const CpSplit& split, const CpParts& parts)
      : ranks_(ranks), split_(split), parts_(parts) {}
  comm::Group& ranks_;
  const CpSplit split_;
  const CpParts& parts_;
};

}  // namespace ashlar::parallel
