// An HTTP server whose clients are held to limits: cpp-httplib's, with those that Debian's version
// 0.11 lacks (http_limits.h).  Includes its large header, so only .cpp files should include it.
//
//   progress     in a handler, request.progress(0, 0) is false once the client has gone
#pragma once

#include <httplib.h>

#include <atomic>
#include <string>
#include <thread>

#include "ashlar/serve/http_limits.h"

namespace ashlar::serve {

class HttpServer final : public httplib::Server {
 public:
  explicit HttpServer(const HttpLimits& limits);
  // Binds to host and port (0: any free one) and returns the port.  kConfig if that fails.
  int bind(const std::string& host, int port);
  // Serves on threads of its own until the destructor, which waits for their handlers.
  void start();
  ~HttpServer() override;

 private:
  // Called by the threads of the queue and, for a connection too many, by the one that accepts.
  bool process_and_close_socket(socket_t sock) override;
  void serve(socket_t sock);
  bool wait_for_request(socket_t sock) const;
  void accept_until_stopped();
  bool bind_again();
  const HttpLimits limits_;
  std::string host_;
  int port_ = 0;
  std::thread accepting_;
  std::atomic<std::thread::id> acceptor_{};
  std::atomic<bool> stopped_{false}, ended_{false};
};

}  // namespace ashlar::serve
