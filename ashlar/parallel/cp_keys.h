// Keys and values of context parallelism: how those of all ranks meet the queries here.
//
//   gather      they are gathered for each layer, once more in backward; their gradients are
//               reduce-scattered
//   ring        they travel from rank to rank while attention runs over those that are here, and
//               results are merged; in backward the gradients of a part travel behind it, home at
//               last
//   all_to_all  queries travel too, for all tokens of some heads (cp_heads.h)
//
// Source   docs/parallel/cp.md has bytes and launches as closed formulas.
// Numerics sums over ranks: gather in group order; ring the ranks after a part's owner in order,
//          then added to the owner's own.  The same bits for any timing.
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
  // parts: those of the micro-batch at hand; outlives this.
  static std::unique_ptr<CpKeys> make(CpExchange kind, comm::Group& ranks, const CpSplit& split,
                                      const CpParts& parts, const nn::ExchangeNeeds& needs,
                                      const nn::Types& types, Allocator& allocator);
  // After the parts changed.  Allocates nothing.
  virtual void assign() = 0;

 protected:
  CpKeys(comm::Group& ranks, const CpSplit& split, const CpParts& parts)
      : ranks_(ranks), split_(split), parts_(parts) {}
  comm::Group& ranks_;
  const CpSplit split_;
  const CpParts& parts_;
};

}  // namespace ashlar::parallel
