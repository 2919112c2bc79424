// The check of copies: ranks that hold, or have gathered, the same weights compare them, so that a
// rank whose memory, processor or network changes bits is named (health.weights_every).
//
// The first step compares, and every so many after it, a 64th of the bytes of every unit
// (nn/weights.h), the next 64th each time, of the weights as the layers read them.  With ZeRO 0
// they are this rank's own, which shows wrong updates, too; with stages 1 to 3 they have been
// gathered, and a wrong shard is then wrong on every rank alike, which no comparison shows.
//
// Traffic  one all_gather of 4 bytes a rank in every group that shares units.
// Errors   kDevice on all ranks of the group: the rank that differs from most, and the unit; or
//          two ranks, of which one must be wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/nn/weights.h"
#include "ashlar/parallel/mesh.h"

namespace ashlar::parallel {

class CopyCheck {
 public:
  static constexpr int64_t kNumParts = 64;
  // every: steps from one comparison to the next, at least 1.  units, ranks_of_unit: those of the
  // model here, and the ranks that share each.
  CopyCheck(int64_t every, const nn::Units& units, std::vector<comm::Group*> ranks_of_unit);

  // The whole weights of a unit as they are about to be read.
  void add(int64_t unit, const Tensor& whole);
  // To be called once a step, after its last use of weights.
  void end_step();
  // Whether any rank shares weights with this one.
  bool compares() const { return !shared_.empty(); }

 private:
  // The units that one group shares.
  struct Shared {
    comm::Group* ranks;
    std::vector<int64_t> units;
    std::vector<int32_t> sums;  // by rank of the group
  };
  void compare(Shared& shared);
  [[noreturn]] void fail(const Shared& shared);
  std::string name_of(int64_t unit) const;

  const int64_t every_;
  const nn::Units units_;
  std::vector<uint32_t> sums_;  // by unit, since the last comparison
  std::vector<Shared> shared_;
  int64_t num_steps_ = 0;
  bool meta_ = false;  // a dry run: only the operations are counted
};

}  // namespace ashlar::parallel
