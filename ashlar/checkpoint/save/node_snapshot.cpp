// How it works.  The shared memory holds a Progress for every member, then a slot for even saves
// and one for odd saves, each with the layout of NodeLayout.
//
//   copy()        adds 1 to num_saves_, for the member's copier
//   copy_loop()   copies the runs of each of the member's boxes to their offsets in the joined box;
//                 then the member's Progress has the number of the save in this slot
//   writer        wait_for_members() polls every Progress until it has that number; the slot then
//                 stays unchanged until the copy() of the save after the next
//
// The members need no lock between them: they write disjoint bytes, and the number is stored after
// the bytes (release) and read before them (acquire).
#include "ashlar/checkpoint/save/node_snapshot.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/threads.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::checkpoint {
namespace {

constexpr int64_t kPageBytes = 4096;

int64_t pages(int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Json to_json(const std::vector<Piece>& pieces) {
  Json list = Json::array();
  for (const Piece& p : pieces)
    list.push_back({p.logical.name, int(p.logical.dtype), int(p.logical.role),
                    p.logical.global_shape.dims(), p.box.offset.dims(), p.box.length.dims()});
  return list;
}

Shape shape_of(const Json& dims) {
  const auto list = dims.get<std::vector<int64_t>>();
  ASHLAR_REQUIRE(list.size() <= size_t(Shape::kMaxDims), kComm, "a box of {} dims", list.size());
  return Shape(list);
}

std::vector<Piece> pieces_of(const Json& list) {
  std::vector<Piece> pieces;
  for (const Json& p : list) {
    const LogicalTensor logical{p.at(0), DType(p.at(1).get<int>()), shape_of(p.at(3)),
                                Role(p.at(2).get<int>())};
    const Box box{shape_of(p.at(4)), shape_of(p.at(5))};
    pieces.push_back({logical, box, {nullptr, logical.dtype, Device::kMeta, box.length}});
  }
  return pieces;
}

Shape row_major(const Shape& lengths) {
  Shape strides = lengths;
  int64_t stride = 1;
  for (int d = lengths.ndim() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= lengths[d];
  }
  return strides;
}

// Joins the boxes that all members have of a component, tensor by tensor in the order in which
// these first appear.
std::vector<JoinedBox> joined_boxes(std::span<const NodeShare> members,
                                    std::vector<Piece> NodeShare::*component, int64_t& bytes) {
  std::vector<const LogicalTensor*> tensors;
  std::map<std::string_view, std::vector<Box>> boxes;
  for (const NodeShare& member : members)
    for (const Piece& piece : member.*component) {
      if (piece.box.length.numel() == 0) continue;
      std::vector<Box>& of_tensor = boxes[piece.logical.name];
      if (of_tensor.empty()) tensors.push_back(&piece.logical);
      of_tensor.push_back(piece.box);
    }
  std::vector<JoinedBox> joined;
  for (const LogicalTensor* logical : tensors)
    for (const Box& box : join_boxes(boxes[logical->name])) {
      joined.push_back({*logical, box, bytes});
      bytes += (box.length.numel() * size_of(logical->dtype) + 63) / 64 * 64;
    }
  return joined;
}

std::vector<Piece> pieces_of(const std::vector<JoinedBox>& joined, std::byte* memory) {
  std::vector<Piece> pieces;
  for (const JoinedBox& p : joined)
    pieces.push_back({p.logical,
                      p.box,
                      {memory ? memory + p.offset : nullptr, p.logical.dtype,
                       memory ? Device::kCpu : Device::kMeta, p.box.length}});
  return pieces;
}

// Calls body(byte in the piece's memory, byte in the joined box, bytes) for all runs of `part`,
// which is a part of both, that are contiguous in both.
template <typename F>
void for_each_run(const Piece& piece, const Box& joined, const Box& part, F&& body) {
  const Shape& length = part.length;
  const int ndim = length.ndim();
  const int64_t width = size_of(piece.logical.dtype);
  const Shape from = piece.strides.ndim() > 0 ? piece.strides : row_major(piece.box.length);
  const Shape to = row_major(joined.length);
  int64_t run = 1, from_start = 0, to_start = 0, count = 1;
  int outer = ndim;  // dims from this one on are one run
  while (outer > 0 && (length[outer - 1] == 1 || (from[outer - 1] == run && to[outer - 1] == run)))
    run *= length[--outer];
  for (int d = 0; d < ndim; ++d) {
    from_start += (part.offset[d] - piece.box.offset[d]) * from[d];
    to_start += (part.offset[d] - joined.offset[d]) * to[d];
  }
  for (int d = 0; d < outer; ++d) count *= length[d];
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, a = from_start, b = to_start;
    for (int d = outer - 1; d >= 0; --d) {
      const int64_t at = rest % length[d];
      rest /= length[d];
      a += at * from[d];
      b += at * to[d];
    }
    body(a * width, b * width, run * width);
  }
}

}  // namespace

