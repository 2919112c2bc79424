#include "ashlar/launch/by_hand.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "ashlar/control/address.h"
#include "ashlar/core/agent.h"
#include "ashlar/launch/epochs.h"

namespace ashlar::launch {

// mpirun ends the ranks at once when one fails, and tells whose lines are whose.  Ranks on other
// nodes get those variables of the launcher that are named.
std::vector<std::string> mpirun_words(const std::vector<std::string>& nodes, int ranks_per_node) {
  std::vector<std::string> words{"mpirun"};
  if (geteuid() == 0) words.push_back("--allow-run-as-root");
  for (const char* word : {"--oversubscribe", "--bind-to", "none", "--tag-output", "--mca",
                           "odls_base_sigkill_timeout", "0"})
    words.push_back(word);
  std::vector<std::string> hosts;
  for (const std::string& node : nodes) hosts.push_back(fmt::format("{}:{}", node, ranks_per_node));
  if (!hosts.empty()) {
    words.insert(words.end(), {"--host", fmt::format("{}", fmt::join(hosts, ","))});
    for (const char* variable : {kAgentVariable, kAttemptVariable, kEpochVariable})
      words.insert(words.end(), {"-x", variable});
  }
  const size_t num_nodes = std::max<size_t>(1, nodes.size());
  words.insert(words.end(), {"-n", std::to_string(num_nodes * size_t(ranks_per_node))});
  return words;
}

int run_by_hand(const LaunchPlan& plan, const FleetWorld& world, FileSystem& files, Log& log) {
  const std::string directory = join(plan.run_directory, "launch");
  files.make_directories(directory);
  EpochFiles epochs(files, directory);
  const std::string machine = control::this_node(), node = machine.substr(0, machine.find('/'));
  return run_on_site(plan, world,
                     {.job = fmt::format("by hand, after epoch {}", epochs.last_ended()),
                      .node = node,
                      .number = epochs.number_of(machine),
                      .kind = StarterKind::kMpirun,
                      .starter = mpirun_words},
                     files, log);
}

}  // namespace ashlar::launch
