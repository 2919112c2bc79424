// How it works.  StepReader::load, on every rank that loads (one, where a rank loads alone):
//
//   match, check_cover  throw, on all ranks alike, before a byte is written to a destination
//   WantedBytes         finds what this rank wants: which chunks have bytes of which destinations
//   make_load_plan      from what all ranks want: who reads which chunks, and the rounds
//                       (load_plan.h)
//   ChunkReader         reads this rank's share of the chunks ahead, on threads of its own.  These
//                       also copy each block where SharedWantedBytes wants it: to this rank, and
//                       to all ranks of its process
//   Rounds              if ranks do not share memory: send each lot to the ranks that want it; a
//                       round moves one lot while the previous one is copied
//
// So each chunk that a rank wants is read and checked once, in the order of files, and no other
// chunk is.  A rank that finds damage stops reading but continues with the rounds, and reports it
// at the end: no rank waits for it in vain, and the damage that is reported is the first in the
// order of files.
//   Memory: with rounds 36 MiB of lots, two more of at most 12 MiB for what arrives, and a block
// for each read in flight: 64 MiB.  Without rounds no chunk is kept: 32 MiB.
#include <algorithm>
#include <cstring>

#include "ashlar/checkpoint/load/chunk_reader.h"
#include "ashlar/checkpoint/load/load_plan.h"
#include "ashlar/checkpoint/load/match.h"
#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/checkpoint/load/wanted_bytes.h"
#include "ashlar/core/clock.h"

namespace ashlar::checkpoint {
namespace {

std::vector<std::vector<ChunkRange>> wants_of_all(LoadRanks& ranks,
                                                  const std::vector<ChunkRange>& own) {
  std::vector<std::vector<ChunkRange>> wants;
  const std::string_view bytes{reinterpret_cast<const char*>(own.data()),
                               own.size() * sizeof(ChunkRange)};
  for (const std::string& said : ranks.all_gather(bytes)) {
    wants.emplace_back(said.size() / sizeof(ChunkRange));
    std::memcpy(wants.back().data(), said.data(), said.size());
  }
  return wants;
}

// The rank's share of the chunks, each with how it is read.
ChunkReader::Lots lots_of(const LoadPlan& plan, const LoadRanks& ranks, Reads reads,
                          const WantedBytes& wanted) {
  ChunkReader::Lots lots;
  for (const Lot& lot : plan.lots) {
    if (lot.reader != ranks.rank()) continue;
    lots.emplace_back();
    for (const Lot::Part& part : lot.parts)
      for (int64_t chunk = part.chunks.begin; chunk < part.chunks.end; ++chunk) {
        const bool direct = reads == Reads::kDirect ||
                            (reads == Reads::kDirectIfWhole && wanted.nearly_whole(chunk));
        const bool kept = !ranks.shares_memory() && !part.receivers.empty();
        lots.back().push_back({{chunk, chunk + 1}, kept, direct});
      }
  }
  return lots;
}

// Moves the lots of one round after the other.
class Rounds {
 public:
  Rounds(const ChunkNumbers& chunks, const LoadPlan& plan, LoadRanks& ranks,
         const WantedBytes& wanted)
      : chunks_(chunks), plan_(plan), ranks_(ranks), wanted_(wanted) {}

  void run(ChunkReader& source) {
    for (size_t round = 0; round < plan_.rounds.size(); ++round) {
      std::span<std::byte> own;
      bool reads = false;
      for (const size_t lot : plan_.rounds[round]) reads |= plan_.lots[lot].reader == ranks_.rank();
      if (reads) own = source.next();
      post(plan_.rounds[round], own);
      copy_arrived();  // of the round before
      ranks_.wait();
      if (reads) source.release();
      std::swap(inbox_, arrived_);
      std::swap(parts_, arrived_parts_);
    }
    copy_arrived();
  }

  void report(LoadReport& report) const {
    report.sent_bytes = sent_;
    report.received_bytes = received_;
    report.buffer_bytes += int64_t(inbox_.size() + arrived_.size());
  }

 private:
  using Messages = std::vector<LoadRanks::Message>;

  void post(const std::vector<size_t>& lots, std::span<std::byte> own) {
    Messages send, receive, pass_on, receive_rest;
    parts_.clear();
    size_t at = 0;  // in the inbox
    for_each_part(lots, [&](int reader, const Lot::Part& part, size_t in_lot) {
      const std::vector<int>& to = part.receivers;
      const auto self = std::find(to.begin(), to.end(), ranks_.rank());
      if (reader == ranks_.rank()) {
        const auto bytes = own.subspan(in_lot, size_t(part.bytes));
        for (size_t i = 0; i < to.size(); ++i) add(send, to[i], slice(bytes, i, to.size()));
      } else if (self != to.end()) {
        const auto bytes = inbox_at(at, size_t(part.bytes));
        const auto mine = size_t(self - to.begin());
        parts_.push_back({&part, at});
        add(receive, reader, slice(bytes, mine, to.size()));
        for (size_t i = 0; i < to.size(); ++i) {
          if (i == mine) continue;
          add(pass_on, to[i], slice(bytes, mine, to.size()));
          add(receive_rest, to[i], slice(bytes, i, to.size()));
        }
        at += size_t(part.bytes);
      }
    });
    for (const Messages* list : {&send, &pass_on})
      for (const LoadRanks::Message& message : *list) sent_ += int64_t(message.bytes.size());
    for (const Messages* list : {&receive, &receive_rest})
      for (const LoadRanks::Message& message : *list) received_ += int64_t(message.bytes.size());
    if (!send.empty() || !receive.empty()) ranks_.post(std::move(send), std::move(receive));
    if (!pass_on.empty()) ranks_.post(std::move(pass_on), std::move(receive_rest));
  }