int64_t NodeShare::bytes() const {
  int64_t bytes = 0;
  for (const auto* pieces : {&model, &optim})
    for (const Piece& p : *pieces) bytes += p.box.length.numel() * size_of(p.logical.dtype);
  return bytes;
}

std::string encode(const NodeShare& share) {
  return Json{{"model", to_json(share.model)}, {"optim", to_json(share.optim)}}.dump();
}

NodeShare decode_share(std::string_view text) {
  try {
    const Json json = parse_json(text, "share of a member", ErrorKind::kComm);
    return {pieces_of(json.at("model")), pieces_of(json.at("optim"))};
  } catch (const Json::exception& error) {
    ASHLAR_FAIL(kComm, "share of a member: {}", error.what());
  }
}

NodeLayout lay_out(std::span<const NodeShare> members) {
  NodeLayout layout;
  layout.model = joined_boxes(members, &NodeShare::model, layout.bytes);
  layout.optim = joined_boxes(members, &NodeShare::optim, layout.bytes);
  return layout;
}

NodeShare pieces_at(const NodeLayout& layout, std::byte* memory) {
  return {pieces_of(layout.model, memory), pieces_of(layout.optim, memory)};
}

struct NodeSnapshot::Progress {
  std::atomic<int64_t> saves[kNumSlots];  // in the slot; 0: none yet
};

int64_t NodeSnapshot::shared_bytes(const NodeLayout& layout, int num_members) {
  return num_members * kPageBytes + kNumSlots * pages(layout.bytes);
}

NodeSnapshot::NodeSnapshot(SharedMemory memory, NodeLayout layout, int member, int num_members,
                           NodeShare share)
    : memory_(std::move(memory)),
      layout_(std::move(layout)),
      member_(member),
      num_members_(num_members) {
  static_assert(sizeof(Progress) <= size_t(kPageBytes) &&
                std::atomic<int64_t>::is_always_lock_free);
  ASHLAR_REQUIRE(int64_t(memory_.bytes().size()) == shared_bytes(layout_, num_members), kComm,
                 "shared memory of {} bytes; expected {}", memory_.bytes().size(),
                 shared_bytes(layout_, num_members));
  targets_ = targets_of(share.model, layout_.model);
  for (Target& target : targets_of(share.optim, layout_.optim))
    targets_.push_back(std::move(target));
  for (int64_t save = 0; save < kNumSlots; ++save)
    states_.push_back(pieces_at(layout_, slot(save)));
  copier_ = start_thread("that copies for the writer of this machine", [this] { copy_loop(); });
}

NodeSnapshot::~NodeSnapshot() {
  stop();
  copier_.join();
}

NodeSnapshot::Progress& NodeSnapshot::progress_of(int member) const {
  return *reinterpret_cast<Progress*>(memory_.bytes().data() + member * kPageBytes);
}

