// How it works.  Ranks with the same coordinates along pp, cp, tsp and tp and the same experts have
// the same share of the model (mesh_place.h).  The first of them, the like of the others, is a real
// trainer that runs its update.  Another rank differs in the place of its shards only: of the
// like's memory and costs, the part that depends on that place is taken away, and the rank's is put
// instead (train/rank_update.h).
//
//   likes    the trainers, made first
//   parts    machines of adjacent ranks, shared out among the workers; joined in order at the end
//   check    one rank of a hundred, chosen by a hash, is also made whole and compared
//
// If a mesh has very many different shares, trainers of the later ones are made when their turn
// comes, and dropped.
#include "ashlar/plan/rank_counts.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "ashlar/core/rng.h"
#include "ashlar/core/rounding.h"
#include "ashlar/plan/mesh_place.h"
#include "ashlar/train/rank_update.h"

namespace ashlar::plan {
namespace {

using train::DryRank;
using train::KernelCosts;
using train::RankUpdate;

constexpr size_t kMostLikes = 256;  // trainers that are kept

// A trainer after its update.
struct Like {
  std::unique_ptr<DryRank> dry;
  RankUpdate own;
  MemoryCounts memory;
  KernelCosts costs;  // of its update, without gathers
};

Like make_like(const PlannedMesh& mesh, int rank) {
  Like like;
  like.dry = std::make_unique<DryRank>(mesh.recipe, mesh.compute, mesh.num_ranks, rank,
                                       mesh.rank_threads, std::nullopt, &mesh.plans);
  like.dry->update();
  like.own = train::count_update(like.dry->trainer(), rank);
  like.memory = like.dry->memory();
  like.costs = like.dry->costs_without_gathers();
  return like;
}

// The counts of one rank.
struct Counted {
  Signature signature;
  KernelCosts update;
  checkpoint::NodeShare share;
};

Counted count(const Like& like, const MeshPlace& place, RankUpdate rank) {
  Counted counted{{place.pp, place.cp, place.tsp, place.tp, peaks_of(like.memory), 0, 0},
                  like.costs,
                  std::move(rank.share)};
  const Peaks own = peaks_of(like.own.memory), others = peaks_of(rank.memory);
  for (size_t tag = 0; tag < own.size(); ++tag)
    counted.signature.peaks[tag] += others[tag] - own[tag];
  counted.signature.allocations =
      like.memory.num_allocations - like.own.memory.num_allocations + rank.memory.num_allocations;
  counted.signature.update_workspace_bytes = rank.workspace_bytes;
  train::add(counted.update, like.own.costs, -1);
  train::add(counted.update, rank.costs);
  return counted;
}

bool same(const Piece& a, const Piece& b) {
  return a.logical.name == b.logical.name && a.logical.dtype == b.logical.dtype && a.box == b.box &&
         a.strides == b.strides;
}

bool same(const std::vector<Piece>& a, const std::vector<Piece>& b) {
  return std::ranges::equal(a, b, [](const Piece& x, const Piece& y) { return same(x, y); });
}

bool same(const KernelCosts& a, const KernelCosts& b) {
  const auto within = [](const KernelCosts& x, const KernelCosts& y) {
    return std::ranges::all_of(x, [&](const auto& entry) {
      const auto found = y.find(entry.first);
      const kernels::Cost other = found != y.end() ? found->second : kernels::Cost{};
      return entry.second.flop == other.flop && entry.second.bytes == other.bytes;
    });
  };
  return within(a, b) && within(b, a);
}

// Some ranks of every mesh.
bool is_checked(int rank, int num_ranks) {
  return rank == num_ranks - 1 || rank == num_ranks / 2 || splitmix64(uint64_t(rank)) % 100 == 0;
}

void check(const PlannedMesh& mesh, int rank, const Counted& counted) {
  const Like made = make_like(mesh, rank);
  const Signature& signature = counted.signature;
  ASHLAR_ASSERT(signature.peaks == peaks_of(made.memory) &&
                signature.allocations == made.memory.num_allocations);
  ASHLAR_ASSERT(signature.update_workspace_bytes == made.own.workspace_bytes &&
                made.own.workspace_bytes <= made.dry->step_memory().workspace_bytes);
  ASHLAR_ASSERT(same(counted.update, made.costs));
  const checkpoint::NodeShare share = share_of(made.dry->trainer());
  ASHLAR_ASSERT(same(counted.share.model, share.model) && same(counted.share.optim, share.optim));
}

class Counter {
 public:
  Counter(const PlannedMesh& mesh, Progress& progress)
      : mesh_(mesh),
        progress_(progress),
        parallel_(resolve_parallel(mesh.recipe, mesh.num_ranks)),
        shape_(parallel::Mesh::of(parallel_)) {}

