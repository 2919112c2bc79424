// The service: HTTP in the form of OpenAI's API, for one model.
//
//   POST /v1/completions, /v1/chat/completions    docs/serve.md
//   GET  /v1/models, /metrics, /health
//
// Threads  start() returns; the caller runs the engine.
#pragma once

#include <memory>
#include <string>

#include "ashlar/serve/http_limits.h"
#include "ashlar/serve/text_answers.h"

namespace ashlar::serve {

class Server {
 public:
  // Listens; kConfig if it cannot.  All arguments must outlive it.
  Server(const ServedModel& model, SlotEngine& engine, const std::string& host, int port,
         const HttpLimits& limits = {});
  ~Server();  // ends all connections
  int port() const;
  void start();

 private:
  struct Routes;
  std::unique_ptr<Routes> routes_;
};

}  // namespace ashlar::serve
