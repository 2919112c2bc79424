// The ranks that read one step together, as each of them sees the others.  A rank that reads alone
// is a group of one; train/group_load_ranks.h implements the ranks of a run.
//
// Order    all ranks call the same functions in the same order; a rank without messages may leave
//          out post() and wait(), and no others.
// Errors   those that the implementation throws when a rank is lost.
// Threads  one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {

class ReadMemory;
class WantedByRanks;

// Objects that the ranks of one process have in common while they load.
class LoadCommons {
 public:
  LoadCommons();
  // Memory that reads go through: one object for all steps that are open, gone with the last.
  std::shared_ptr<ReadMemory> read_memory();
  const std::shared_ptr<WantedByRanks> wanted;  // what each wants of a step: wanted_bytes.h

 private:
  std::mutex mutex_;
  std::weak_ptr<ReadMemory> read_memory_;
};

class LoadRanks {
 public:
  struct Message {
    int rank = 0;
    std::span<std::byte> bytes;
  };
  virtual ~LoadRanks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Rank 0's bytes.
  virtual std::string from_leader(std::string bytes) = 0;
  // The bytes of all ranks, in their order.
  virtual std::vector<std::string> all_gather(std::string_view bytes) = 0;
  // Begins to move bytes to and from other ranks: the k-th send of rank a to rank b matches the
  // k-th receive of b from a.  Posts run in order, so that a later one may send what an earlier one
  // receives.  The memory must stay until wait() has returned.
  virtual void post(std::vector<Message> sends, std::vector<Message> receives) = 0;
  virtual void wait() = 0;  // until all that was posted has ended
  // The ranks are threads of one process: an address is valid on all of them.
  virtual bool shares_memory() const = 0;
  // One object for all ranks of a process that shares_memory(), else this rank's own.
  virtual LoadCommons& commons() = 0;
};

// The group of one.
class Alone final : public LoadRanks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string from_leader(std::string bytes) override { return bytes; }
  std::vector<std::string> all_gather(std::string_view bytes) override {
    return {std::string(bytes)};
  }
  void post(std::vector<Message> sends, std::vector<Message> receives) override;
  void wait() override {}
  bool shares_memory() const override { return true; }
  LoadCommons& commons() override { return commons_; }

 private:
  LoadCommons commons_;
};

// A problem that a rank found, and its place in an order that all ranks share.
struct LoadFailure {
  int64_t place = 0;
  ErrorKind kind = ErrorKind::kCorrupt;
  std::string message;
};
// Throws on every rank the failure that comes first by place, then by rank; nothing if no rank has
// one.  So no rank waits for one that failed, and all report the same error.
void throw_first(LoadRanks& ranks, const std::optional<LoadFailure>& own);

// Runs body; an Error of it is a failure at `place`.
template <typename F>
std::optional<LoadFailure> failure_of(int64_t place, F&& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return LoadFailure{place, error.kind(), error.what()};
  }
}

}  // namespace ashlar::checkpoint
