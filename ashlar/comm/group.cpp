// How it works.  An operation goes through two threads:
//
//   caller          a public function checks the tensors and makes the Operation; submit sets its
//                   traffic row and number, records its post, shows it in the pulse, and passes it
//                   to the executor of its lane
//   lane's thread   execute makes the header, which partners compare, and lets the runner move the
//                   data; count adds to the row; the beginning and the end are recorded
//   caller          Work::wait adds its waiting time to the row and records the wait
//
// Rows keep their addresses (they are nodes of a map), so that an operation can point at its row;
// traffic_mutex_ guards their contents.  Only the submitting thread writes the other members.
#include "ashlar/comm/group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

#include "ashlar/comm/rounds.h"
#include "ashlar/comm/sum.h"
#include "ashlar/comm/world.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/rng.h"

namespace ashlar::comm {
namespace {

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

bool disjoint(const Tensor& a, const Tensor& b) {
  return a.bytes() == 0 || b.bytes() == 0 || a.data + a.bytes() <= b.data ||
         b.data + b.bytes() <= a.data;
}

// Asserts that chunk `rank` of `whole` is as long as `own`, and is the same memory or disjoint.
void assert_chunk(const Tensor& whole, const Tensor& own, int rank, int size,
                  std::span<const int64_t> counts) {
  ASHLAR_ASSERT(counts.empty() || int(counts.size()) == size);
  const int64_t total = whole.numel();
  const int64_t begin = counts.empty() ? total * rank / size : sum_of(counts.first(size_t(rank)));
  const int64_t end = counts.empty() ? total * (rank + 1) / size : begin + counts[size_t(rank)];
  ASHLAR_ASSERT(counts.empty() || sum_of(counts) == total);
  ASHLAR_ASSERT(whole.dtype == own.dtype && whole.device == own.device);
  ASHLAR_ASSERT(own.numel() == end - begin);
  ASHLAR_ASSERT(!whole.data || own.data == whole.data + begin * size_of(whole.dtype) ||
                disjoint(whole, own));
}

void assert_same_or_apart(const Tensor& in, const Tensor& out) {
  ASHLAR_ASSERT(in.dtype == out.dtype && in.device == out.device && in.numel() == out.numel());
  ASHLAR_ASSERT(in.data == out.data || disjoint(in, out));
}

template <size_t kSize>
void copy_text(char (&to)[kSize], std::string_view text) {  // truncated; the rest stays zero
  std::memcpy(to, text.data(), std::min(kSize, text.size()));
}

// In a group of one the contribution is the result.
void copy_alone(const CopyHere& copy, const Operation& op) {
  ASHLAR_ASSERT(op.sends.size() == op.receives.size());
  for (size_t i = 0; i < op.sends.size(); ++i) copy(op.sends[i].data, op.receives[i].data);
  if (op.in.data != op.out.data && op.out.numel() > 0) copy(op.in, op.out);
}

Trace::Scope trace_wait(const Lane& lane, int64_t ticket) {
  if (!lane.trace.recording()) return {};
  return {
      lane.trace,
      lane.trace.begin({.kind = TraceEvent::Kind::kWait, .lane = lane.number, .ticket = ticket})};
}

// S of the table in group.h.
int64_t whole_bytes(const Operation& op) {
  const auto sum = [](std::span<const Transfer> list) {
    int64_t bytes = 0;
    for (const Transfer& t : list) bytes += t.data.bytes();
    return bytes;
  };
  if (op.op == Op::kSendReceive) return std::max(sum(op.sends), sum(op.receives));
  return std::max(op.in.bytes(), op.out.bytes());
}

}  // namespace

Work::Work(Work&& other) noexcept
    : lane_(std::exchange(other.lane_, nullptr)), ticket_(other.ticket_) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this == &other) return *this;
  settle();
  lane_ = std::exchange(other.lane_, nullptr);
  ticket_ = other.ticket_;
  return *this;
}

Work::~Work() {
  settle();
}

bool Work::done() const {
  return !lane_ || lane_->executor->done(ticket_);
}

