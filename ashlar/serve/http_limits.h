// Limits on each client of an HTTP server.
#pragma once

#include <chrono>
#include <cstddef>

namespace ashlar::serve {

struct HttpLimits {
  // Connections that are served at a time.  As many wait, and more get 503 at once.
  size_t threads = 64;
  size_t header_bytes = size_t{32} << 10;
  size_t body_bytes = size_t{9} << 20;  // as sent, with what frames its chunks
  // A connection ends where nothing comes for `idle`; a request whose headers, or whose body after
  // them, take longer to come is refused; a client that takes nothing of an answer for so long is
  // dropped.
  std::chrono::milliseconds idle{5'000}, header_time{10'000}, body_time{60'000}, write_time{20'000};
};

}  // namespace ashlar::serve
