// How it works.  An operation fills lists of sends and receives; `exchange` runs them as one round.
//
//   all_reduce       sum_chunk into this rank's chunk of out, then gather_chunks
//   reduce_scatter   sum_chunk into out
//   all_gather       a copy of this rank's chunk, then gather_chunks
//   reduce           sum_chunk, and after every slice a round that sends its sum to the root
//   broadcast        one round from the root, one among the others
//   all others       one round; all_to_all in place one for each slice
//
// sum_chunk takes one slice of every chunk at a time.  The owner of a chunk receives a contribution
// from each other rank into a part of the staging memory, and adds them to its own.  The remaining
// part of the staging memory holds the sum of `reduce`.
//
// Partners must meet in the same rounds.  Ranks therefore count the slices of the longest chunk,
// and send empty messages after the end of shorter ones.  Operations in place are safe because a
// round ends only when its sends have been taken: data that is overwritten afterwards has been
// sent.
#include "ashlar/comm/collectives.h"

#include <algorithm>
#include <cstring>

#include "ashlar/comm/rounds_of.h"
#include "ashlar/comm/sum.h"

namespace ashlar::comm {
namespace {

// On meta no data waits in staging memory.  There all slices go in one round, which has the same
// bytes: a world of a thousand ranks would have millions of slices.  count_rounds() counts them.
constexpr int64_t kUnsliced = INT64_MAX / 2;

// Appends the `pieces` + 1 borders of even pieces.
void even_borders(std::vector<int64_t>& begins, int64_t elements, int pieces) {
  begins.clear();
  for (int64_t i = 0; i <= pieces; ++i) begins.push_back(elements * i / pieces);
}

void borders(std::vector<int64_t>& begins, std::span<const int64_t> counts, int64_t elements,
             int size) {
  if (counts.empty()) return even_borders(begins, elements, size);
  begins.assign(1, 0);
  for (const int64_t count : counts) begins.push_back(begins.back() + count);
}

// Keeps the list in the order of peers, as Round requires, and messages of one peer in the order of
// the calls.
void insert(std::vector<Message>& messages, const Message& message) {
  if (messages.empty() || messages.back().peer <= message.peer) return messages.push_back(message);
  const auto place = std::upper_bound(messages.begin(), messages.end(), message.peer,
                                      [](int peer, const Message& m) { return peer < m.peer; });
  messages.insert(place, message);
}

std::byte* at(const Tensor& tensor, int64_t element) {
  return tensor.data ? tensor.data + element * size_of(tensor.dtype) : nullptr;
}

bool on_meta(const Operation& op) {
  if (!op.sends.empty()) return op.sends[0].data.device == Device::kMeta;
  if (!op.receives.empty()) return op.receives[0].data.device == Device::kMeta;
  return op.in.device == Device::kMeta;
}

}  // namespace

Collective::Collective(Rounds& lane, const Operation& operation, const Header& header,
                       std::span<const int> world_ranks, int rank)
    : lane_(lane),
      op_(operation),
      header_(header),
      world_ranks_(world_ranks),
      rank_(rank),
      size_(int(world_ranks.size())),
      meta_(on_meta(operation)),
      counts_alone_(meta_ && !lane.meets_on_meta),
      width_(size_of(operation.in.dtype)),
      staging_bytes_(lane.staging.size_bytes()),
      part_bytes_(slice_bytes(size_, staging_bytes_)),
      slice_(meta_ ? kUnsliced : part_bytes_ / width_),
      begins_(lane.scratch.begins) {
  lane_.scratch.sends.clear();
  lane_.scratch.receives.clear();
}

Moved Rounds::run(const Operation& operation, const Header& header,
                  std::span<const int> world_ranks, int rank) {
  return Collective(*this, operation, header, world_ranks, rank).run();
}

Moved Collective::run() {
  switch (op_.op) {
    case Op::kAllReduce:
      all_reduce();
      break;
    case Op::kReduceScatter:
      reduce_scatter();
      break;
    case Op::kAllGather:
      all_gather();
      break;
    case Op::kBroadcast:
      broadcast();
      break;
    case Op::kReduce:
      reduce();
      break;
    case Op::kAllToAll:
      in_place() ? all_to_all_in_place() : all_to_all();
      break;
    case Op::kSendReceive:
      send_receive();
      break;
    case Op::kBarrier:
      barrier();
      break;
  }
  moved_.rounds = count_rounds();
  return moved_;
}

// The number of rounds of the operation, which is the same on all its ranks.
int64_t Collective::count_rounds() const {
  const bool sums =
      op_.op == Op::kAllReduce || op_.op == Op::kReduceScatter || op_.op == Op::kReduce;
  const int64_t rounds =
      op_.op == Op::kAllToAll && in_place()
          ? header_.step
          : rounds_of(op_.op, sums ? longest_chunk() * width_ : 0, size_, staging_bytes_);
  const bool sits_one_out = op_.op == Op::kBroadcast && rank_ == op_.root && size_ > 2;
  ASHLAR_ASSERT(meta_ || rounds == header_.step + sits_one_out);
  return rounds;
}

// In place, this rank's chunk of out is its chunk of in, which no other rank reads; the other
// chunks are overwritten by gather_chunks only, after all of in has been sent.
void Collective::all_reduce() {
  even_borders(begins_, op_.in.numel(), size_);
  const int64_t own = begins_[size_t(rank_)];
  sum_chunk([&](int64_t begin) { return at(op_.out, own + begin); }, [](int64_t) {});
  gather_chunks();
}

void Collective::reduce_scatter() {
  borders(begins_, op_.send_counts, op_.in.numel(), size_);
  sum_chunk([&](int64_t begin) { return at(op_.out, begin); }, [](int64_t) {});
}

void Collective::all_gather() {
  borders(begins_, op_.send_counts, op_.out.numel(), size_);
  copy(at(op_.out, begins_[size_t(rank_)]), op_.in.data, op_.in.bytes());
  gather_chunks();
}

// The root sends one piece of the data to each of the others, which then gather the pieces.  So the
// root sends every byte once.
void Collective::broadcast() {
  even_borders(begins_, op_.in.numel(), size_ - 1);
  const auto piece_of = [&](int rank) { return rank < op_.root ? rank : rank - 1; };
  const auto begin_of = [&](int rank) { return at(op_.in, begins_[size_t(piece_of(rank))]); };
  const auto bytes_of = [&](int rank) { return chunk(piece_of(rank)) * width_; };
  if (rank_ == op_.root) {
    for (int rank = 0; rank < size_; ++rank)
      if (rank != rank_) send(rank, begin_of(rank), bytes_of(rank));
    return exchange();
  }
  receive(op_.root, begin_of(rank_), bytes_of(rank_));
  exchange();
  if (size_ == 2) return;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || rank == op_.root) continue;
    send(rank, begin_of(rank_), bytes_of(rank_));
    receive(rank, begin_of(rank), bytes_of(rank));
  }
  exchange();
}

