#include "ashlar/parallel/shard_map.h"

namespace ashlar::parallel {

int ShardMap::number_of(int64_t unit, int world_rank) const {
  const int data = mesh_.number_within(world_rank, kTokenAxes);
  const Family& family = families_[family_of(unit)];
  if (!family.rotates) return data / family.stride;
  int num_data = 1;
  for (const Axis axis : kTokenAxes) num_data *= mesh_.size(axis);
  return expert_shard(data, num_data, family.stride);
}

}  // namespace ashlar::parallel
