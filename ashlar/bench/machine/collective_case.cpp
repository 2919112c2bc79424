#include "ashlar/bench/machine/collective_case.h"

#include <algorithm>
#include <numeric>

namespace ashlar::bench {

using machine::CollectiveOp;
using enum machine::CollectiveOp;

namespace {

// Whether S is made of one part a rank, and a rank gives one part or one for each rank.
bool has_parts(CollectiveOp op) {
  return op == kAllGather || op == kReduceScatter || op == kAllToAll || op == kAllToAllV ||
         op == kGather || op == kScatter;
}

}  // namespace

bool CollectiveCase::exists(CollectiveOp op, bool in_place) {
  switch (op) {
    case kAllReduce:
    case kAllGather:
    case kReduceScatter:
    case kAllToAll:
    case kReduce:
      return true;
    case kBroadcast:  // has one tensor
      return in_place;
    default:
      return !in_place;
  }
}

bool CollectiveCase::has_root(CollectiveOp op) {
  return op == kBroadcast || op == kReduce || op == kGather || op == kScatter;
}

CollectiveCase::CollectiveCase(Allocator& allocator, comm::Group& group, CollectiveOp op,
                               DType dtype, int64_t bytes, bool in_place, int root, int64_t offset)
    : group_(group), op_(op), in_place_(in_place), root_(root % group.size()) {
  constexpr int64_t kPartBytes = 16;
  const int n = group.size(), me = group.rank();
  if (has_parts(op)) {
    const int64_t part = std::max(bytes / n / kPartBytes * kPartBytes, kPartBytes);
    count_ = part / size_of(dtype);
    bytes_ = part * n;
  } else if (op != kBarrier) {
    count_ = std::max<int64_t>(bytes / size_of(dtype), 1);
    bytes_ = count_ * size_of(dtype);
  }
  const int64_t whole = std::max<int64_t>(has_parts(op) ? n * count_ : count_, 1);
  owned_in_ = make_tensor(allocator, dtype, {offset + whole}, Tag::kInput);
  owned_out_ = make_tensor(allocator, dtype, {offset + whole}, Tag::kInput);
  in_ = owned_in_.tensor.slice(offset, offset + whole);
  out_ = owned_out_.tensor.slice(offset, offset + whole);
  for (int peer = 0; op == kAllToAllV && peer < n; ++peer) {
    send_counts_.push_back(part_of(me, peer));
    receive_counts_.push_back(part_of(peer, me));
    // Uneven parts add up to the whole or, where they are rounded down, to less.
    bytes_ = peer == 0 ? 0 : bytes_;
    bytes_ = std::max(bytes_, begin_of(peer, n) * size_of(dtype));
  }
  const Tensor first = slot(in_, 0), first_out = slot(out_, 0);
  if (op == kGather) {
    sends_ = {{root_, first}};
    for (int peer = 0; me == root_ && peer < n; ++peer)
      receives_.push_back({peer, slot(out_, peer)});
  } else if (op == kScatter) {
    for (int peer = 0; me == root_ && peer < n; ++peer) sends_.push_back({peer, slot(in_, peer)});
    receives_ = {{root_, first_out}};
  } else if (op == kSendReceive) {  // to the next rank of a ring
    sends_ = {{(me + 1) % n, first}};
    receives_ = {{(me + n - 1) % n, first_out}};
  }
}

int64_t CollectiveCase::part_of(int from, int to) const {
  const int n = group_.size();
  return 2 * count_ * ((from + to) % n + 1) / (n + 1);
}

int64_t CollectiveCase::begin_of(int from, int to) const {
  int64_t begin = 0;
  for (int peer = 0; peer < to; ++peer) begin += part_of(from, peer);
  return begin;
}

Tensor CollectiveCase::slot(const Tensor& whole, int64_t rank) const {
  return whole.slice(rank * count_, (rank + 1) * count_);
}

void CollectiveCase::fill(uint64_t seed) {
  if (op_ == kBarrier) return;
  const ExactData data{seed, group_.size()}, other{seed + 1000, group_.size()};
  const int me = group_.rank();
  other.fill(out_, me);
  if (op_ == kAllGather) {
    data.fill(in_place_ ? slot(out_, me) : slot(in_, 0), me);
  } else if (op_ == kBroadcast) {
    data.fill(in_, root_);
    if (me != root_) other.fill(in_, me);
  } else {
    data.fill(in_, me);
  }
}

comm::Work CollectiveCase::start() {
  const Tensor &in = in_, &out = out_;
  const int me = group_.rank();
  constexpr std::string_view kLabel = "measured";
  switch (op_) {
    case kAllReduce:
      return group_.all_reduce(in, in_place_ ? in : out, kLabel);
    case kReduceScatter:
      return group_.reduce_scatter(in, in_place_ ? slot(in, me) : slot(out, 0), kLabel);
    case kAllGather:
      return group_.all_gather(in_place_ ? slot(out, me) : slot(in, 0), out, kLabel);
    case kBroadcast:
      return group_.broadcast(in, root_, kLabel);
    case kReduce:
      return group_.reduce(in, in_place_ ? in : out, root_, kLabel);
    case kAllToAll:
      return group_.all_to_all(in, in_place_ ? in : out, kLabel);
    case kAllToAllV: {
      const auto sum = [](const std::vector<int64_t>& counts) {
        return std::accumulate(counts.begin(), counts.end(), int64_t{0});
      };
      return group_.all_to_all(in.slice(0, sum(send_counts_)), out.slice(0, sum(receive_counts_)),
                               kLabel, send_counts_, receive_counts_);
    }
    case kGather:
    case kScatter:
    case kSendReceive:
      return group_.send_receive(sends_, receives_, kLabel);
    case kBarrier:
      break;
  }
  return group_.barrier(kLabel);
}

int64_t CollectiveCase::num_wrong(uint64_t seed) const {
  const ExactData data{seed, group_.size()};
  const int n = group_.size(), me = group_.rank();
  const Tensor& result = in_place_ && op_ != kAllGather ? in_ : out_;
  int64_t wrong = 0;
  switch (op_) {
    case kAllReduce:
      return data.num_wrong_sums(result);
    case kReduce:
      return me == root_ ? data.num_wrong_sums(result) : 0;
    case kReduceScatter:
      return data.num_wrong_sums(slot(result, in_place_ ? me : 0), me * count_);
    case kAllGather:
      for (int rank = 0; rank < n; ++rank) wrong += data.num_wrong_copies(slot(result, rank), rank);
      return wrong;
    case kBroadcast:
      return data.num_wrong_copies(result, root_);
    case kAllToAll:
      for (int rank = 0; rank < n; ++rank)
        wrong += data.num_wrong_copies(slot(result, rank), rank, me * count_);
      return wrong;
    case kAllToAllV:
      for (int64_t rank = 0, at = 0; rank < n; at += part_of(int(rank++), me))
        wrong += data.num_wrong_copies(result.slice(at, at + part_of(int(rank), me)), rank,
                                       begin_of(int(rank), me));
      return wrong;
    case kGather:
      for (int rank = 0; me == root_ && rank < n; ++rank)
        wrong += data.num_wrong_copies(slot(result, rank), rank);
      return wrong;
    case kScatter:
      return data.num_wrong_copies(slot(result, 0), root_, me * count_);
    case kSendReceive:
      return data.num_wrong_copies(result, (me + n - 1) % n);
    case kBarrier:
      break;
  }
  return 0;
}

}  // namespace ashlar::bench
