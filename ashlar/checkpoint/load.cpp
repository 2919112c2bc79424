// How it works.  StepReader::load, on every rank of the exchange (one, where a rank loads alone):
//
//   match, check_cover  throw, on all ranks alike, before a byte is written to a destination
//   Transfer            the common part of one stored box and one destination box, as runs that are
//                       contiguous in both; it copies what any one chunk has of them
//   Needs               which chunks have bytes of which transfers: what this rank wants
//   make_load_plan      who reads which chunks, and the rounds (load_plan.h); from the wants of all
//   ChunkReader         this rank's share of the chunks, read ahead on threads of its own, which
//                       also copy what this rank wants of them, block by block
//   Rounds              lot by lot to the ranks that want it.  Ranks of one process copy what they
//                       want out of the lot itself; for others a round moves the lot, while what
//                       the one before brought is copied
//
// So each chunk that somebody wants is read and checked once, in the order of files, and no other.
// A rank that finds damage goes on with the rounds, without reading, and says so at the end: nobody
// waits for it in vain, and the damage that is told is the first in the order of files.
//   Memory: 36 MiB of lots, which is four of 8 MiB, two of at most 12 MiB that take what comes from
// others, and a block for each read in flight: 64 MiB.  Ranks of one process have lots instead of
// the two.  Who reads alone keeps no chunk: 32 MiB.
#include <algorithm>
#include <cstring>

#include "ashlar/checkpoint/boxes.h"
#include "ashlar/checkpoint/chunk_reader.h"
#include "ashlar/checkpoint/load_plan.h"
#include "ashlar/checkpoint/match.h"
#include "ashlar/checkpoint/step_reader.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/copy_bytes.h"

namespace ashlar::checkpoint {
namespace {

// The common part of a stored box and a destination.
class Transfer {
 public:
  Transfer(const IndexBox& stored, DType from, const Box& part, const Piece& destination)
      : begin_(stored.byte_offset),
        from_(from),
        to_(destination.data),
        runs_(part, stored.box, destination.box) {}

  // Takes what the bytes from `offset` of the file on have of it; any bytes, in any order.
  void copy(std::span<const std::byte> bytes, int64_t offset) const {
    const int64_t end = offset + int64_t(bytes.size());
    Runs runs = runs_;
    for (runs.seek(element_at(offset)); !runs.done() && begin_of(runs) < end; runs.next()) {
      const int64_t first = std::max(begin_of(runs), offset);
      const int64_t last = std::min(begin_of(runs) + run_bytes(), end);
      copy_run(bytes.data() + (first - offset), last - first,
               runs.to() + (first - begin_of(runs)) / size_of(from_));
    }
  }

  // How many of the bytes [offset, end) of the file it takes.
  int64_t bytes_between(int64_t offset, int64_t end) const {
    int64_t bytes = 0;
    Runs runs = runs_;
    for (runs.seek(element_at(offset)); !runs.done() && begin_of(runs) < end; runs.next())
      bytes += std::min(begin_of(runs) + run_bytes(), end) - std::max(begin_of(runs), offset);
    return bytes;
  }

  // Calls with the number of every chunk of the file that has bytes of it, ascending.
  template <typename F>
  void for_each_chunk(F&& call) const {
    int64_t next = 0;
    for (Runs runs = runs_; !runs.done(); runs.seek(element_at(next << kChunkLog2))) {
      const int64_t last = (begin_of(runs) + run_bytes() - 1) >> kChunkLog2;
      for (next = std::max(next, begin_of(runs) >> kChunkLog2); next <= last; ++next) call(next);
    }
  }

