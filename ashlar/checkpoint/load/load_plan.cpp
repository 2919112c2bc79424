// How it works.  Three passes:
//
//   shared_ranges  sorts the borders of what all ranks want, and finds the ranks that want what is
//                  between two of them
//   cut_lots       walks these ranges chunk by chunk; a new reader or enough bytes begin a new lot,
//                  another set of ranks a new part
//   make_rounds    takes the first remaining lot of each reader in turn, if all of its receivers
//                  have room in this round; a reader whose lot had no room is first in the next
//                  round, so that none waits for ever
#include "ashlar/checkpoint/load/load_plan.h"

#include <algorithm>
#include <set>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

struct SharedRange {
  ChunkRange chunks;
  std::vector<int> ranks;  // ascending
};

std::vector<SharedRange> shared_ranges(std::span<const std::vector<ChunkRange>> wanted) {
  struct Border {
    int64_t at;
    int rank;
    bool begins;
  };
  std::vector<Border> borders;
  for (size_t rank = 0; rank < wanted.size(); ++rank)
    for (const ChunkRange& range : wanted[rank]) {
      borders.push_back({range.begin, int(rank), true});
      borders.push_back({range.end, int(rank), false});
    }
  // A rank's end comes before its beginning at the same place.
  std::sort(borders.begin(), borders.end(), [](const Border& a, const Border& b) {
    return a.at != b.at ? a.at < b.at : a.begins < b.begins;
  });
  std::vector<SharedRange> ranges;
  std::set<int> ranks;
  for (size_t i = 0; i < borders.size(); ++i) {
    if (i > 0 && borders[i].at > borders[i - 1].at && !ranks.empty())
      ranges.push_back({{borders[i - 1].at, borders[i].at}, {ranks.begin(), ranks.end()}});
    if (borders[i].begins)
      ranks.insert(borders[i].rank);
    else
      ranks.erase(borders[i].rank);
  }
  return ranges;
}

std::vector<Lot> cut_lots(const ChunkNumbers& chunks, const std::vector<SharedRange>& ranges,
                          int num_ranks) {
  int64_t total = 0, before = 0;
  for (const SharedRange& range : ranges)
    for (int64_t c = range.chunks.begin; c < range.chunks.end; ++c) total += chunks.bytes(c);
  std::vector<Lot> lots;
  for (const SharedRange& range : ranges) {
    bool new_part = true;
    for (int64_t c = range.chunks.begin; c < range.chunks.end; ++c) {
      const int reader = int(static_cast<__int128>(before) * num_ranks / total);
      if (lots.empty() || lots.back().reader != reader || lots.back().bytes >= kLotBytes) {
        lots.push_back({reader, 0, {}});
        new_part = true;
      }
      Lot& lot = lots.back();
      if (std::exchange(new_part, false)) {
        lot.parts.push_back({{c, c}, 0, range.ranks});
        std::erase(lot.parts.back().receivers, reader);
      }
      const int64_t bytes = chunks.bytes(c);
      ++lot.parts.back().chunks.end;
      lot.parts.back().bytes += padded(bytes);
      lot.bytes += padded(bytes);
      before += bytes;
    }
  }
  return lots;
}

// The room that each rank has in a round.
class Room {
 public:
  explicit Room(int num_ranks) : left_(size_t(num_ranks)) {}
  void clear() { std::fill(left_.begin(), left_.end(), kMaxLotBytes); }
  bool take(const Lot& lot) {
    size_t part = 0, receiver = 0;
    for (; part < lot.parts.size(); ++part, receiver = 0)
      for (; receiver < lot.parts[part].receivers.size(); ++receiver) {
        int64_t& left = left_[size_t(lot.parts[part].receivers[receiver])];
        if (left < lot.parts[part].bytes) return give_back(lot, part, receiver), false;
        left -= lot.parts[part].bytes;
      }
    return true;
  }

 private:
  // Gives back what was taken before receiver `receiver` of part `part`.
  void give_back(const Lot& lot, size_t part, size_t receiver) {
    for (size_t p = 0; p <= part; ++p)
      for (size_t r = 0; r < (p < part ? lot.parts[p].receivers.size() : receiver); ++r)
        left_[size_t(lot.parts[p].receivers[r])] += lot.parts[p].bytes;
  }
  std::vector<int64_t> left_;
};

std::vector<std::vector<size_t>> make_rounds(const std::vector<Lot>& lots, int num_ranks) {
  const auto n = size_t(num_ranks);
  std::vector<size_t> next(n), end(n);  // of each reader's lots
  for (size_t i = 0; i < lots.size(); ++i) {
    const auto reader = size_t(lots[i].reader);
    if (end[reader] == 0) next[reader] = i;
    end[reader] = i + 1;
  }
  std::vector<std::vector<size_t>> rounds;
  Room room(num_ranks);
  size_t begin = 0;
  for (size_t left = lots.size(); left > 0; left -= rounds.back().size()) {
    rounds.emplace_back();
    room.clear();
    std::optional<size_t> skipped;
    for (size_t i = 0; i < n; ++i) {
      const size_t reader = (begin + i) % n;
      if (next[reader] == end[reader]) continue;
      if (room.take(lots[next[reader]]))
        rounds.back().push_back(next[reader]++);
      else if (!skipped)
        skipped = reader;
    }
    begin = skipped.value_or(begin);
    ASHLAR_ASSERT(!rounds.back().empty());
  }
  return rounds;
}

}  // namespace

ChunkNumbers::ChunkNumbers(const Index& index) : index_(index), first_(index.files.size() + 1) {
  for (size_t i = 0; i < index.files.size(); ++i)
    first_[i + 1] = first_[i] + num_chunks(index.files[i].size_bytes);
}

size_t ChunkNumbers::file(int64_t number) const {
  return size_t(std::upper_bound(first_.begin(), first_.end(), number) - first_.begin()) - 1;
}

int64_t ChunkNumbers::bytes(int64_t number) const {
  const size_t file = this->file(number);
  const int64_t begin = (number - first_[file]) * kChunkBytes;
  return std::min(kChunkBytes, index_.files[file].size_bytes - begin);
}

LoadPlan make_load_plan(const ChunkNumbers& chunks,
                        std::span<const std::vector<ChunkRange>> wanted) {
  LoadPlan plan;
  const int num_ranks = int(wanted.size());
  plan.lots = cut_lots(chunks, shared_ranges(wanted), num_ranks);
  plan.rounds = make_rounds(plan.lots, num_ranks);
  return plan;
}

}  // namespace ashlar::checkpoint