void Work::wait() {
  if (!lane_) return;
  Lane& lane = *std::exchange(lane_, nullptr);
  const Trace::Scope waiting = trace_wait(lane, ticket_);
  lane.executor->wait(ticket_);
}

void Work::settle() noexcept {
  if (!lane_) return;
  const Trace::Scope waiting = trace_wait(*lane_, ticket_);
  lane_->executor->settle(ticket_);
}

Group::Group(World& world, std::string name, std::vector<int> world_ranks, std::string lane,
             Use use)
    : world_(world),
      name_(std::move(name)),
      lane_name_(std::move(lane)),
      use_(use),
      world_ranks_(std::move(world_ranks)),
      lane_(size() == 1 ? nullptr : &world.lane(lane_name_, use == Use::kCollectives)) {
  const auto here = std::find(world_ranks_.begin(), world_ranks_.end(), world_.engine.rank());
  ASHLAR_ASSERT(here != world_ranks_.end());
  rank_ = int(here - world_ranks_.begin());
  id_ = fnv1a64(name_);
  for (const int rank : world_ranks_) id_ = splitmix64(id_ ^ uint64_t(rank));
  if (lane_ && use_ == Use::kCollectives) lane_->executor->enter(*this);
  add_to_pulse();
}

Group::~Group() {
  if (last_ticket_ > 0) lane_->executor->settle(last_ticket_);  // and so have all before it
}

Work Group::all_reduce(const Tensor& in, const Tensor& out, std::string_view label) {
  assert_same_or_apart(in, out);
  ASHLAR_ASSERT(can_sum(in.dtype));
  return submit({.op = Op::kAllReduce, .in = in, .out = out, .count = in.numel()}, label);
}

Work Group::reduce_scatter(const Tensor& in, const Tensor& out, std::string_view label,
                           std::span<const int64_t> counts) {
  assert_chunk(in, out, rank_, size(), counts);
  ASHLAR_ASSERT(can_sum(in.dtype));
  return submit(
      {.op = Op::kReduceScatter, .in = in, .out = out, .count = in.numel(), .send_counts = counts},
      label);
}

Work Group::all_gather(const Tensor& in, const Tensor& out, std::string_view label,
                       std::span<const int64_t> counts) {
  assert_chunk(out, in, rank_, size(), counts);
  return submit(
      {.op = Op::kAllGather, .in = in, .out = out, .count = out.numel(), .send_counts = counts},
      label);
}

Work Group::broadcast(const Tensor& data, int root, std::string_view label) {
  ASHLAR_ASSERT(0 <= root && root < size());
  return submit(
      {.op = Op::kBroadcast, .in = data, .out = data, .count = data.numel(), .root = root}, label);
}

Work Group::reduce(const Tensor& in, const Tensor& out, int root, std::string_view label) {
  ASHLAR_ASSERT(0 <= root && root < size() && can_sum(in.dtype));
  if (rank_ == root) assert_same_or_apart(in, out);
  return submit({.op = Op::kReduce, .in = in, .out = out, .count = in.numel(), .root = root},
                label);
}

Work Group::all_to_all(const Tensor& in, const Tensor& out, std::string_view label,
                       std::span<const int64_t> send_counts,
                       std::span<const int64_t> receive_counts) {
  const bool even = send_counts.empty() && receive_counts.empty();
  ASHLAR_ASSERT(in.dtype == out.dtype && in.device == out.device);
  if (even) {
    ASHLAR_ASSERT(in.numel() == out.numel() && in.numel() % size() == 0);
  } else {
    ASHLAR_ASSERT(int(send_counts.size()) == size() && int(receive_counts.size()) == size());
    ASHLAR_ASSERT(sum_of(send_counts) == in.numel() && sum_of(receive_counts) == out.numel());
    ASHLAR_ASSERT(send_counts[size_t(rank_)] == receive_counts[size_t(rank_)]);
  }
  const bool in_place = in.data && in.data == out.data;
  ASHLAR_ASSERT(!in.data || disjoint(in, out) ||
                (in_place && std::equal(send_counts.begin(), send_counts.end(),
                                        receive_counts.begin(), receive_counts.end())));
  return submit({.op = Op::kAllToAll,
                 .in = in,
                 .out = out,
                 .count = even ? in.numel() : 0,
                 .send_counts = send_counts,
                 .receive_counts = receive_counts},
                label);
}

