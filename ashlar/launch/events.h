// RUN_DIR/launch/events.jsonl: what a launch did and why, one JSON object a line, for programs.
//
//   {"v":1, "t":seconds since 1970, "mono":seconds of the machine's clock, "epoch":1, "attempt":3,
//    "event":"fault", ...}
//
// docs/survive.md lists the events and their further keys.  Only the launcher that holds the run
// writes; a kill may leave the last line torn, and the next row then begins a line of its own.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/core/log.h"
#include "ashlar/launch/cause.h"
#include "ashlar/launch/notify.h"

namespace ashlar::launch {

class EventLog {
 public:
  EventLog(FileSystem& files, const std::string& path, int64_t epoch, Notifier& notifier, Log& log);
  // A failure is a warning, once: the run goes on.
  void add(const char* event, int attempt, const Ordered& members = Ordered::object());

 private:
  const int64_t epoch_;  // of the launcher that leads; 1 on one machine
  Log& log_;
  Notifier& notifier_;  // told of every event
  std::unique_ptr<File> file_;
  bool warned_ = false;
};

// The keys of a cause: class, confidence, rank, evidence.
Ordered members_of(const Cause& cause);
const char* name_of(EvidenceKind kind);

}  // namespace ashlar::launch
