// The part of every unit that each rank keeps under ZeRO: arithmetic on the numbers of ranks, which
// needs no groups, so that a rank knows the parts of all others.
#pragma once

#include <vector>

#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/shards.h"

namespace ashlar::parallel {

class ShardMap {
 public:
  // Units that the same ranks share.  With contiguous shards they form one row.
  struct Family {
    Shards shards;  // for all units; units of other families are empty here
    int stride;     // the ranks of the family are every stride-th of the data group
    bool rotates;   // they are in the order of expert_shard
  };
  // family_of_unit: indices of `families`.  stage: ZeRO's; 0: every rank keeps all.
  ShardMap(const Mesh& mesh, int stage, std::vector<Family> families,
           std::vector<size_t> family_of_unit)
      : mesh_(mesh),
        stage_(stage),
        families_(std::move(families)),
        family_of_unit_(std::move(family_of_unit)) {}

  int stage() const { return stage_; }
  size_t family_of(int64_t unit) const { return family_of_unit_[size_t(unit)]; }
  const Shards& shards_of(int64_t unit) const { return families_[family_of(unit)].shards; }
  // The number of adjacent data ranks that hold different parts of the unit's tensors.
  int num_parts(int64_t unit) const { return families_[family_of(unit)].stride; }
  // The rank's number among the ranks that share the unit.
  int number_of(int64_t unit, int world_rank) const;
  // The ranges of a sharded unit that a rank of the model group keeps; `within`: that lie there.
  std::vector<Range> kept(int64_t unit, int world_rank) const {
    return shards_of(unit).kept(unit, number_of(unit, world_rank));
  }
  std::vector<Range> kept(int64_t unit, int world_rank, const Range& within) const {
    return shards_of(unit).kept(unit, number_of(unit, world_rank), within);
  }

 private:
  Mesh mesh_;
  int stage_;
  std::vector<Family> families_;
  std::vector<size_t> family_of_unit_;
};

}  // namespace ashlar::parallel
