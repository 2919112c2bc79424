// How the operations of one lane are run, one at a time by one thread: with rounds over its
// transport, memory for contributions that wait to be added, and lists that grow once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ashlar/comm/transport.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::comm {

struct Moved {
  int64_t sent_bytes = 0, received_bytes = 0;
  int64_t rounds = 0;  // of the operation: rounds_of.h
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual void enter(Group&) {}  // as Executor
  // group size above 1.  After an error no memory of the operation is in use any more.
  virtual Moved run(const Operation& operation, const Header& header,
                    std::span<const int> world_ranks, int rank) = 0;
  virtual void interrupt() = 0;  // from any thread: operations under way and to come throw kComm
  // Set by the queue that the operations come from: time-outs run while a caller waits.
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

 private:
  Awaited awaited_;
};

}  // namespace ashlar::comm
