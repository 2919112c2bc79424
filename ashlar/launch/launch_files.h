// The files of the run directory that outlive a launcher: it reads them at its start.
//
//   launch/lock        held by the launcher that runs the directory
//   launch/state.json  the counts of the Policy, written before they have an effect
//   launch/ranks/N     the lines of attempt N
//   metrics.jsonl      the steps that the health check skipped
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/skip_list.h"
#include "ashlar/launch/policy.h"

namespace ashlar::launch {

// The run's directory belongs to one launcher at a time.
class LaunchLock {
 public:
  explicit LaunchLock(const std::string& path);  // kConfig: another one holds it
  ~LaunchLock();
  LaunchLock(const LaunchLock&) = delete;
  LaunchLock& operator=(const LaunchLock&) = delete;

 private:
  int fd_;
};

// One more than the last attempt whose lines are in `ranks`.
int next_attempt(FileSystem& files, const std::string& ranks);

CommittedSteps steps_in(FileSystem& files, const std::string& root);
// The newest committed step before this one; -1: there is none.
int64_t newest_step_before(FileSystem& files, const std::string& root, int64_t step);

// Living processes of this run on this machine that a launcher started.
std::vector<int64_t> launched_processes(const std::string& run_directory);

// The state that an earlier launcher left, or a new one.  since_epoch_s: what to add to a time of
// the Policy's clock for seconds since 1970, in which the file has them.
// Errors  kCorrupt.
PolicyState read_policy_state(FileSystem& files, const std::string& path, double since_epoch_s);
void write_policy_state(FileSystem& files, const std::string& path, const PolicyState& state,
                        double since_epoch_s);

// The last step that the health check skipped and those up to 1000 steps before it, ascending, as
// metrics.jsonl has them; empty if there are none.  Steps without targets are not among them.
std::vector<HarmfulStep> skipped_steps(FileSystem& files, const std::string& metrics);
// The last step that metrics.jsonl has a row of; 0: there is none.
int64_t last_step_done(FileSystem& files, const std::string& metrics);
// The first step of the trouble that these ended with: skips at most 50 steps apart belong
// together.  The ones before it were not applied, and did the run no harm.
int64_t begin_of_last_trouble(std::span<const HarmfulStep> skipped);

}  // namespace ashlar::launch