 private:
  // Of the stored box.  Offsets in it, chunks and their blocks end on whole elements.
  int64_t element_at(int64_t file_offset) const {
    return std::max<int64_t>(0, file_offset - begin_) / size_of(from_);
  }
  int64_t begin_of(const Runs& runs) const { return begin_ + runs.from() * size_of(from_); }
  int64_t run_bytes() const { return runs_.length() * size_of(from_); }
  void copy_run(const std::byte* source, int64_t bytes, int64_t to) const {
    const int64_t count = bytes / size_of(from_);
    std::byte* target = to_.data + to * size_of(to_.dtype);
    if (from_ == to_.dtype) {
      copy_bytes(target, source, size_t(bytes));
      return;
    }
    Tensor in{const_cast<std::byte*>(source), from_, Device::kCpu, Shape{count}};
    copy_convert(in, Tensor{target, to_.dtype, Device::kCpu, Shape{count}});
  }

  int64_t begin_;
  DType from_;
  Tensor to_;
  Runs runs_;
};

// What a rank wants, chunk by chunk.
class Needs {
 public:
  Needs(const StepReader& reader, const ChunkNumbers& chunks, std::span<const Piece> destinations)
      : chunks_(chunks) {
    for (const Piece& piece : destinations) {
      const IndexTensor* stored = reader.find(piece.logical.name);
      if (!stored) continue;  // allowed to be missing
      for (const IndexBox& box : boxes_near(*stored, piece.box))
        if (const auto part = intersect(box.box, piece.box))
          add(box.file, Transfer(box, stored->logical.dtype, *part, piece));
    }
    std::sort(uses_.begin(), uses_.end());
  }

  // Numbers of chunks, ascending.
  std::vector<ChunkRange> ranges() const {
    std::vector<ChunkRange> ranges;
    for (const auto& [chunk, transfer] : uses_) {
      if (ranges.empty() || chunk > ranges.back().end) ranges.push_back({chunk, chunk});
      ranges.back().end = chunk + 1;
    }
    return ranges;
  }

  // Bytes of a chunk from `at` on.  From any thread, each byte once.
  void copy(int64_t chunk, int64_t at, std::span<const std::byte> bytes) const {
    const int64_t offset = begin_of(chunk) + at;
    for_each_use(chunk, [&](const Transfer& transfer) { transfer.copy(bytes, offset); });
  }

  // All but what stands between tensors, and a little that another load reads again.
  bool nearly_whole(int64_t chunk) const {
    const int64_t begin = begin_of(chunk), size = chunks_.bytes(chunk);
    int64_t wanted = 0;
    for_each_use(chunk, [&](const Transfer& transfer) {
      wanted += transfer.bytes_between(begin, begin + size);
    });
    return wanted >= size - size / 16;
  }

 private:
  int64_t begin_of(int64_t chunk) const {  // in its file
    return (chunk - chunks_.first(chunks_.file(chunk))) * kChunkBytes;
  }
  template <typename F>
  void for_each_use(int64_t chunk, F&& call) const {
    for (auto use = std::lower_bound(uses_.begin(), uses_.end(), std::pair(chunk, uint32_t(0)));
         use != uses_.end() && use->first == chunk; ++use)
      call(transfers_[use->second]);
  }
  void add(size_t file, const Transfer& transfer) {
    const auto number = uint32_t(transfers_.size());
    transfers_.push_back(transfer);
    transfer.for_each_chunk(
        [&](int64_t chunk) { uses_.emplace_back(chunks_.first(file) + chunk, number); });
  }

