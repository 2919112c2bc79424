// Runner: runs the operations of one lane, one at a time, on one thread.  Rounds: the runner that
// makes them of rounds over a transport; it owns the staging memory, and lists that grow once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ashlar/comm/transport.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::comm {

struct Moved {
  int64_t sent_bytes = 0, received_bytes = 0;
  int64_t rounds = 0;  // of the operation (rounds_of.h)
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void enter(Group&) {}  // as Executor
  // The group has more than one rank.  After an error the memory of the operation is not in use.
  virtual Moved run(const Operation& operation, const Header& header,
                    std::span<const int> world_ranks, int rank) = 0;
  virtual void interrupt() = 0;  // from any thread: current and later operations throw kComm
  // Set by the queue that submits the operations: time-outs run while a caller waits.
  virtual Awaited& awaited() = 0;
};

struct Rounds final : Runner {
  Rounds(std::unique_ptr<Transport> transport, Buffer staging, double timeout_s)
      : transport(std::move(transport)), staging(std::move(staging)), timeout_s(timeout_s) {}
  Moved run(const Operation& operation, const Header& header, std::span<const int> world_ranks,
            int rank) override;
  void interrupt() override { transport->interrupt(); }
  Awaited& awaited() override { return awaited_; }

  struct Scratch {
    std::vector<Message> sends, receives;
    std::vector<int64_t> begins, receive_begins;
    std::vector<const std::byte*> sources;
  };
  const std::unique_ptr<Transport> transport;
  const Buffer staging;
  const double timeout_s;
  Scratch scratch;
  // Whether ranks meet in rounds on meta too; in a world that only counts nobody is met.
  bool meets_on_meta = false;

 private:
  Awaited awaited_;
};

}  // namespace ashlar::comm
