// The state of a run for people and scripts: from its files, and from the pulse of its ranks on
// this machine.  Nothing is written, and no rank is asked.
//
//   RUN_DIR/metrics.jsonl        its last rows: step, rate, loss, events
//   RUN_DIR/recipe.toml          the number of steps, if no page has it
//   RUN_DIR/pulse/HOST           the machines that have had ranks of the run
//   RUN_DIR/launch/events.jsonl  of a launcher, if there is one: attempts, faults, goodput
//   RUN_DIR/launch/lock          locked by the launcher as long as it lives
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/pulse.h"

namespace ashlar::train {

enum class RunState : uint8_t {
  kRunning,
  kDone,
  kRecovering,   // a launcher will start its ranks again, or has just done so
  kStopped,      // its last start ended before the last step
  kNoHeartbeat,  // its ranks were killed, or nothing has changed for too long
};
std::string_view name_of(RunState state);  // "no_heartbeat"
int exit_code(RunState state);             // 0, 0, 3, 4, 5

// All that is read.
struct RunFacts {
  int64_t now_ns = 0;                 // as pulse_now_ns counts
  std::map<int, PulsePage> pages;     // of this machine's ranks
  std::set<int> gone;                 // ranks whose processes ended without removing their pages
  std::map<int, char> held;           // ranks that are suspended (T), or wait for a device (D)
  std::vector<std::string> machines;  // others that have had ranks of the run
  int64_t num_steps = 0;              // 0: unknown
  // From the last rows: step (-1 without any), and means over them.
  int64_t step = -1, saved_step = -1;
  double step_s = 0, tokens_per_s = 0, longest_step_s = 0;
  double loss = 0;                  // of the last row; NaN: it has none
  std::vector<std::string> events;  // the last ones, as JSON
  // The launcher's last event and what it did there, and its sums as JSON.
  std::string launch_event, launch_action, launch_goodput;
  int64_t launch_attempt = 0;
  bool launcher_lives = false;
};

struct RunStatus {
  RunFacts facts;
  RunState state = RunState::kStopped;
  std::string reason;  // of a state that is neither running nor done
  std::string hang;    // the ranks that others wait for, if the run stands
};

// How long a run may show no change: 8 times its longest recent step, from 10 s to 300 s; 120 s
// until it has done a step.
double silence_limit_s(const RunFacts& facts);
RunStatus judge(RunFacts facts);

// kConfig if there is no run.
RunFacts read_facts(FileSystem& files, const std::string& run_directory);

std::string status_text(const RunStatus& status);
std::string status_json(const RunStatus& status);  // one line; docs/survive.md has its keys

}  // namespace ashlar::train
