// SIGTERM, SIGINT, SIGUSR1 and SIGHUP ask a run to save and stop.  More of them change nothing,
// because launchers send several (`timeout` signals the process and then its group, mpirun
// likewise).  Only whoever presses Ctrl-C again, a second or more after the first time, gives up: a
// line on stderr says so, and SIGINT ends the process unsaved.  SIGHUP stays ignored where it was
// when the process started, as under nohup.
#pragma once

namespace ashlar {

// Catches the signals while it lives.  One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // after a stop further signals are ignored: the process is about to end
  StopSignals(const StopSignals&) = delete;
  // Of the object that lives, from anywhere in the process; false where none does.
  static bool requested();
  static const char* name();  // of the first signal that came; "" if none did
};

}  // namespace ashlar