Work Group::send_receive(std::span<const Transfer> sends, std::span<const Transfer> receives,
                         std::string_view label) {
  const auto to_self = [&](const Transfer& t) { return t.rank == rank_; };
  ASHLAR_ASSERT(std::count_if(sends.begin(), sends.end(), to_self) ==
                std::count_if(receives.begin(), receives.end(), to_self));
  return submit({.op = Op::kSendReceive, .sends = sends, .receives = receives}, label);
}

bool Group::shares_memory() const {
  return world_.engine.shares_memory();
}

Work Group::barrier(std::string_view label) {
  return submit({.op = Op::kBarrier}, label);
}

std::unique_ptr<Group> Group::split(std::string name, function_ref<SplitKey(int rank)> key_of,
                                    std::string_view lane) const {
  const int color = key_of(rank_).color;
  if (color < 0) return nullptr;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int rank = 0; rank < size(); ++rank) {
    const SplitKey at = key_of(rank);
    if (at.color == color) members.emplace_back(at.key, rank);
  }
  std::sort(members.begin(), members.end());
  std::vector<int> ranks;
  for (const auto& [key, rank] : members) ranks.push_back(world_ranks_[size_t(rank)]);
  return std::make_unique<Group>(
      world_, std::move(name), std::move(ranks),
      lane.empty() || world_.measuring.one_lane ? lane_name_ : std::string(lane));
}

std::vector<TrafficRow> Group::traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  std::vector<TrafficRow> rows;
  for (const auto& by_label : traffic_)
    for (const auto& [label, row] : by_label)
      if (row.launches > 0) rows.push_back(row);
  return rows;
}

Work Group::submit(Operation operation, std::string_view label) {
  operation.group = this;
  operation.row = &row(operation.op, label);
  operation.sequence = sequence_;
  // Ranks without partners do not call send_receive, so it is not counted: all ranks count alike.
  if (operation.op != Op::kSendReceive || use_ == Use::kChannel) ++sequence_;
  operation.traced = world_.trace.recording();
  const int64_t event = operation.traced ? trace_post(operation) : -1;
  const Trace::Scope posting(world_.trace, event);
  if (size() == 1) {
    const auto start = Clock::now();
    copy_alone(world_.copy, operation);
    count(operation, seconds_since(start), 0, 0);
    return {};
  }
  operation.shown = show_post(operation);
  last_ticket_ = lane_->executor->submit(operation);
  world_.trace.set_ticket(event, last_ticket_);
  return Work(*lane_, last_ticket_);
}

// Before its first operation, so that a rank that never comes there is known to be missing.
void Group::add_to_pulse() {
  if (PulseWriter* const pulse = world_.trace.pulse(); pulse && lane_ && pulse_group_ < 0)
    pulse_group_ = pulse->add_group(id_, name_, size());
}

int64_t Group::show_post(const Operation& operation) {
  PulseWriter* const pulse = world_.trace.pulse();
  if (!pulse) return -1;
  add_to_pulse();  // the group of the world was made before the pulse
  const bool is_counted = operation.op != Op::kSendReceive || use_ == Use::kChannel;
  return pulse->post({.group = pulse_group_,
                      .lane = lane_->number,
                      .number = is_counted ? operation.sequence : -1,
                      .bytes = whole_bytes(operation),
                      .op = name_of(operation.op),
                      .label = operation.row->label});
}

