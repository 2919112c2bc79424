// What the operations of one lane are made with: rounds over its transport, memory for contributions
// that wait to be added, and lists that grow once.  For the one thread that runs the operations.
#pragma once

#include <memory>
#include <vector>

#include "ashlar/comm/transport.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::comm {

struct Moved {
  int64_t sent_bytes = 0, received_bytes = 0;
};

struct Rounds {
  struct Scratch {
    std::vector<Message> sends, receives;
    std::vector<int64_t> begins, receive_begins;
    std::vector<const std::byte*> sources;
  };
  std::unique_ptr<Transport> transport;
  Buffer staging;
  double timeout_s = 0;
  Scratch scratch{};
};

}  // namespace ashlar::comm
