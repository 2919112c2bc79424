#include "ashlar/plan/simulate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "ashlar/core/text.h"
#include "ashlar/sim/machine_costs.h"
#include "ashlar/sim/perfetto.h"
#include "ashlar/sim/traces.h"
#include "ashlar/sizing/bucket_bytes.h"

namespace ashlar::plan {
namespace {

// A dry run's step is repeated: the first one has nothing from before, the last one is steady.
constexpr int kRepeatsOfADryStep = 4;

std::array<double, 3> shares_of(std::array<double, 3> seconds) {
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  for (double& s : seconds) s = sum > 0 ? s / sum : 0;
  return seconds;
}

// Kernels whose times are laws, by the seconds that all ranks spend in them.
std::vector<std::string> kernels_by_law(const sim::RankPrograms& programs,
                                        const sim::MachineCosts& costs) {
  std::map<std::string, double> seconds;
  const std::vector<double> of_kernels = costs.seconds_of_kernels();
  for (size_t i = 0; i < of_kernels.size(); ++i)
    if (costs.kernel_times()[i].source == sim::TimeSource::kLaw)
      seconds[programs.kernels[i].op] += of_kernels[i];
  std::vector<std::string> names;
  for (const auto& [op, s] : seconds) names.push_back(op);
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return seconds[a] > seconds[b];
  });
  return names;
}

void add_notes(SimulatedStep& step, const sim::RankPrograms& programs, const MachineFile& machine,
               const sim::WorkTimes& kernels, const sim::MachineCosts& costs,
               const sim::Imbalance& imbalance, const SimulateOptions& options, double read_bytes) {
  const auto note = [&](std::string text) { step.notes.push_back(std::move(text)); };
  if (machine.kernels.empty())
    note("the profile has no table of kernels: all times are laws (ashlar bench kernels)");
  if (!kernels.used().empty())
    note(fmt::format("laws of kernels rest on {}", fmt::join(kernels.used(), ", ")));
  if (!machine.kernels.empty() && kernels.num_ranks() < costs.ranks_per_node() &&
      !costs.on_devices())
    note(fmt::format("the table of kernels was measured with {} ranks computing, not {}",
                     kernels.num_ranks(), costs.ranks_per_node()));
  if (!costs.on_devices() && !machine.profile.find("launch.wake_busy"))
    note("launch.wake_busy is not known: lanes wake at once (ashlar bench launch)");
  if (!costs.on_devices() && costs.threads() > 1)
    note(fmt::format("ranks have {} threads, the cores of a node over its ranks", costs.threads()));
  note(read_bytes > 0
           ? fmt::format("a rank reads {:.0f} bytes a step, 4 for each of its tokens", read_bytes)
           : "reading batches takes no time: storage.read is not known (ashlar bench storage)");
  if (step.between_s == 0) note("nothing passes between two steps");
  if ((options.imbalance.hot || options.imbalance.loads) && !imbalance.splits_experts())
    note("every rank has all experts: their loads change nothing");
  if (programs.ranks_for_each > 1)
    note(fmt::format(
        "one of every {} ranks is simulated: shards, and the matrices that Muon gathers, "
        "are as its own on the others",
        programs.ranks_for_each));
  if (programs.dry) note("a document a row, and every expert gets as many rows as another");
  if (machine.profile.calibration)
    note(fmt::format("calibrated on {}: mean error {:.1f} %, largest {:.1f} %",
                     machine.profile.calibration->date,
                     100 * machine.profile.calibration->mean_error,
                     100 * machine.profile.calibration->largest_error));
  else
    note("not calibrated: the error of this machine's simulations is not known");
}

}  // namespace

MachineFile read_machine(FileSystem& files, const std::string& name) {
  MachineFile machine;
  const bool is_file = files.stat(name, LinkPolicy::kFollow).has_value();
  const char* shipped = is_file ? nullptr : machine::shipped_text(name);
  ASHLAR_REQUIRE(is_file || shipped, kConfig, "--machine {}: there is no such file or machine{}",
                 printable(name), suggestion(name, machine::shipped_names()));
  machine.profile = machine::parse_profile(shipped ? shipped : read_text(files, name), name);
  if (!machine.profile.kernels || shipped) return machine;
  const std::string path = machine::path_beside(name, machine.profile.kernels->file);
  machine.kernels =
      machine::parse_kernel_table(read_text(files, path), *machine.profile.kernels, path);
  return machine;
}