// Every rank sums its chunk slice by slice, and sends each slice to the root.  In place, the root
// receives into memory that it sent in the round before.
void Collective::reduce() {
  even_borders(begins_, op_.in.numel(), size_);
  const bool is_root = rank_ == op_.root;
  const auto target = [&](int64_t begin) {
    return is_root ? at(op_.out, begins_[size_t(rank_)] + begin) : part(size_ - 1);
  };
  sum_chunk(target, [&](int64_t begin) {
    if (!is_root) send(op_.root, part(size_ - 1), left(chunk(rank_), begin) * width_);
    for (int rank = 0; is_root && rank < size_; ++rank)
      if (rank != rank_)
        receive(rank, at(op_.out, begins_[size_t(rank)] + begin),
                left(chunk(rank), begin) * width_);
    exchange();
  });
}

void Collective::all_to_all() {
  auto& receive_begins = lane_.scratch.receive_begins;
  borders(begins_, op_.send_counts, op_.in.numel(), size_);
  borders(receive_begins, op_.receive_counts, op_.out.numel(), size_);
  for (int rank = 0; rank < size_; ++rank) {
    std::byte* to = at(op_.out, receive_begins[size_t(rank)]);
    const int64_t count = receive_begins[size_t(rank) + 1] - receive_begins[size_t(rank)];
    if (rank == rank_) {
      copy(to, at(op_.in, begins_[size_t(rank)]), count * width_);
    } else {
      send(rank, at(op_.in, begins_[size_t(rank)]), chunk(rank) * width_);
      receive(rank, to, count * width_);
    }
  }
  exchange();
}

