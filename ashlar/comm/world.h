// World: all that one rank needs to communicate: its engine, the lanes with their threads and
// staging memory, and the group of all ranks.  Engines create it: thread/run_ranks.h,
// mpi/run_mpi.h, recording/recording.h, self/self.h.  Callers see a Group; the members below are
// for this module.
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

// How long a rank that fails, or hears of a failure, may take to finish work that must not be lost.
inline constexpr double kLeaving_s = 5;

// kExact: operations are rounds of messages, with one order of sums on every engine.  kNative: the
// engine's own collectives, which choose the order of sums.
enum class Collectives : uint8_t { kExact, kNative };

struct Options {
  // How long a caller waits for ranks that have not arrived and, once all have, for the next
  // message. It must exceed any work of one rank while others wait: saving, evaluating, starting.
  double timeout_s = 300;
  // Memory of each lane of a rank, taken once under Tag::kCommunication.  Sums go through it in
  // slices of staging_bytes / size; a world of one rank takes none.
  int64_t staging_bytes = int64_t{8} << 20;
  // kNative: for processes under MPI only (mpi/collectives.h).
  Collectives collectives = Collectives::kExact;
  // A lane whose operations are native even if those of the others are exact; "": none.
  std::string native_lane = {};
  Telling telling = {};  // reports of ranks that others wait for
  // The kinds of error that end a world in which a rank came late, and one in which the process of
  // a rank is gone, for programs whose exit codes tell these apart.
  ErrorKind late = ErrorKind::kComm, lost = ErrorKind::kComm;
};

// A lane, and its number in the rank's trace.
struct Lane {
  std::unique_ptr<Executor> executor;
  Trace& trace;
  int16_t number;
};

struct World {
  // kConfig if the staging memory is too small for the world.
  World(Engine& engine, const Options& options, Allocator& allocator);
  // The lane of this name, created at its first use; with staging memory if `sums`.
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