  // Checkpoints are counted in one way, the one that the likes show; a busier rank may change it.
  RankCounts run() {
    make_likes();
    int64_t busiest_bytes = 0;
    for (const auto& [place, like] : likes_)
      busiest_bytes = std::max(busiest_bytes, share_of(like.dry->trainer()).bytes());
    const int per_node = std::min(mesh_.ranks_per_node, mesh_.num_ranks);
    gathers_ = CheckpointMeter::gathers(mesh_.recipe, per_node, busiest_bytes);
    RankCounts counts = count_all();
    if (counts.meter.should_gather() == gathers_) return counts;
    gathers_ = !gathers_;
    return count_all();
  }

 private:
  RankCounts count_all() {
    const int per_node = std::min(mesh_.ranks_per_node, mesh_.num_ranks);
    const int nodes = ceil_div(mesh_.num_ranks, per_node);
    const int num_parts = std::min(nodes, 8 * mesh_.workers.size());
    std::vector<std::optional<Part>> parts(static_cast<size_t>(num_parts));
    mesh_.workers.run(num_parts, [&](int64_t part, int) {
      const auto node_at = [&](int64_t p) { return int(int64_t(nodes) * p / num_parts); };
      parts[size_t(part)].emplace(count_part(
          node_at(part) * per_node, std::min(node_at(part + 1) * per_node, mesh_.num_ranks)));
    });
    Part all = std::move(*parts[0]);
    for (size_t p = 1; p < parts.size(); ++p) all.join(std::move(*parts[p]));
    return std::move(all.counts);
  }

  struct Part {
    RankCounts counts;
    std::map<Signature, size_t> known;

    Kind& kind_of(const Signature& signature, const KernelCosts& update) {
      const auto [found, added] = known.try_emplace(signature, counts.kinds.size());
      if (added) counts.kinds.push_back({signature, {}, update});
      return counts.kinds[found->second];
    }
    // next: of the ranks behind these.
    void join(Part next) {
      for (const Kind& kind : next.counts.kinds) {
        std::vector<int>& ranks = kind_of(kind.signature, kind.update).ranks;
        ranks.insert(ranks.end(), kind.ranks.begin(), kind.ranks.end());
      }
      train::add(counts.updates, next.counts.updates);
      counts.meter.join(std::move(next.counts.meter));
    }
  };

  void make_likes() {
    std::vector<std::pair<MeshPlace, int>> firsts;
    for (int rank = 0; rank < mesh_.num_ranks; ++rank)
      if (const MeshPlace place = place_of(shape_, parallel_, rank);
          likes_.size() < kMostLikes && likes_.try_emplace(place).second)
        firsts.push_back({place, rank});
    mesh_.workers.run(int64_t(firsts.size()), [&](int64_t i, int) {
      const auto& [place, rank] = firsts[size_t(i)];
      likes_.at(place) = make_like(mesh_, rank);
    });
  }

  Part count_part(int first, int last) {
    Part part{
        {{},
         {},
         CheckpointMeter(mesh_.recipe, mesh_.num_ranks, mesh_.ranks_per_node, gathers_, first)},
        {}};
    for (int rank = first; rank < last; ++rank) {
      const Counted counted = count_rank(rank, part.counts.meter);
      train::add(part.counts.updates, counted.update);
      part.kind_of(counted.signature, counted.update).ranks.push_back(rank);
      const std::lock_guard lock(progress_mutex_);
      progress_.advance(1);
    }
    return part;
  }

  Counted count_rank(int rank, CheckpointMeter& meter) const {
    const MeshPlace place = place_of(shape_, parallel_, rank);
    const auto found = likes_.find(place);
    if (found == likes_.end()) return count_made(make_like(mesh_, rank), place, meter);
    const Like& like = found->second;
    const train::Trainer& trainer = like.dry->trainer();
    if (trainer.model().groups().rank() == rank) return count_made(like, place, meter);
    Counted counted = count(like, place, train::count_update(trainer, rank));
    if (is_checked(rank, mesh_.num_ranks)) check(mesh_, rank, counted);
    meter.add(std::move(counted.share));
    return counted;
  }

  // The rank that `like` is of.
  Counted count_made(const Like& like, const MeshPlace& place, CheckpointMeter& meter) const {
    meter.add(like.dry->trainer());
    return count(like, place, like.own);
  }

  const PlannedMesh& mesh_;
  Progress& progress_;
  std::mutex progress_mutex_;
  const ParallelSpec parallel_;
  const parallel::Mesh shape_;
  std::map<MeshPlace, Like> likes_;
  bool gathers_ = false;  // checkpoints: one rank of each machine writes for all
};

}  // namespace

Peaks peaks_of(const MemoryCounts& memory) {
  Peaks peaks;
  for (size_t tag = 0; tag < peaks.size(); ++tag) peaks[tag] = memory.tags[tag].peak_bytes;
  return peaks;
}

RankCounts count_ranks(const PlannedMesh& mesh, Progress& progress) {
  return Counter(mesh, progress).run();
}

}  // namespace ashlar::plan
