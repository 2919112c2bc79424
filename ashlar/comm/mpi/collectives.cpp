// How it works.  The six native operations go through four steps; the others use rounds_.
//
//   meet     runs the operation as rounds on meta (meetings_): the first round is exchanged without
//            payload, the others are only counted.  The borders of chunks stay in the scratch.
//   post     starts MPI's non-blocking collective on the group's communicator, in a turn
//   finish   polls, a turn for each poll, so that other lanes come in between
//   errors   wait_a_little polls on for up to a second: MPI may still write into the tensors
#include "ashlar/comm/mpi/collectives.h"

#include <sched.h>

#include <algorithm>
#include <climits>

#include "ashlar/comm/group.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/copy_bytes.h"

namespace ashlar::comm {
namespace {

// How long a failing rank waits for collectives that MPI has begun.
constexpr double kGrace_s = 1;

bool is_native(Op op) {
  return op != Op::kSendReceive && op != Op::kBarrier;
}

// Types that are not summed are sent as integers of their width.
MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kF32:
      return MPI_FLOAT;
    default:
      break;
  }
  switch (size_of(dtype)) {
    case 1:
      return MPI_UINT8_T;
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

void require_int(const Operation& op, const Header& header) {
  const int64_t most = std::max(op.in.numel(), op.out.numel());
  ASHLAR_REQUIRE(most <= INT_MAX, kConfig,
                 "{} has {} elements, but a collective of MPI takes at most {}; lower "
                 "parallel.bucket_bytes, or choose parallel.collectives = exact",
                 title_of(header), most, INT_MAX);
}

}  // namespace

class MpiCollectives::Meeting final : public Transport {
 public:
  explicit Meeting(Rounds& rounds) : rounds_(rounds) {}
  void exchange(const Round& round) override {
    if (round.header.step > 0) return;
    rounds_.transport->exchange(
        {round.header, round.sends, round.receives, round.timeout_s, rounds_.awaited()});
  }
  void interrupt() override {}  // the transport is interrupted itself

 private:
  Rounds& rounds_;
};

MpiCollectives::MpiCollectives(MpiEngine& engine, std::unique_ptr<Transport> transport,
                               Buffer staging, double timeout_s)
    : engine_(engine),
      rounds_(std::move(transport), std::move(staging), timeout_s),
      meetings_(std::make_unique<Meeting>(rounds_), Buffer(), timeout_s),
      timeout_s_(timeout_s) {
  meetings_.meets_on_meta = true;
}

// Making a communicator blocks all lanes of this rank, so the ranks meet before they begin.
void MpiCollectives::enter(Group& group) {
  if (engine_.has_communicator(group)) return;
  group.barrier("communicator").wait();
  engine_.make_communicator(group);
}

void MpiCollectives::interrupt() {
  interrupted_ = true;
  rounds_.interrupt();
}

Moved MpiCollectives::run(const Operation& operation, const Header& header,
                          std::span<const int> world_ranks, int rank) {
  if (!is_native(operation.op)) return rounds_.run(operation, header, world_ranks, rank);
  require_int(operation, header);
  Moved moved = meet(operation, header, world_ranks, rank);
  moved.rounds = 1;  // the meeting; MPI's own messages are not counted
  try {
    {
      const std::lock_guard turn(engine_.turn());
      post(operation, engine_.communicator(*operation.group), rank);
    }
    if (gathers_apart(operation, rank)) {
      const Tensor& in = operation.in;
      copy_bytes(place_of(operation, rank), in.data, size_t(in.bytes()));
    }
    finish(header, world_ranks, rank);
  } catch (...) {
    wait_a_little();
    throw;
  }
  return moved;
}

Moved MpiCollectives::meet(const Operation& operation, const Header& header,
                           std::span<const int> world_ranks, int rank) {
  planned_ = operation;
  for (Tensor* tensor : {&planned_.in, &planned_.out}) {
    tensor->data = nullptr;
    tensor->device = Device::kMeta;
  }
  const Moved moved = meetings_.run(planned_, header, world_ranks, rank);
  lay_out_counts(operation);
  return moved;
}

// Makes MPI's counts and displacements from the borders of chunks that the meeting found.
void MpiCollectives::lay_out_counts(const Operation& operation) {
  const auto copy = [](const std::vector<int64_t>& borders, std::vector<int>& counts,
                       std::vector<int>& begins) {
    counts.clear();
    begins.clear();
    for (size_t i = 0; i + 1 < borders.size(); ++i) {
      begins.push_back(int(borders[i]));
      counts.push_back(int(borders[i + 1] - borders[i]));
    }
  };
  copy(meetings_.scratch.begins, counts_, begins_);
  if (operation.op == Op::kAllToAll)
    copy(meetings_.scratch.receive_begins, receive_counts_, receive_begins_);
}

MPI_Request* MpiCollectives::next() {
  requests_.push_back(MPI_REQUEST_NULL);
  return &requests_.back();
}

void MpiCollectives::post(const Operation& op, MPI_Comm comm, int rank) {
  requests_.clear();
  const MPI_Datatype type = type_of(op.in.dtype);
  const auto length = int(op.in.numel());
  const void* in = op.in.data == op.out.data ? MPI_IN_PLACE : op.in.data;
  switch (op.op) {
    case Op::kAllReduce:
      return check_mpi(
          MPI_Iallreduce(in, op.out.data, length, type, engine_.sum_of(op.in.dtype), comm, next()),
          "MPI_Iallreduce");
    case Op::kReduceScatter:
      return reduce_chunks(op, comm, rank);
    case Op::kAllGather:
      if (gathers_apart(op, rank)) return gather_apart(op, comm, rank);
      return check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, length, type, op.out.data, counts_.data(),
                                       begins_.data(), type, comm, next()),
                       "MPI_Iallgatherv");
    case Op::kBroadcast:
      return check_mpi(MPI_Ibcast(op.in.data, length, type, op.root, comm, next()), "MPI_Ibcast");
    case Op::kReduce:
      return check_mpi(MPI_Ireduce(rank == op.root ? in : op.in.data, op.out.data, length, type,
                                   engine_.sum_of(op.in.dtype), op.root, comm, next()),
                       "MPI_Ireduce");
    case Op::kAllToAll:
      return check_mpi(
          MPI_Ialltoallv(apart(op), counts_.data(), begins_.data(), type, op.out.data,
                         receive_counts_.data(), receive_begins_.data(), type, comm, next()),
          "MPI_Ialltoallv");
    case Op::kSendReceive:
    case Op::kBarrier:
      break;
  }
  ASHLAR_ASSERT(false && "goes by rounds");
}