// A received message waits in staging memory until the data in its place has been sent.  A pair of
// ranks takes part in as many rounds as its count needs.
void Collective::all_to_all_in_place() {
  borders(begins_, op_.send_counts, op_.in.numel(), size_);
  int64_t largest = 0;
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_) largest = std::max(largest, chunk(rank));
  for (int64_t begin = 0; begin == 0 || begin < largest; begin += slice_) {
    const auto takes_part = [&](int rank) {
      return rank != rank_ && (begin == 0 || begin < chunk(rank));
    };
    const auto bytes_of = [&](int rank) { return left(chunk(rank), begin) * width_; };
    for (int rank = 0; rank < size_; ++rank) {
      if (!takes_part(rank)) continue;
      send(rank, at(op_.in, begins_[size_t(rank)] + begin), bytes_of(rank));
      receive(rank, part(rank), bytes_of(rank));
    }
    exchange();
    for (int rank = 0; rank < size_; ++rank)
      if (takes_part(rank))
        copy(at(op_.in, begins_[size_t(rank)] + begin), part(rank), bytes_of(rank));
  }
}

void Collective::send_receive() {
  size_t own = 0;  // the next receive from this rank itself
  for (const Transfer& transfer : op_.sends) {
    if (transfer.rank != rank_) {
      send(transfer.rank, transfer.data.data, transfer.data.bytes());
      continue;
    }
    while (op_.receives[own].rank != rank_) ++own;
    copy(op_.receives[own++].data.data, transfer.data.data, transfer.data.bytes());
  }
  // Order matters only within one peer: the k-th send meets the k-th receive.
  for (const Transfer& transfer : op_.receives)
    if (transfer.rank != rank_) receive(transfer.rank, transfer.data.data, transfer.data.bytes());
  exchange();
}

void Collective::barrier() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    send(rank, nullptr, 0);
    receive(rank, nullptr, 0);
  }
  exchange();
}

void Collective::sum_chunk(function_ref<std::byte*(int64_t begin)> target,
                           function_ref<void(int64_t begin)> after) {
  if (counts_alone_) {
    count_alone(begins_.back() - chunk(rank_), (size_ - 1) * chunk(rank_));
    return after(0);
  }
  auto& sources = lane_.scratch.sources;
  const int64_t slices = meta_ ? 1 : num_slices(longest_chunk() * width_, size_, staging_bytes_);
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t begin = slice * slice_;
    const int64_t own = left(chunk(rank_), begin);
    sources.clear();  // in order of ranks, which is the order of the sum
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) {
        sources.push_back(at(op_.in, begins_[size_t(rank)] + begin));
        continue;
      }
      send(rank, at(op_.in, begins_[size_t(rank)] + begin), left(chunk(rank), begin) * width_);
      std::byte* here = part(rank < rank_ ? rank : rank - 1);
      receive(rank, here, own * width_);
      sources.push_back(here);
    }
    exchange();
    if (!meta_) sum_in_order(op_.in.dtype, sources, target(begin), own);
    after(begin);
  }
}

void Collective::gather_chunks() {
  if (counts_alone_) return count_alone((size_ - 1) * chunk(rank_), begins_.back() - chunk(rank_));
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    send(rank, at(op_.out, begins_[size_t(rank_)]), chunk(rank_) * width_);
    receive(rank, at(op_.out, begins_[size_t(rank)]), chunk(rank) * width_);
  }
  exchange();
}

// A round on meta among all ranks, of so many elements here: a list of its messages would be long.
void Collective::count_alone(int64_t sent, int64_t received) {
  moved_.sent_bytes += sent * width_;
  moved_.received_bytes += received * width_;
  exchange();
}

int64_t Collective::longest_chunk() const {
  int64_t longest = 0;
  for (int rank = 0; rank < size_; ++rank) longest = std::max(longest, chunk(rank));
  return longest;
}

int64_t Collective::left(int64_t elements, int64_t begin) const {
  return std::clamp<int64_t>(elements - begin, 0, slice_);
}

std::byte* Collective::part(int index) const {
  return meta_ ? nullptr : lane_.staging.data() + index * part_bytes_;
}

void Collective::send(int rank, std::byte* data, int64_t bytes) {
  insert(lane_.scratch.sends, {world_ranks_[size_t(rank)], data, bytes});
  moved_.sent_bytes += bytes;
}

void Collective::receive(int rank, std::byte* data, int64_t bytes) {
  insert(lane_.scratch.receives, {world_ranks_[size_t(rank)], data, bytes});
  moved_.received_bytes += bytes;
}

void Collective::exchange() {
  Rounds::Scratch& scratch = lane_.scratch;
  lane_.transport->exchange(
      {header_, scratch.sends, scratch.receives, lane_.timeout_s, lane_.awaited()});
  ++header_.step;
  scratch.sends.clear();
  scratch.receives.clear();
}

void Collective::copy(std::byte* to, const std::byte* from, int64_t bytes) const {
  if (!meta_ && bytes > 0 && to != from) std::memcpy(to, from, size_t(bytes));
}

}  // namespace ashlar::comm
