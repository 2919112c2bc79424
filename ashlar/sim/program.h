// The programs of ranks: what every rank of a mesh does in its steps, in order, without times.
//
// A rank's own thread runs kernels, posts operations to lanes, and waits for them; a lane runs its
// operations one at a time, in the order of their posts.  Waits are the only dependency between
// computation and communication, so nothing else is needed to replay a step on another machine.
//
// Programs come from traces (tensor/trace.h), of this process or from files.  Names, kernels of the
// same work, and groups are kept once for all ranks; an event takes 12 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/machine/laws.h"
#include "ashlar/tensor/dtype.h"
#include "ashlar/tensor/trace.h"

namespace ashlar::sim {

// Calls of a kernel that do the same work.
struct KernelWork {
  std::string op;
  DType dtype = DType::kU8;
  TraceDims dims = {};
  int64_t flop = 0, bytes = 0;
  TraceEvent::Varies varies = TraceEvent::Varies::kNo;
  int64_t count = 0;  // see varies
  bool operator==(const KernelWork&) const = default;
};

struct RankGroup {
  std::string name;
  std::vector<int> ranks;      // of the world, in the order of the group
  std::vector<int> simulated;  // those that have programs
};

struct RankOperation {
  machine::CollectiveOp op = machine::CollectiveOp::kBarrier;
  DType dtype = DType::kU8;
  int16_t lane = -1;    // of the rank; -1: a group of this rank alone, which nobody waits for
  int32_t label = 0;    // in RankPrograms::texts
  int32_t group = 0;    // in RankPrograms::groups
  int32_t member = 0;   // position of the rank in RankGroup::simulated
  int64_t number = -1;  // of the collective in its group; -1: messages, matched in pairs
  int32_t root = -1;    // of broadcast and reduce
  int32_t rounds = 1;   // between which the ranks meet
  int64_t bytes = 0;    // of the whole array
  int64_t sent_bytes = 0, received_bytes = 0;
  int32_t first_message = 0, num_messages = 0;  // in RankProgram::messages
};

// A position in a step, as in a trace.
struct ProgramPlace {
  int32_t phase = 0;  // in RankPrograms::texts
  int32_t block = -1, micro_batch = -1;
  TracePlace::Branch branch = TracePlace::Branch::kNone;
  auto operator<=>(const ProgramPlace&) const = default;
};

struct ProgramEvent {
  enum class Kind : uint8_t { kKernel, kPost, kWait, kEndOfStep };
  Kind kind = Kind::kKernel;
  int16_t lane = -1;  // of a wait
  // A kernel's index in RankPrograms::kernels; a post's in RankProgram::operations; of a wait, the
  // position of its operation among those that the program posts to the lane, from 0.  Below 0:
  // an operation of the steps before.
  int32_t value = 0;
  int32_t place = 0;  // in RankPrograms::places
};

struct RankProgram {
  std::vector<ProgramEvent> events;
  std::vector<RankOperation> operations;  // in the order of their posts
  std::vector<TraceMessage> messages;
  struct Lane {
    std::string name;
    std::vector<int32_t> operations;  // in the order of their posts
  };
  std::vector<Lane> lanes;
  int32_t num_steps = 0;
};

struct RankPrograms {
  std::vector<RankProgram> ranks;  // by number in the world; without events: not simulated
  std::vector<KernelWork> kernels;
  std::vector<RankGroup> groups;
  std::vector<ProgramPlace> places;
  std::vector<std::string> texts;
  int64_t tokens = 0;      // of a step, of all ranks; 0: unknown
  bool dry = false;        // of a dry run, one step that stands for all
  double between_s = 0;    // median time between two steps, where a run was recorded
  int ranks_for_each = 1;  // ranks that each simulated rank stands for

  bool simulates(int rank) const { return !ranks[size_t(rank)].events.empty(); }
  // The groups of one kind that run at once, for each of which this one was made.
  double groups_for(const RankGroup& group) const {
    return double(ranks_for_each) * double(group.simulated.size()) / double(group.ranks.size());
  }
  std::string_view label(const RankOperation& operation) const {
    return texts[size_t(operation.label)];
  }
  // "all_reduce 'gradients' (number 3 of data)"
  std::string name_of(const RankOperation& operation) const;
};

}  // namespace ashlar::sim