std::byte* MpiCollectives::place_of(const Operation& op, int rank) const {
  return op.out.data + begins_[size_t(rank)] * size_of(op.out.dtype);
}

bool MpiCollectives::gathers_apart(const Operation& op, int rank) const {
  return op.op == Op::kAllGather && op.in.data != place_of(op, rank);
}

// Sends the input to every other rank, as an MPI_Ialltoallv with nothing for this one: Open MPI's
// MPI_Iallgatherv would copy this rank's own chunk in line with the messages, and the caller copies
// it while they move.
void MpiCollectives::gather_apart(const Operation& op, MPI_Comm comm, int rank) {
  const MPI_Datatype type = type_of(op.in.dtype);
  receive_counts_ = counts_;
  send_counts_.assign(counts_.size(), int(op.in.numel()));
  receive_counts_[size_t(rank)] = send_counts_[size_t(rank)] = 0;
  send_begins_.assign(counts_.size(), 0);
  check_mpi(MPI_Ialltoallv(op.in.data, send_counts_.data(), send_begins_.data(), type, op.out.data,
                           receive_counts_.data(), begins_.data(), type, comm, next()),
            "MPI_Ialltoallv");
}

// The input of an all_to_all, or a copy of it if the operation is in place: in Open MPI 4.1
// MPI_Ialltoallv with MPI_IN_PLACE does not end.
const std::byte* MpiCollectives::apart(const Operation& op) {
  if (op.in.data != op.out.data) return op.in.data;
  copy_.assign(op.in.data, op.in.data + op.in.bytes());
  return copy_.data();
}

// Posts one MPI_Ireduce for each chunk, to its rank, all at once.  MPI's own reduce_scatter cannot
// write the sum to its place within the input.
void MpiCollectives::reduce_chunks(const Operation& op, MPI_Comm comm, int rank) {
  requests_.reserve(counts_.size());
  for (int root = 0; root < int(counts_.size()); ++root) {
    const std::byte* chunk = op.in.data + begins_[size_t(root)] * size_of(op.in.dtype);
    const bool in_place = root == rank && op.out.data == chunk;
    check_mpi(MPI_Ireduce(in_place ? MPI_IN_PLACE : chunk, root == rank ? op.out.data : nullptr,
                          counts_[size_t(root)], type_of(op.in.dtype), engine_.sum_of(op.in.dtype),
                          root, comm, next()),
              "MPI_Ireduce");
  }
}

void MpiCollectives::finish(const Header& header, std::span<const int> world_ranks, int rank) {
  const auto start = Clock::now();
  while (!poll()) {
    if (const double waited_s = awaited().seconds_since(start); waited_s > timeout_s_) {
      std::vector<int> others(world_ranks.begin(), world_ranks.end());
      others.erase(others.begin() + rank);
      throw LateError(header, waited_s, {}, others);
    }
    sched_yield();
  }
}

bool MpiCollectives::poll() {
  const std::unique_lock turn(engine_.turn(), std::try_to_lock);
  if (!turn) return false;
  int ended = 0;
  check_mpi(MPI_Testall(int(requests_.size()), requests_.data(), &ended, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  if (!ended) engine_.require_going_on(interrupted_, [] { return std::nullopt; });
  return ended != 0;
}

void MpiCollectives::wait_a_little() noexcept {
  for (const auto start = Clock::now(); seconds_since(start) < kGrace_s; sched_yield()) {
    const std::lock_guard turn(engine_.turn());
    int ended = 0;
    if (MPI_Testall(int(requests_.size()), requests_.data(), &ended, MPI_STATUSES_IGNORE) !=
            MPI_SUCCESS ||
        ended)
      return;
  }
}

}  // namespace ashlar::comm
