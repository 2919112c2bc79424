// The signs of life of running ranks: their pulse pages and their states in /proc.
//
// Cost       a look reads the heads of pages that stay mapped, and nothing else while they change:
//            /proc is for ranks whose pages have stood for kStands_s, whole pages are for a hang.
// Suspended  a process has been in state T for kSuspended_s.
// Killed     SIGKILL was sent to a process, whose threads find no CPU to end on: its pidfd may take
//            many seconds to tell.
// Hang       no page has changed for longer than the place of the last change ever takes: 8 times
//            the 99th percentile of its last 200 silences, at least launch.hang_s, at most 300 s,
//            and at least 120 s and 20 planned steps during a first step.
// Files      a rank that starts, loads, saves or ends may wait for a disk: there the bytes that
//            its process moves (/proc/PID/io) are the sign of life, not its operations, which go
//            on while a thread of it hangs; and the limit is 300 s.
// Starved    the time that a thread of a rank had to wait for a CPU during a silence, after a tenth
//            of its limit, does not count (/proc/PID/task/TID/schedstat), until the silence takes
//            300 s; a rank that polls for others does not starve.
// No pages   as with a full /dev/shm, or another user's directory there: lines count instead.
// A limit of 300 s is launch.hang_s if that is more.  A launcher that was suspended itself watches
// anew from then on.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/log.h"
#include "ashlar/core/pulse.h"
#include "ashlar/launch/cause.h"

namespace ashlar::launch {

// How long the pages may stand before that is a hang.
class SilenceLimit {
 public:
  // step_s: the time of a step as a plan has it; 0: unknown.
  explicit SilenceLimit(double hang_s, double step_s = 0) : hang_s_(hang_s), step_s_(step_s) {}
  void add(PulsePlace place, double silence_s);          // one that ended
  double limit_s(PulsePlace place, bool stepped) const;  // stepped: a first step is done

 private:
  static constexpr size_t kKept = 200;
  double hang_s_, step_s_;
  std::array<std::vector<double>, kNumPulsePlaces> silences_;  // rings
  std::array<size_t, kNumPulsePlaces> next_{};
};

// How long each thread of a process has waited for a CPU since it began, ns, by thread; empty if
// the kernel does not say.
using QueueTimes = std::map<int64_t, int64_t>;
QueueTimes queue_times_of(int64_t process);

class Watch {
 public:
  static constexpr double kStands_s = 0.5, kAskEvery_s = 1, kSuspended_s = 3;
  Watch(std::string run_directory, double hang_s, Log& log, double step_s = 0,
        std::function<QueueTimes(int64_t process)> queue_times = queue_times_of);

  void begin(double now);                  // an attempt starts
  void hear(double now) { heard_ = now; }  // a rank printed a line
  struct Sight {
    std::map<int, PulsePage> pages;  // of the ranks' processes; of this machine the heads
    std::optional<Evidence> fault;
    double silence_s = 0;  // of all pages
  };
  // ranks: those that have joined, with their processes.
  Sight look(const std::map<int, pid_t>& ranks, double now);
  // The result of a look at ranks, of one machine or of several, before it is judged.
  struct Finds {
    std::map<int, PulsePage> pages = {};
    std::optional<Evidence> suspended = {}, killed = {};
    int64_t bytes = 0;                // that ranks at files have moved so far
    std::map<int, char> states = {};  // of processes whose pages stand (ProcessStat)
    bool local = false;               // whether they are processes of this machine, to be looked at
  };
  Finds find(const std::map<int, pid_t>& ranks, double now);  // whole pages of this machine
  Sight judge(Finds finds, double now);

 private:
  void note_pause(double now);
  Finds find_heads(const std::map<int, pid_t>& ranks, double now, bool ask);
  void find_readers(const std::map<int, pid_t>& ranks, double now);
  std::map<int, PulsePage> whole_pages() const;
  void ask_kernel(const std::map<int, pid_t>& ranks, double now, Finds& finds);
  void see_process(int rank, pid_t pid, double now, Finds& finds);
  int64_t last_sign_ns(const Finds& finds);
  std::optional<Evidence> find_silence(const Finds& finds, double now);
  Evidence describe_silence(const Finds& finds, int64_t now_ns) const;
  double starved_s();

  const std::string run_directory_;
  Log& log_;
  const std::function<QueueTimes(int64_t process)> queue_times_;
  bool warned_ = false;
  SilenceLimit limit_;
  std::map<int, PulseReader> readers_;  // by rank
  double heard_ = 0, looked_ = 0, asked_ = 0, listed_ = 0;
  int64_t moved_ns_ = 0, resumed_ns_ = 0;
  int64_t moved_bytes_ = 0;                // at the last look
  std::map<int, int64_t> bytes_of_;        // rank: moved by its process when it last stood at files
  PulsePlace place_ = PulsePlace::kStart;  // of the last change
  std::map<int, QueueTimes> queued_;       // by rank, early in the present silence
  std::map<int, double> suspended_since_;
};

// Whether a rank at this place works with files.
bool is_at_files(PulsePlace place);

// Kills for lack of memory so far in this process's control group; 0 if the kernel does not say.
int64_t memory_kills();

}  // namespace ashlar::launch
