// What one rank owns to talk to the others: its engine, the lanes with their threads and staging
// memory, and the group of all ranks.  Engines make it: thread/run_ranks.h, mpi/run_mpi.h,
// recording/recording.h, self/self.h.  Callers see a Group; the members below are the module's own.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ashlar/comm/executor.h"
#include "ashlar/comm/group.h"
#include "ashlar/comm/late_watch.h"
#include "ashlar/comm/measuring.h"
#include "ashlar/comm/transport.h"
#include "ashlar/tensor/allocator.h"
#include "ashlar/tensor/trace.h"

namespace ashlar::comm {

// How long a rank that fails, or hears of a failure, may still do what is not to be lost.
inline constexpr double kLeaving_s = 5;

// How operations run: as rounds of messages with one order of sums on every engine, or as the
// engine's own collectives, in whatever order those sum.
enum class Collectives : uint8_t { kExact, kNative };

struct Options {
  // How long a caller waits for ranks that have not come; once all are there, for the next message.
  // More than what one rank ever does while others wait: saving, evaluating, starting.
  double timeout_s = 300;
  // Memory of each lane of a rank, taken once under Tag::kCommunication.  Sums go through it in
  // slices of staging_bytes / size; a world of one takes none.
  int64_t staging_bytes = int64_t{8} << 20;
  // Native: processes under MPI only (mpi/collectives.h).
  Collectives collectives = Collectives::kExact;
  Telling telling = {};  // of ranks that are waited for long
};

// A lane and its place in the rank's trace.
struct Lane {
  std::unique_ptr<Executor> executor;
  Trace& trace;
  int16_t number;
};

struct World {
  // kConfig if the staging memory is too small for the world.
  World(Engine& engine, const Options& options, Allocator& allocator);
  // The one of this name, made when a group first asks for it: with staging memory if it may sum.
  Lane& lane(const std::string& name, bool sums);

  Engine& engine;
  const Options options;
  Allocator& allocator;
  CopyHere copy = copy_convert;  // Group::copy_with
  Measuring measuring;
  Trace trace;  // lanes write into it until they are gone
  FailureState failure_state;
  std::map<std::string, Lane> lanes;
  std::set<std::string> channels;  // the lanes that channels of this rank use
  Group group;
};

}  // namespace ashlar::comm
