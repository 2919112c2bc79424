#include "ashlar/launch/slurm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::launch {
namespace {

constexpr int kScriptAgent = 1;  // on the job's first node, which runs its script

std::string slurm_variable(const char* name) {
  const char* value = std::getenv(name);
  ASHLAR_REQUIRE(value, kLaunch,
                 "launch: --starter srun needs a task of srun on every node of a Slurm job, and "
                 "{} is not set; see scripts/slurm/launch.sbatch",
                 name);
  return value;
}

// The lines that a shell command prints; nullopt: there are none, or it fails.
std::optional<std::vector<std::string>> lines_of(const std::string& command) {
  FILE* lines = popen(command.c_str(), "re");
  if (!lines) return std::nullopt;
  std::string text;
  std::array<char, 4096> bytes{};
  while (const size_t count = fread(bytes.data(), 1, bytes.size(), lines))
    text.append(bytes.data(), count);
  if (pclose(lines) != 0 || text.empty()) return std::nullopt;
  return split(text, '\n');
}

// The nodes that the job still has: Slurm takes those away whose daemon is silent, though an agent
// lives there, and starts no step on them.
std::optional<std::vector<std::string>> nodes_of_job(const std::string& job) {
  return lines_of(fmt::format(
      "scontrol show hostnames \"$(timeout 2 squeue --noheader --jobs={} --format=%N)\" "
      "2>/dev/null",
      job));
}

// Whether the node of the job's script starts processes, so that the script lives.  The agent ends
// the leader 5 s after the run.
bool script_lives(const std::string& job) {
  return lines_of(
             fmt::format("node=$(timeout 1 squeue --noheader --jobs={0} --format=%B) && "
                         "env -i PATH=\"$PATH\" ${{SLURM_CONF:+SLURM_CONF=\"$SLURM_CONF\"}} "
                         "timeout --signal=KILL 3 srun --jobid={0} --overlap --nodelist=\"$node\" "
                         "--nodes=1 --ntasks=1 --mpi=none echo lives 2>/dev/null",
                         job))
      .has_value();
}

// Whether Slurm has taken the script's node out of the job, as it does while the daemon there is
// silent.  When it is heard again, Slurm kills the script, and the job never ends.
bool script_left_out(const std::string& job) {
  return lines_of(
             fmt::format("set -- $(timeout 1 squeue --noheader --jobs={} --format='%B %N') && "
                         "[ $# -eq 2 ] && ! scontrol show hostnames \"$2\" | grep -qx \"$1\" && "
                         "echo left out",
                         job))
      .has_value();
}

// Whether a person ended the job.  Slurm itself gives a reason, as where it hears again of a node
// that was lost, and of the script there, which it killed.
bool is_cancelled(const std::string& job) {
  const auto state =
      lines_of(fmt::format("timeout 2 squeue --noheader --jobs={} --format='%T %r' "
                           "2>/dev/null",
                           job));
  return state && state->front() == "COMPLETING None";
}

// Queues a job again whose run saved and stopped: the node of its script may be lost or shut down.
// Ends another job if its script cannot; nobody else does.  Does not return then.
void end_job(Leader& leader, const std::string& job, int exit_code, Log& log) {
  if (!leader.is_newest()) return;
  if (exit_code == int(ErrorKind::kPreempted)) {
    if (is_cancelled(job)) return;
    log.info("job {} is queued again", job);
    execlp("scontrol", "scontrol", "requeue", job.c_str(), nullptr);
  }
  if (leader.hears(kScriptAgent)) {
    if (!script_left_out(job)) return;
    std::this_thread::sleep_for(std::chrono::seconds(2));  // a script that lives ends the job
    if (!script_left_out(job)) return;
  } else if (script_lives(job)) {
    return;
  }
  log.warn("job {} is ended without its script, whose node is lost", job);
  execlp("scancel", "scancel", job.c_str(), nullptr);
}

}  // namespace

std::vector<std::string> srun_words(const std::string& job, const std::vector<std::string>& nodes,
                                    int ranks_per_node, int cpus_per_node) {
  return {"srun",
          "--jobid=" + job,
          "--overlap",
          fmt::format("--nodelist={}", fmt::join(nodes, ",")),
          fmt::format("--nodes={}", nodes.size()),
          fmt::format("--ntasks={}", nodes.size() * size_t(ranks_per_node)),
          fmt::format("--ntasks-per-node={}", ranks_per_node),
          fmt::format("--cpus-per-task={}", std::max(1, cpus_per_node / ranks_per_node)),
          "--mpi=pmix",
          "--cpu-bind=cores",
          "--label",
          "--kill-on-bad-exit=1"};
}

int run_in_slurm(const LaunchPlan& plan, const FleetWorld& world, FileSystem& files, Log& log) {
  const std::string job = slurm_variable("SLURM_JOB_ID");
  const int cpus = std::atoi(slurm_variable("SLURM_CPUS_ON_NODE").c_str());
  const char* restarts = std::getenv("SLURM_RESTART_COUNT");
  LaunchSite site{.job = fmt::format("{}.{}", job, restarts ? restarts : "0"),
                  .node = slurm_variable("SLURMD_NODENAME"),
                  .number = std::atoi(slurm_variable("SLURM_PROCID").c_str()) + 1};
  site.starter = [&](const auto& nodes, int ranks_per_node) {
    return srun_words(job, nodes, ranks_per_node, cpus);
  };
  site.startable = [&] { return nodes_of_job(job); };
  if (const char* configuration = std::getenv("SLURM_CONF"))
    site.variables.push_back(fmt::format("SLURM_CONF={}", configuration));
  site.at_end = [&](Leader& leader, int exit_code) { end_job(leader, job, exit_code, log); };
  return run_on_site(plan, world, site, files, log);
}

}  // namespace ashlar::launch