  const ChunkNumbers& chunks_;
  std::vector<Transfer> transfers_;
  std::vector<std::pair<int64_t, uint32_t>> uses_;  // chunk, transfer
};

std::vector<std::vector<ChunkRange>> wants_of_all(Exchange& ranks,
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
ChunkReader::Lots lots_of(const LoadPlan& plan, int rank, Reads reads, const Needs& needs) {
  ChunkReader::Lots lots;
  for (const Lot& lot : plan.lots) {
    if (lot.reader != rank) continue;
    lots.emplace_back();
    for (const Lot::Part& part : lot.parts)
      for (int64_t chunk = part.chunks.begin; chunk < part.chunks.end; ++chunk) {
        const bool direct = reads == Reads::kDirect ||
                            (reads == Reads::kDirectIfWhole && needs.nearly_whole(chunk));
        lots.back().push_back({{chunk, chunk + 1}, !part.receivers.empty(), direct});
      }
  }
  return lots;
}

// Moves the lots of one round after the other.
class Rounds {
 public:
  Rounds(const ChunkNumbers& chunks, const LoadPlan& plan, Exchange& ranks, const Needs& needs)
      : chunks_(chunks), plan_(plan), ranks_(ranks), needs_(needs) {}

  void run(ChunkReader& source) {
    for (size_t round = 0; round < plan_.rounds.size(); ++round) {
      std::span<std::byte> own;
      bool reads = false;
      for (const size_t lot : plan_.rounds[round]) reads |= plan_.lots[lot].reader == ranks_.rank();
      if (reads) own = source.next();
      if (ranks_.shares_memory())
        post_in_place(plan_.rounds[round], own);
      else
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
  using Messages = std::vector<Exchange::Message>;

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
      for (const Exchange::Message& message : *list) sent_ += int64_t(message.bytes.size());
    for (const Messages* list : {&receive, &receive_rest})
      for (const Exchange::Message& message : *list) received_ += int64_t(message.bytes.size());
    if (!send.empty() || !receive.empty()) ranks_.post(std::move(send), std::move(receive));
    if (!pass_on.empty()) ranks_.post(std::move(pass_on), std::move(receive_rest));
  }

  // Each receiver copies what it wants out of the reader's lot.
  void post_in_place(const std::vector<size_t>& lots, std::span<std::byte> own) {
    Messages send;
    std::vector<Exchange::Taking> takings;
    for_each_part(lots, [&](int reader, const Lot::Part& part, size_t in_lot) {
      const std::vector<int>& to = part.receivers;
      if (reader == ranks_.rank())
        for (const int rank : to) add(send, rank, own.subspan(in_lot, size_t(part.bytes)));
      else if (std::binary_search(to.begin(), to.end(), ranks_.rank()))
        takings.push_back({reader, part.bytes,
                           [this, &part](std::span<const std::byte> bytes) { copy(part, bytes); }});
    });
    for (const Exchange::Message& message : send) sent_ += int64_t(message.bytes.size());
    for (const Exchange::Taking& taking : takings) received_ += taking.bytes;
    if (!send.empty() || !takings.empty())
      ranks_.post_in_place(std::move(send), std::move(takings));
  }

  // Those that somebody else wants: the others their readers did not keep.
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
      needs_.copy(chunk, 0, bytes.subspan(at, size_t(size)));
      at += size_t(padded(size));
    }
  }

  struct Arriving {
    const Lot::Part* part;
    size_t begin;  // in the inbox
  };
  const ChunkNumbers& chunks_;
  const LoadPlan& plan_;
  Exchange& ranks_;
  const Needs& needs_;
  std::vector<std::byte> inbox_, arrived_;       // of this round, of the one before
  std::vector<Arriving> parts_, arrived_parts_;  // likewise
  int64_t sent_ = 0, received_ = 0;
};

}  // namespace

LoadReport StepReader::load(std::span<const Piece> destinations, const LoadOptions& options) const {
  const auto start = Clock::now();
  Exchange& ranks = this->ranks();
  LoadReport report;
  throw_first(ranks, failure_of(0, [&] {
                check_cover(*this, options, ranks.rank(), ranks.size());
                report = match(*this, destinations, options);
              }));
  const ChunkNumbers chunks(index_);
  const Needs needs(*this, chunks, destinations);
  const LoadPlan plan = make_load_plan(chunks, wants_of_all(ranks, needs.ranges()));
  Rounds rounds(chunks, plan, ranks, needs);
  std::optional<Failure> failure;
  {
    ChunkReader source(*this, chunks, lots_of(plan, ranks.rank(), reads_, needs),
                       {.reads_in_flight = options.reads_in_flight,
                        .buffer_bytes = (ranks.shares_memory() ? 5 : 3) * kMaxLotBytes},
                       [&](int64_t chunk, int64_t at, std::span<const std::byte> bytes) {
                         needs.copy(chunk, at, bytes);
                       });
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
