// The record of a launch: lines for people (launch/log and the console), events for programs
// (events.jsonl, launch.notify), the goodput, and the numbers for Prometheus.
//
// It decides nothing, and no file that cannot be written ends the run.  docs/survive.md has the
// lines and the events.
#pragma once

#include <optional>
#include <string>

#include "ashlar/launch/advice.h"
#include "ashlar/launch/events.h"
#include "ashlar/launch/goodput.h"
#include "ashlar/launch/launch_metrics.h"
#include "ashlar/launch/notify.h"
#include "ashlar/launch/policy.h"
#include "ashlar/launch/rank_log.h"

namespace ashlar::launch {

class LaunchRecord {
 public:
  struct Place {
    std::string directory;  // RUN_DIR/launch, which exists
    int64_t epoch = 1;
    std::string metrics = {};  // address of the MetricsServer; "": none
  };
  LaunchRecord(const Place& place, const std::vector<std::string>& notify, FileSystem& files,
               Log& log);

  // The lines that ranks print.
  void begin(int attempt) { rank_log_.begin(attempt); }
  void add(const OutputLine& line, const std::string& host) { rank_log_.add(line, host); }
  void flush() { rank_log_.flush(); }

  void tell(const std::string& line);  // people alone
  void add_event(const char* event, int attempt, const Ordered& members = Ordered::object()) {
    events_.add(event, attempt, members);
  }
  void tell_of_nodes(int attempt, const std::string& line);
  void tell_advice(int attempt, const Advice& advice);

  struct Fault {
    const Cause& cause;
    int number = 1;   // of this launch's faults
    int attempt = 0;  // that it ends
    int64_t step = 0;
    const PulsePage* page = nullptr;  // of the rank; null: it is not seen
    double detect_s = 0;              // from the last sign of life, or the first sight of a death
  };
  // The first two lines of a fault: what it was, and why the launcher thinks so.
  void tell_fault(const Fault& fault, double now);
  // The third: what the launcher does about it.
  void tell_action(const LaunchAction& action, int64_t from_step, int64_t steps_lost);
  void tell_stop(const LaunchAction& action);
  void tell_move(const LaunchAction& action, double now);
  void tell_first_step(int attempt, int64_t step, double now);

  void charge(TimeClass time, double now) { goodput_.charge(time, now); }
  void set_tokens(int64_t tokens) { numbers_.tokens = tokens; }
  double mean_restart_s() const;  // of this launch's restarts; 0: there was none
  // The page for Prometheus, at most once a second.
  void show(LaunchPhase phase, int attempt, int64_t step, double now);

 private:
  Log& log_;
  RankLog rank_log_;
  Notifier notifier_;
  EventLog events_;
  Goodput goodput_;
  LaunchNumbers numbers_;
  std::optional<MetricsServer> server_;  // its thread starts after the Notifier's process
  double shown_s_ = 0;                   // when the server's page was made
  double named_s_ = 0;                   // when the last fault was named; 0: there was none
};

}  // namespace ashlar::launch
