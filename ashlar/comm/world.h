// What one rank owns to talk to the others: its transport, the thread that runs operations, staging
// memory, and the group of all ranks.  Engines make it: thread/run_ranks.h, mpi/run_mpi.h,
// recording/recording.h, self/self.h.  Callers see a Group; the members below are the module's own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/comm/queue.h"
#include "ashlar/comm/transport.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::comm {

struct Options {
  // How long a round waits for ranks that have not come; once all are there, for the next message.
  // More than what one rank ever does while others wait: saving, evaluating, starting.
  double timeout_s = 300;
  // Of each rank, taken once under Tag::kCommunication.  Sums go through it in slices of
  // staging_bytes / size; a world of one takes none.
  int64_t staging_bytes = int64_t{8} << 20;
};

// An operation as a recording keeps it.
struct Record {
  Op op;
  std::string label, group;
  int group_size;
  int64_t bytes;  // S: the whole array, or the larger of what goes and what comes
  bool operator==(const Record&) const = default;
};

// Lists that grow once, for the one thread that runs operations.
struct Scratch {
  std::vector<Message> sends, receives;
  std::vector<int64_t> begins, receive_begins;
  std::vector<const std::byte*> sources;
};

struct World {
  // kConfig if the staging memory is too small for the world.
  World(Transport& transport, const Options& options, Allocator& allocator,
        std::vector<Record>* records = nullptr);

  Transport& transport;
  const Options options;
  std::vector<Record>* const records;  // null: nobody records
  Buffer staging;
  Scratch scratch;
  bool muted = false;  // Group::mute
  OperationQueue queue;
  Group group;
};

}  // namespace ashlar::comm
