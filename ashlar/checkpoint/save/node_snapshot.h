// Lets one rank of a machine write for all ranks of it (the members) if their parts of the state
// are small: a few large files instead of some small ones of every rank.
//
// The members share memory with the layout of the writer's files: their boxes, joined where they
// are adjacent in a tensor.  Each member copies its own part to that memory, so that a save delays
// a member no longer than a copy of its own part would.  There is room for two saves.
//
//   NodeShare     what a member keeps, encoded so that the others can read it
//   NodeLayout    the joined boxes of all members, and where they are: the same on all
//   NodeSnapshot  one member's side of the shared memory
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/core/shared_memory.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::checkpoint {

// The pieces that a member would write by itself.
struct NodeShare {
  std::vector<Piece> model, optim;
  int64_t bytes() const;
};
std::string encode(const NodeShare& share);  // without the data
// Returns pieces without data.  kComm: the bytes are no share.
NodeShare decode_share(std::string_view text);

// A box of one tensor that members keep parts of, and where it begins in the memory of a save.
struct JoinedBox {
  LogicalTensor logical;
  Box box;
  int64_t offset;  // in bytes
};

struct NodeLayout {
  std::vector<JoinedBox> model, optim;
  int64_t bytes = 0;  // of one save
};
// The members' shares in their order; no element may be in two of them.
NodeLayout lay_out(std::span<const NodeShare> members);
// The joined boxes as pieces, at `memory` (null: on meta).
NodeShare pieces_at(const NodeLayout& layout, std::byte* memory);

class NodeSnapshot {
 public:
  static int64_t shared_bytes(const NodeLayout& layout, int num_members);
  // memory: of shared_bytes, the same for all members.  share: of this member, with live data,
  // which outlive this object.
  NodeSnapshot(SharedMemory memory, NodeLayout layout, int member, int num_members,
               NodeShare share);
  ~NodeSnapshot();
  NodeSnapshot(const NodeSnapshot&) = delete;
  NodeSnapshot& operator=(const NodeSnapshot&) = delete;

  // A thread touches this member's part of the memory until there is a save, so that the system
  // need not clear pages during the first one.
  void prepare();
  // All members call it for the same saves, once the writer has finished the last save but one.  A
  // thread then copies this member's share, which must stay unchanged until before_update()
  // returns.
  void copy();
  void before_update();

  // The writer: the state of all members at the last copy().  It is complete when wait_for_members
  // has returned, and stays until the next copy() but one.  Before the first copy(): its memory.
  const NodeShare& state() const;
  // Returns a function that waits, on any thread, until all members have copied what they had at
  // the last copy().  It throws kStorage, with the members that are late, when the time is over or
  // after stop().
  std::function<void()> wait_for_members(double timeout_s);
  void stop();  // ends such waits

 private:
  static constexpr int64_t kNumSlots = 2;
  struct Progress;
  struct Target {
    Piece piece;
    int64_t place;     // in a slot, of the first byte of the joined box
    Box joined, part;  // part: what the piece has of it
  };
  Progress& progress_of(int member) const;
  std::byte* slot(int64_t save) const;
  std::vector<Target> targets_of(const std::vector<Piece>& pieces,
                                 const std::vector<JoinedBox>& joined) const;
  void copy_loop();
  void touch(std::unique_lock<std::mutex>& lock);
  std::string late_members(int64_t save) const;

  SharedMemory memory_;
  const NodeLayout layout_;
  const int member_, num_members_;
  std::vector<Target> targets_;
  std::vector<NodeShare> states_;  // by slot
  std::mutex mutex_;               // guards what follows
  std::condition_variable changed_;
  int64_t num_saves_ = 0, num_copied_ = 0;
  bool to_touch_ = false, stop_ = false;
  std::thread copier_;
};

}  // namespace ashlar::checkpoint
