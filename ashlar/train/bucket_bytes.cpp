#include "ashlar/train/bucket_bytes.h"

#include "ashlar/comm/agree.h"
#include "ashlar/sizing/bucket_bytes.h"
#include "ashlar/train/saves.h"

namespace ashlar::train {

Recipe with_bucket_bytes(FileSystem& files, const Recipe& recipe, int64_t num_ranks) {
  if (recipe.parallel.bucket_bytes != kAutoBucketBytes) return recipe;
  const std::string& path = recipe.train.machine;
  const machine::Profile profile =
      path.empty() ? machine::Profile() : machine::parse_profile(read_text(files, path), path);
  return sizing::with_bucket_bytes(recipe, num_ranks, sizing::SaturatingSizes(profile));
}

Recipe with_bucket_bytes(FileSystem& files, const Recipe& recipe, comm::Group& ranks) {
  if (recipe.parallel.bucket_bytes != kAutoBucketBytes) return recipe;
  Recipe resolved = recipe;
  while_leader(ranks, "size of buckets",
               [&] { resolved = with_bucket_bytes(files, recipe, ranks.size()); });
  resolved.parallel.bucket_bytes =
      comm::from_leader(ranks, resolved.parallel.bucket_bytes, "size of buckets");
  return resolved;
}

}  // namespace ashlar::train