Recipe with_bucket_bytes(Recipe recipe, int64_t num_ranks, const MachineFile& machine,
                         int64_t ranks_per_node) {
  const sizing::SaturatingSizes sizes(machine.profile, ranks_per_node);
  return sizing::with_bucket_bytes(std::move(recipe), num_ranks, sizes);
}

sim::RankPrograms programs_of(FileSystem& files, const std::string& directory, Log& log) {
  return sim::read_traces(files, directory, log);
}

std::string perfetto_of(const sim::RankPrograms& programs, const SimulatedStep& step) {
  return sim::to_chrome_json(programs, step.replayed);
}

namespace {

// Token ids of a rank's share of a batch, if the profile says how fast a disk is read.
double bytes_to_read(const sim::RankPrograms& programs, const machine::Profile& profile) {
  constexpr double kBytesOfAToken = 4;
  if (sim::disk_gbps(profile) <= 0) return 0;
  return kBytesOfAToken * double(programs.tokens) / double(programs.ranks.size());
}

}  // namespace

SimulatedStep simulate_step(const sim::RankPrograms& programs, const MachineFile& machine,
                            const SimulateOptions& options) {
  ASHLAR_REQUIRE(programs.ranks_for_each == 1 || options.imbalance.slow.empty(), kConfig,
                 "--lump simulates one of every {} ranks, which are alike; --slow {}={} makes one "
                 "unlike: leave out --lump",
                 programs.ranks_for_each, options.imbalance.slow.begin()->first,
                 options.imbalance.slow.begin()->second);
  const sim::WorkTimes kernels(machine.profile, machine.kernels);
  const sim::Imbalance imbalance(programs, options.imbalance);
  const double read_bytes = bytes_to_read(programs, machine.profile);
  sim::MachineCosts costs(machine.profile, programs, kernels, imbalance,
                          {options.ranks_per_node, options.engine, read_bytes});
  const bool one_step = programs.ranks[0].num_steps == 1;
  SimulatedStep step;
  step.replayed =
      sim::replay(programs, costs,
                  {.repeats = one_step ? kRepeatsOfADryStep : 1, .keep_spans = options.keep_spans});
  std::string& problem = step.replayed.problem;
  std::replace(problem.begin(), problem.end(), '\n', '|');
  ASHLAR_REQUIRE(problem.empty(), kConfig, "the step never ends: {}", problem);
  step.num_steps = int(step.replayed.step_s.size());
  // The median of the steps behind the first, which nothing precedes.
  std::vector<double> times = step.replayed.step_s;
  if (times.size() > 1) times.erase(times.begin());
  std::nth_element(times.begin(), times.begin() + int64_t(times.size() / 2), times.end());
  step.step_s = times[times.size() / 2];
  step.between_s = programs.between_s;
  step.tokens = programs.tokens;
  step.num_ranks = int(programs.ranks.size());
  for (int rank = 0; rank < step.num_ranks; ++rank)
    if (programs.simulates(rank)) step.simulated.push_back(rank);
  step.num_nodes = (step.num_ranks + costs.ranks_per_node() - 1) / costs.ranks_per_node();
  step.dry = programs.dry;
  step.threads = costs.threads();
  step.engine = costs.engine();
  step.kernel_shares = shares_of(costs.kernel_seconds());
  step.operation_shares = shares_of(costs.operation_seconds());
  step.by_law = kernels_by_law(programs, costs);
  add_notes(step, programs, machine, kernels, costs, imbalance, options, read_bytes);
  return step;
}

void grow(SimulatedStep& step, const SimulatedStep& longer, const train::ShortSteps& steps,
          int64_t tokens) {
  step.step_s = steps.grown(step.step_s, longer.step_s);
  step.tokens = tokens;
  for (size_t rank = 0; rank < step.replayed.ranks.size(); ++rank) {
    sim::RankShare& share = step.replayed.ranks[rank];
    for (double sim::RankShare::*part :
         {&sim::RankShare::step_s, &sim::RankShare::compute_s, &sim::RankShare::exposed_s,
          &sim::RankShare::waiting_s, &sim::RankShare::between_s})
      share.*part = steps.grown(share.*part, longer.replayed.ranks[rank].*part);
  }
}

}  // namespace ashlar::plan