std::byte* NodeSnapshot::slot(int64_t save) const {
  return memory_.bytes().data() + num_members_ * kPageBytes +
         save % kNumSlots * pages(layout_.bytes);
}

std::vector<NodeSnapshot::Target> NodeSnapshot::targets_of(
    const std::vector<Piece>& pieces, const std::vector<JoinedBox>& joined) const {
  std::multimap<std::string_view, const JoinedBox*> of_name;
  for (const JoinedBox& box : joined) of_name.emplace(box.logical.name, &box);
  std::vector<Target> targets;
  for (const Piece& piece : pieces) {
    if (piece.box.length.numel() == 0) continue;
    int64_t elements = 0;
    const auto [begin, end] = of_name.equal_range(piece.logical.name);
    for (auto at = begin; at != end; ++at) {
      const auto part = intersect(at->second->box, piece.box);
      if (!part) continue;
      targets.push_back({piece, at->second->offset, at->second->box, *part});
      elements += part->length.numel();
    }
    ASHLAR_ASSERT(elements == piece.box.length.numel());
  }
  return targets;
}

void NodeSnapshot::prepare() {
  {
    const std::lock_guard lock(mutex_);
    ASHLAR_ASSERT(num_saves_ == 0);
    to_touch_ = true;
  }
  changed_.notify_all();
}

void NodeSnapshot::copy() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_copied_ == num_saves_; });
    ++num_saves_;
  }
  changed_.notify_all();
}

const NodeShare& NodeSnapshot::state() const {
  return states_[size_t((std::max<int64_t>(num_saves_, 1) - 1) % kNumSlots)];
}

void NodeSnapshot::before_update() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_copied_ == num_saves_; });
}

void NodeSnapshot::copy_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || to_touch_ || num_copied_ < num_saves_; });
    if (stop_) return;
    if (std::exchange(to_touch_, false) && num_saves_ == 0) {
      touch(lock);
      continue;
    }
    const int64_t save = num_copied_;
    lock.unlock();
    for (const Target& target : targets_)
      for_each_run(
          target.piece, target.joined, target.part, [&](int64_t from, int64_t to, int64_t bytes) {
            copy_to_host(target.piece.data, from, {slot(save) + target.place + to, size_t(bytes)});
          });
    progress_of(member_).saves[save % kNumSlots].store(save + 1, std::memory_order_release);
    lock.lock();
    ++num_copied_;
    changed_.notify_all();
  }
}

void NodeSnapshot::touch(std::unique_lock<std::mutex>& lock) {
  for (int64_t save = 0; save < kNumSlots; ++save)
    for (const Target& target : targets_) {
      if (stop_ || num_saves_ > 0) return;
      lock.unlock();
      for_each_run(target.piece, target.joined, target.part,
                   [&](int64_t, int64_t to, int64_t bytes) {
                     std::memset(slot(save) + target.place + to, 0, size_t(bytes));
                   });
      lock.lock();
    }
}

std::string NodeSnapshot::late_members(int64_t save) const {
  std::vector<int> late;
  for (int m = 0; m < num_members_; ++m)
    if (progress_of(m).saves[save % kNumSlots].load(std::memory_order_acquire) != save + 1)
      late.push_back(m);
  return late.empty() ? "" : fmt::format("{}", fmt::join(late, ", "));
}

std::function<void()> NodeSnapshot::wait_for_members(double timeout_s) {
  return [this, timeout_s, save = num_saves_ - 1] {
    const Clock::time_point start = Clock::now();
    std::unique_lock lock(mutex_);
    for (std::string late = late_members(save); !late.empty(); late = late_members(save)) {
      ASHLAR_REQUIRE(!stop_, kStorage, "the copy of rank {} of this machine was given up", late);
      ASHLAR_REQUIRE(seconds_since(start) < timeout_s, kStorage,
                     "rank {} of this machine did not copy its part within {:.4g} s", late,
                     timeout_s);
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
  };
}

void NodeSnapshot::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

}  // namespace ashlar::checkpoint
