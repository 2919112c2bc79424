// SIGTERM, SIGINT and SIGUSR1 ask a run to save and stop; a second SIGINT or SIGTERM ends the
// process at once.
#pragma once

namespace ashlar::train {

// Catches the signals while it lives.  One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  bool requested() const;
  const char* name() const;  // of the signal that came; "" if none did
};

}  // namespace ashlar::train
