// SIGTERM, SIGINT, SIGUSR1 and SIGHUP ask a run to save and stop.  The first one is answered at
// once by a line on stderr that says when that will be.  Further ones change nothing, because
// launchers send several (`timeout` signals the process and then its group, and so does mpirun).
// Only the same signal again, at least a second after it first came, ends the process without
// saving, with the exit code kUnsavedExitCode and a line that says so.  SIGHUP stays ignored if it
// was ignored when the process started, as under nohup.
#pragma once

namespace ashlar {

inline constexpr int kUnsavedExitCode = 28;  // docs/errors.md

// Catches the signals while it lives.  One object at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // after a stop further signals are ignored: the process is about to end
  StopSignals(const StopSignals&) = delete;
  // Whether a signal has come, from anywhere in the process; false without an object.
  static bool requested();
  static const char* name();  // of the first signal that came; "" if none has
  // Sets the answer to a first signal from now on: "TERM: WHEN, in about 40 s; ...".  `when` must
  // live for ever, such as the literal "saves and stops after this step".  nullptr: no answer,
  // because another process of the run gives it.  seconds: from now; below 0: unknown.
  static void answer(const char* when, double seconds = -1.0);
};

}  // namespace ashlar
