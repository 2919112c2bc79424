// Tells a program of every event: one start of it an event, with the event's line on its stdin, as
// curl sends it to a webhook.
//
// A process of its own starts the programs one after the other, and ends one that takes longer
// than kPatience_s.  It is no child of the launcher, which fences its children, and outlives it
// until the last event is told.  Nothing is interpreted by a shell.  What a program prints is
// dropped.  The first one that fails, or is ended, is reported with the next event.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/log.h"

namespace ashlar::launch {

class Notifier {
 public:
  static constexpr double kPatience_s = 10;
  // words: the program, found by PATH, and its arguments; empty: nobody is told.  To be made before
  // this process adopts orphans, and while it has one thread.
  Notifier(const std::vector<std::string>& words, Log& log, double patience_s = kPatience_s);
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // A line with its end, of at most kMostBytes.  Never waits: if too many lines have not been told
  // yet, this one is dropped, with a warning.
  static constexpr size_t kMostBytes = 1 << 16;
  void tell(std::string_view line);

 private:
  Log& log_;
  std::string program_;
  int lines_ = -1;  // socket
};

}  // namespace ashlar::launch