int64_t Group::trace_post(const Operation& operation) {
  Trace& trace = world_.trace;
  const auto lane = int16_t(lane_ ? lane_->number : -1);
  if (trace_group_ < 0) trace_group_ = trace.add_group({name_, world_ranks_, lane});
  const bool by_pairs = operation.op == Op::kSendReceive;
  const bool has_root = operation.op == Op::kBroadcast || operation.op == Op::kReduce;
  const DType dtype = !by_pairs                     ? operation.in.dtype
                      : !operation.sends.empty()    ? operation.sends[0].data.dtype
                      : !operation.receives.empty() ? operation.receives[0].data.dtype
                                                    : DType::kU8;
  const int64_t event = trace.begin({.kind = TraceEvent::Kind::kPost,
                                     .dtype = dtype,
                                     .name = trace.index_of(name_of(operation.op)),
                                     .label = trace.index_of(operation.row->label),
                                     .group = trace_group_,
                                     .lane = lane,
                                     .root = has_root ? operation.root : -1,
                                     .number = by_pairs ? -1 : operation.sequence,
                                     .bytes = whole_bytes(operation)});
  for (const Transfer& t : operation.sends)
    trace.add_message(event, {world_ranks_[size_t(t.rank)], true, t.data.bytes()});
  for (const Transfer& t : operation.receives)
    trace.add_message(event, {world_ranks_[size_t(t.rank)], false, t.data.bytes()});
  trace_counts(event, operation);
  return event;
}

// Equal counts add nothing to the bytes of the whole, and are left out.
void Group::trace_counts(int64_t event, const Operation& operation) {
  const std::span<const int64_t> counts = operation.send_counts;
  const int64_t size = size_of(operation.in.dtype);
  if (operation.op == Op::kAllToAll) {
    for (size_t r = 0; r < counts.size(); ++r) {
      world_.trace.add_message(event, {world_ranks_[r], true, counts[r] * size});
      world_.trace.add_message(event, {world_ranks_[r], false, operation.receive_counts[r] * size});
    }
  } else if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to()) !=
             counts.end()) {
    world_.trace.add_chunks(event, counts, size);
  }
}

void Group::trace_moment(TraceEvent::Kind kind, const Operation& operation, const Moved& moved) {
  world_.trace.add_to_lane({.kind = kind,
                            .group = trace_group_,
                            .lane = lane_->number,
                            .ticket = operation.ticket,
                            .bytes = moved.sent_bytes,
                            .received_bytes = moved.received_bytes,
                            .count = moved.rounds});
}

TrafficRow& Group::row(Op op, std::string_view label) {
  const std::lock_guard lock(traffic_mutex_);
  auto& rows = traffic_[int(op)];
  const auto found = rows.find(label);
  if (found != rows.end()) return found->second;
  return rows.emplace(label, TrafficRow{op, std::string(label)}).first->second;
}

void Group::add_wait(TrafficRow& row, double seconds) {
  const std::lock_guard lock(traffic_mutex_);
  row.waited_s += seconds;
}

bool Group::fail(const std::exception_ptr& error) {
  world_.failure_state.cancel();
  return world_.engine.tell(error);
}

Trace& Group::trace() const {
  return world_.trace;
}

void Group::copy_with(CopyHere copy) {
  world_.copy = std::move(copy);
}

void Group::execute(const Operation& operation, Runner& runner) {
  if (world_.measuring.muted) return;
  if (const double seconds = world_.measuring.delay_of(*this); seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const auto start = Clock::now();
  Header header;
  header.group = id_;
  header.sequence = operation.sequence;
  header.count = operation.count;
  header.root = operation.root;
  header.op = operation.op;
  header.dtype = operation.in.dtype;
  copy_text(header.label, operation.row->label);
  copy_text(header.group_name, name_);
  if (operation.traced) trace_moment(TraceEvent::Kind::kBegan, operation, {});
  PulseWriter* const pulse = world_.trace.pulse();
  if (pulse) pulse->started(operation.shown);
  const Moved moved = runner.run(operation, header, world_ranks_, rank_);
  if (pulse) pulse->ended(operation.shown);
  if (operation.traced) trace_moment(TraceEvent::Kind::kEnded, operation, moved);
  count(operation, seconds_since(start), moved.sent_bytes, moved.received_bytes);
}

void Group::count(const Operation& operation, double ran_s, int64_t sent_bytes,
                  int64_t received_bytes) {
  const std::lock_guard lock(traffic_mutex_);
  ++operation.row->launches;
  operation.row->ran_s += ran_s;
  operation.row->sent_bytes += sent_bytes;
  operation.row->received_bytes += received_bytes;
}

}  // namespace ashlar::comm
