// How it works.  Four exchanges, after each of which all ranks decide alike:
//
//   1  machine and bytes of every rank     -> the members of each machine; every rank writes for
//                                             itself if one has too much, or no machine has two
//   2  paths of the encoded shares         -> each rank reads its machine's shares, and lays out
//   3  paths of the machines' memory       -> made by a machine's first member, opened by the
//      others
//   4  problems                            -> after a single one every rank writes its own part
#include "ashlar/train/node_saves.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "ashlar/checkpoint/save/chunk_arena.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/shared_memory.h"
#include "ashlar/core/text.h"
#include "ashlar/train/machine.h"

namespace ashlar::train {
namespace {

using checkpoint::NodeShare;
using checkpoint::NodeSnapshot;

Writers every_rank(const comm::Group& ranks) {
  Writers writers{std::vector<int>(size_t(ranks.size())), ranks.rank(), nullptr};
  std::iota(writers.ranks.begin(), writers.ranks.end(), 0);
  return writers;
}

// The state of the exchanges.
class Meeting {
 public:
  Meeting(comm::Group& ranks, NodeShare share) : ranks_(ranks), share_(std::move(share)) {}

  // False: the ranks do not gather.
  bool find_members(int64_t gather_mib) {
    const std::vector<std::string> told = comm::all_said(
        ranks_, fmt::format("{:x} {}", share_.bytes(), machine_id()), "machines of writers");
    std::vector<std::string> machines;
    int64_t busiest = 0;
    for (const std::string& text : told) {
      busiest = std::max<int64_t>(busiest, std::stoll(text, nullptr, 16));
      machines.push_back(text.substr(text.find(' ') + 1));
    }
    const auto place_of = [&](const std::string& name) {
      return int(std::find(machines.begin(), machines.end(), name) - machines.begin());
    };
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const int first = place_of(machines[size_t(rank)]);
      if (first == rank) writers_.push_back(rank);
      if (first == place_of(machines[size_t(ranks_.rank())])) members_.push_back(rank);
    }
    const bool known = std::find(machines.begin(), machines.end(), "") == machines.end();
    return known && gathers(busiest, gather_mib) && int(writers_.size()) < ranks_.size();
  }

  // False: some ranks of a machine cannot share memory.
  bool share_memory(int64_t arena_mib, Log& log) {
    std::optional<SharedMemory> own, memory;
    checkpoint::NodeLayout layout;
    guarded([&] { own.emplace(SharedMemory::holding(encode(share_))); });
    const auto shares = comm::all_said(ranks_, own ? own->path() : "", "parts of writers");
    guarded([&] {
      std::vector<NodeShare> all;
      for (const int rank : members_)
        all.push_back(checkpoint::decode_share(SharedMemory::open(shares[size_t(rank)]).text()));
      layout = checkpoint::lay_out(all);
      if (ranks_.rank() == members_[0]) memory.emplace(take_memory(layout, arena_mib));
    });
    const auto paths = comm::all_said(ranks_, memory ? memory->path() : "", "memory of writers");
    const auto me = std::find(members_.begin(), members_.end(), ranks_.rank()) - members_.begin();
    guarded([&] {
      if (!memory) memory.emplace(SharedMemory::open(paths[size_t(members_[0])]));
      snapshot_ = std::make_unique<NodeSnapshot>(std::move(*memory), std::move(layout), int(me),
                                                 int(members_.size()), std::move(share_));
    });
    problem_ = comm::first_said(ranks_, problem_, "problems of writers");
    if (problem_.empty()) return true;
    if (ranks_.rank() == 0) log.warn("every rank writes its own part of checkpoints: {}", problem_);
    return false;
  }

  Writers writers() {
    const auto mine = std::find(writers_.begin(), writers_.end(), members_[0]) - writers_.begin();
    return {std::move(writers_), int(mine), std::move(snapshot_)};
  }

 private:
  SharedMemory take_memory(const checkpoint::NodeLayout& layout, int64_t arena_mib) const {
    const auto members = int(members_.size());
    const int64_t bytes = NodeSnapshot::shared_bytes(layout, members);
    const int64_t limit = members * checkpoint::snapshot_limit_bytes(arena_mib << 20, members);
    ASHLAR_REQUIRE(bytes <= limit, kMemory,
                   "two snapshots of this machine take {}, and at most {} are for them",
                   format_bytes(bytes), format_bytes(limit));
    return SharedMemory::create(bytes);
  }
  // Keeps the first problem; after it nothing more is tried.
  void guarded(const std::function<void()>& body) {
    if (!problem_.empty()) return;
    try {
      body();
    } catch (const Error& error) {
      problem_ = fmt::format("rank {}: {}", ranks_.rank(), error.what());
    }
  }

  comm::Group& ranks_;
  NodeShare share_;
  std::vector<int> writers_, members_;  // of all; of this machine
  std::unique_ptr<NodeSnapshot> snapshot_;
  std::string problem_;
};

int64_t files_of(const std::vector<Piece>& pieces) {
  std::map<std::string_view, int64_t> boxes;
  int64_t most = 0;
  for (const Piece& piece : pieces) most = std::max(most, ++boxes[piece.logical.name]);
  return most;
}

}  // namespace

void check_files(const NodeShare& written) {
  constexpr int64_t kMost = 64;
  const int64_t files = files_of(written.model) + files_of(written.optim);
  ASHLAR_REQUIRE(files <= kMost, kConfig,
                 "a checkpoint would have {} files of one writer, for a tensor is kept in so many "
                 "pieces; expected at most {}: use parallel.zero_layout=contiguous, or "
                 "checkpoint.every=-1 for no checkpoints",
                 files, kMost);
}

Writers choose_writers(comm::Group& ranks, NodeShare share, const CheckpointSpec& recipe,
                       Log& log) {
  if (ranks.size() == 1 || recipe.gather_mib == 0 || recipe.every < 0) return every_rank(ranks);
  Meeting meeting(ranks, std::move(share));
  if (!meeting.find_members(recipe.gather_mib) || !meeting.share_memory(recipe.arena_mib, log))
    return every_rank(ranks);
  return meeting.writers();
}

}  // namespace ashlar::train
