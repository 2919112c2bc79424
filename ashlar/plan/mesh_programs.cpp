// How it works.  The first rank of every share of the model (mesh_place.h) is made whole and runs a
// dry step.  Another rank with that share does the same in groups of its own (sim/like_rank.h).  A
// second recording, without a trainer (train/rank_update.h), holds the events that depend on the
// place of its shard, and these replace the first rank's:
//
//   step of the first   ... copies of a shard ... | ... | gradient norm | ... | optimizer | ...
//   of another          the same ... own copies   | the same | own norm  | ... | own       | ...
#include <map>

#include "ashlar/parallel/muon_holdings.h"
#include "ashlar/plan/mesh_place.h"
#include "ashlar/plan/simulate.h"
#include "ashlar/sim/like_rank.h"
#include "ashlar/sim/traces.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/rank_update.h"

namespace ashlar::plan {
namespace {

using train::DryRank;

// Events of a step that each rank has of its own.
struct OwnPart {
  size_t begin, end;          // of the first rank
  size_t own_begin, own_end;  // of the other
  TracePlace place;
};

size_t num_norm_events(const train::Trainer& trainer, size_t* num_update) {
  size_t num_norm = 0;
  train::trace_own(trainer, trainer.model().groups().rank(), {},
                   [&](const Trace&, const train::OwnEvents& own) {
                     num_norm = own.norm_end;
                     *num_update = own.update_end - own.norm_end;
                   });
  return num_norm;
}

// The step of a first rank, from which programs of others are made.
class FirstRank {
 public:
  FirstRank(sim::ProgramBuilder& builder, const train::Trainer& trainer, const Trace& trace,
            const DryRank::OwnWork& work)
      : builder_(builder),
        trainer_(trainer),
        trace_(trace),
        work_(work),
        rank_(trainer.model().groups().rank()) {
    const comm::Group& muon = trainer.model().muon().group();
    muon_group_ = {muon.name(), {muon.world_ranks().begin(), muon.world_ranks().end()}, -1};
    num_norm_ = num_norm_events(trainer, &num_update_);
    sim::add_trace(builder, rank_, trace);
  }

  void add_like(int rank) {
    train::trace_own(trainer_, rank, work_.shard,
                     [&](const Trace& own, const train::OwnEvents& ends) {
                       sim::LikeRank like(builder_, rank, rank_, trace_, own, muon_group_);
                       size_t at = 0;
                       for (const OwnPart& part : parts(ends)) {
                         like.repeat(at, part.begin);
                         like.add_own(part.own_begin, part.own_end, part.place);
                         at = part.end;
                       }
                       like.repeat(at, trace_.events().size());
                       like.end_step();
                     });
  }

 private:
  // In the order of the step: works on shards come before the gradient norm and after the
  // optimizer.
  std::vector<OwnPart> parts(const train::OwnEvents& ends) const {
    std::vector<OwnPart> parts;
    bool updated = false;
    const auto add_update = [&] {
      const auto add = [&](size_t begin, size_t num, size_t own_begin, size_t own_end) {
        const TracePlace place =
            begin < trace_.events().size() ? trace_.events()[begin].place : TracePlace{};
        parts.push_back({begin, begin + num, own_begin, own_end, place});
      };
      add(work_.norm_begin, num_norm_, 0, ends.norm_end);
      add(work_.update_begin, num_update_, ends.norm_end, ends.update_end);
      updated = true;
    };
    size_t own = ends.update_end;
    for (size_t i = 0; i < work_.shard.size(); ++i) {
      const parallel::Zero::ShardWork& shard = work_.shard[i];
      if (!updated && shard.begin > work_.norm_begin) add_update();
      parts.push_back({shard.begin, shard.end, own, ends.work_ends[i], shard.place});
      own = ends.work_ends[i];
    }
    if (!updated) add_update();
    return parts;
  }

  sim::ProgramBuilder& builder_;
  const train::Trainer& trainer_;
  const Trace& trace_;
  const DryRank::OwnWork& work_;
  const int rank_;
  TraceGroup muon_group_;
  size_t num_norm_ = 0, num_update_ = 0;
};

}  // namespace

sim::RankPrograms programs_of(const Recipe& recipe, DType compute, int num_ranks, Log& log,
                              bool lump) {
  const ParallelSpec parallel = resolve_parallel(recipe, num_ranks);
  const parallel::Mesh mesh = parallel::Mesh::of(parallel);
  std::vector<std::vector<int>> shares;  // ranks of each
  std::map<MeshPlace, size_t> share_at;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto [found, is_new] =
        share_at.try_emplace(place_of(mesh, parallel, rank), shares.size());
    if (is_new) shares.emplace_back();
    shares[found->second].push_back(rank);
  }
  sim::ProgramBuilder builder(num_ranks, lump ? num_ranks / int(shares.size()) : 1);
  Threads threads(train::planned_threads(recipe, 0));
  parallel::SharedMuonPlans muon_plans;
  Progress progress(log, "dry runs", lump ? int64_t(shares.size()) : num_ranks, "ranks");
  for (const std::vector<int>& ranks : shares) {
    DryRank dry(recipe, compute, num_ranks, ranks[0], threads, {}, &muon_plans);
    dry.trace_step([&](const Trace& trace, const DryRank::OwnWork& work) {
      FirstRank first(builder, dry.trainer(), trace, work);
      progress.advance(1);
      for (size_t i = 1; !lump && i < ranks.size(); ++i) {
        first.add_like(ranks[i]);
        progress.advance(1);
      }
    });
  }
  builder.programs().dry = true;
  builder.programs().tokens = recipe.train.global_batch * recipe.data.sequence_length;
  return builder.finish();
}

}  // namespace ashlar::plan