  // Visits the parts that another rank wants; readers keep no others.
  template <typename F>
  void for_each_part(const std::vector<size_t>& lots, F&& call) const {
    for (const size_t number : lots) {
      const Lot& lot = plan_.lots[number];
      size_t in_lot = 0;
      for (const Lot::Part& part : lot.parts) {
        if (part.receivers.empty()) continue;
        call(lot.reader, part, in_lot);
        in_lot += size_t(part.bytes);
      }
    }
  }

  // The i-th of n even slices.
  static std::span<std::byte> slice(std::span<std::byte> bytes, size_t i, size_t n) {
    const size_t begin = bytes.size() * i / n;
    return bytes.subspan(begin, bytes.size() * (i + 1) / n - begin);
  }
  static void add(Messages& messages, int rank, std::span<std::byte> bytes) {
    if (!bytes.empty()) messages.push_back({rank, bytes});
  }
  // Has its whole size before anything points into it.
  std::span<std::byte> inbox_at(size_t begin, size_t size) {
    if (inbox_.empty()) inbox_.resize(inbox_bytes());
    return std::span(inbox_).subspan(begin, size);
  }
  // The most that any round brings here.
  size_t inbox_bytes() const {
    int64_t most = 0;
    for (const std::vector<size_t>& round : plan_.rounds) {
      int64_t bytes = 0;
      for (const size_t lot : round)
        for (const Lot::Part& part : plan_.lots[lot].parts)
          if (std::binary_search(part.receivers.begin(), part.receivers.end(), ranks_.rank()))
            bytes += part.bytes;
      most = std::max(most, bytes);
    }
    ASHLAR_ASSERT(most <= kMaxLotBytes);
    return size_t(most);
  }

  void copy_arrived() {
    for (const auto& [part, begin] : arrived_parts_)
      copy(*part, std::span(arrived_).subspan(begin, size_t(part->bytes)));
    arrived_parts_.clear();
  }

  void copy(const Lot::Part& part, std::span<const std::byte> bytes) const {
    size_t at = 0;
    for (int64_t chunk = part.chunks.begin; chunk < part.chunks.end; ++chunk) {
      const int64_t size = chunks_.bytes(chunk);
      wanted_.copy(chunk, 0, bytes.subspan(at, size_t(size)));
      at += size_t(padded(size));
    }
  }

  struct Arriving {
    const Lot::Part* part;
    size_t begin;  // in the inbox
  };
  const ChunkNumbers& chunks_;
  const LoadPlan& plan_;
  LoadRanks& ranks_;
  const WantedBytes& wanted_;
  std::vector<std::byte> inbox_, arrived_;       // of this round, of the one before
  std::vector<Arriving> parts_, arrived_parts_;  // likewise
  int64_t sent_ = 0, received_ = 0;
};

void read_all(ChunkReader& source, size_t num_lots) {
  for (size_t lot = 0; lot < num_lots; ++lot) {
    source.next();
    source.release();
  }
}

}  // namespace

LoadReport StepReader::load(std::span<const Piece> destinations, const LoadOptions& options) const {
  const auto start = Clock::now();
  LoadRanks& ranks = this->ranks();
  LoadReport report;
  throw_first(ranks, failure_of(0, [&] {
                check_cover(*this, destinations, options, ranks.rank(), ranks.size());
                report = match(*this, destinations, options);
              }));
  const ChunkNumbers chunks(index_);
  const WantedBytes wanted(*this, chunks, destinations);
  const SharedWantedBytes shared(ranks, wanted);
  const LoadPlan plan = make_load_plan(chunks, wants_of_all(ranks, wanted.ranges()));
  Rounds rounds(chunks, plan, ranks, wanted);
  std::optional<LoadFailure> failure;
  {
    const ChunkReader::Lots lots = lots_of(plan, ranks, reads_, wanted);
    ChunkReader source(*this, chunks, lots, {.reads_in_flight = options.reads_in_flight},
                       [&](int64_t chunk, int64_t at, std::span<const std::byte> bytes) {
                         shared.copy(chunk, at, bytes);
                       });
    if (ranks.shares_memory())
      read_all(source, lots.size());
    else
      rounds.run(source);
    if (const auto failures = source.failures(); !failures.empty()) failure = failures.front();
    report.bytes_read = source.bytes_read();
    report.buffer_bytes = source.buffer_bytes();
  }
  throw_first(ranks, failure);
  rounds.report(report);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace ashlar::checkpoint
