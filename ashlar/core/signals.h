// SIGTERM, SIGINT, SIGUSR1 and SIGHUP ask a run to save and stop.  The first one is answered at
// once with a line on stderr that says when that will be.  More of them change nothing, because
// launchers send several (`timeout` signals the process and then its group, mpirun likewise): only
// the same signal again, a second or more after it came first, ends the process without saving,
// with the exit code kUnsavedExitCode and a line that says so.  SIGHUP stays ignored where it was
// when the process started, as under nohup.
#pragma once

namespace ashlar {

inline constexpr int kUnsavedExitCode = 28;  // docs/errors.md

// Catches the signals while it lives.  One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // after a stop further signals are ignored: the process is about to end
  StopSignals(const StopSignals&) = delete;
  // Of the object that lives, from anywhere in the process; false where none does.
  static bool requested();
  static const char* name();  // of the first signal that came; "" if none did
  // What a first signal is answered with from now on: "TERM: WHEN, in about 40 s; ...".  `when` is
  // a text that lives for ever, such as "saves and stops after this step"; nullptr: nothing is
  // said, because another process of the run says it.  seconds: from now; below 0: unknown.
  static void answer(const char* when, double seconds = -1.0);
};

}  // namespace ashlar
