#include "ashlar/plan/search_stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/plan/mesh.h"

namespace ashlar::plan {
namespace {

// Bucket sizes beside the recipe's.  In a large world every operation has many hops.
std::vector<int64_t> bucket_sizes(int num_ranks) {
  constexpr int64_t kMiB = 1 << 20;
  if (num_ranks <= kMostReplayedRanks) return {8 * kMiB, 32 * kMiB, 128 * kMiB};
  return {32 * kMiB, 128 * kMiB, 1024 * kMiB};
}

// The times of the first of these ranks that was replayed, or of another of its stage.
sim::RankShare share_for(const SimulatedStep& step, const ParallelSpec& parallel,
                         const std::vector<int>& ranks) {
  for (const int rank : step.simulated)
    if (std::binary_search(ranks.begin(), ranks.end(), rank))
      return step.replayed.ranks[size_t(rank)];
  const int of_a_stage = int(parallel.num_ranks() / parallel.pp);
  for (const int rank : step.simulated)
    if (rank / of_a_stage == ranks[0] / of_a_stage) return step.replayed.ranks[size_t(rank)];
  return {};
}

}  // namespace

sim::RankShare mean_share(const SimulatedStep& step) {
  sim::RankShare mean;
  const double n = double(step.simulated.size());
  for (const int rank : step.simulated) {
    const sim::RankShare& share = step.replayed.ranks[size_t(rank)];
    mean.compute_s += share.compute_s / n;
    mean.exposed_s += share.exposed_s / n;
    mean.waiting_s += share.waiting_s / n;
    mean.between_s += share.between_s / n;
  }
  return mean;
}

SearchStages::SearchStages(const Recipe& base, DType compute, const MachineFile& machine,
                           const SearchOptions& options, Log& log)
    : machine_(machine),
      options_(options),
      compute_(compute),
      log_(log),
      space_(base, options.num_ranks, options.goal, options.fixed, bucket_sizes(options.num_ranks)),
      rates_(machine.profile, machine.kernels, options.num_ranks, compute == DType::kBF16,
             options.ranks_per_node),
      sizes_(machine.profile, options.ranks_per_node),
      mesh_(machine.profile.links == machine::NodeLinks::kMesh),
      memory_bytes_(options.memory_bytes > 0 ? options.memory_bytes
                                             : int64_t(rates_.device_memory())),
      memory_(compute, options.num_ranks) {}

Recipe SearchStages::recipe_of(const LayoutChoice& choice) const {
  return sizing::with_bucket_bytes(space_.recipe_of(choice), options_.num_ranks, sizes_);
}

sizing::StepShape SearchStages::shape_of(const SearchedLayout& layout) const {
  return sizing::step_shape(recipe_of(layout.choice), layout.parallel, compute_ == DType::kBF16);
}

double SearchStages::promise_s(const SearchedLayout& layout) const {
  double least_s = layout.time.total_s;
  sizing::StepShape shape = shape_of(layout);
  for (const KeyValue& value : space_.keys()[space_.index_of("parallel.bucket_bytes")].values) {
    const auto* bytes = std::get_if<int64_t>(&value);
    if (!bytes || *bytes == layout.parallel.bucket_bytes) continue;
    shape.parallel.bucket_bytes = *bytes;
    least_s = std::min(least_s, sizing::step_time(shape, rates_).total_s);
  }
  return least_s;
}

std::string SearchStages::links_problem(const LayoutChoice& choice) const {
  if (!rates_.on_devices()) return "";
  const auto forced = [&](std::string_view key) {
    if (key == "parallel.dp") {  // what the other degrees leave
      for (const char* other : {"parallel.tp", "parallel.tsp", "parallel.cp", "parallel.pp"})
        if (space_.is_fixed(other)) return true;
      return false;
    }
    if (key == "parallel.cp" && space_.is_fixed("parallel.tsp")) return true;
    return space_.is_fixed(key);
  };
  return node_rule(space_.degrees_of(choice), int(rates_.ranks_per_node()), mesh_, forced);
}

SearchStages::Judged SearchStages::judge(const LayoutChoice& choice) const {
  if (!space_.divides(choice))
    return {Refusal{false, fmt::format("the degrees do not divide {} ranks", options_.num_ranks)},
            {}};
  SearchedLayout layout;
  layout.choice = choice;
  Recipe recipe = space_.recipe_of(choice);
  try {
    validate(recipe);
    recipe = sizing::with_bucket_bytes(std::move(recipe), options_.num_ranks, sizes_);
    layout.parallel = resolve_parallel(recipe, options_.num_ranks);
  } catch (const Error& error) {
    return {Refusal{false, error.what()}, {}};
  }
  layout.micro_batch = recipe.train.micro_batch;
  layout.sequence_length = recipe.data.sequence_length;
  layout.tokens = recipe.train.global_batch * recipe.data.sequence_length;
  const sizing::StepShape shape =
      sizing::step_shape(recipe, layout.parallel, compute_ == DType::kBF16);
  layout.time = sizing::step_time(shape, rates_);
  layout.formula_bytes = sizing::step_memory(shape).total;
  Judged judged;
  std::string reason = links_problem(choice);
  if (!reason.empty()) judged.refusal = Refusal{true, std::move(reason)};
  judged.layout = std::move(layout);
  return judged;
}

bool SearchStages::fits(SearchedLayout& layout) {
  if (layout.keys.empty()) layout.keys = space_.text_of(layout.choice);
  layout.memory = memory_.fullest(recipe_of(layout.choice), layout.keys);
  if (!smallest_ || layout.memory->total_bytes < smallest_->memory->total_bytes) smallest_ = layout;
  return memory_bytes_ <= 0 || layout.memory->total_bytes <= memory_bytes_;
}

SimulatedStep SearchStages::simulated_on(const MachineFile& machine, const SearchedLayout& layout) {
  SimulateOptions options;
  options.ranks_per_node = options_.ranks_per_node;
  options.engine = options_.engine;
  Log silent([](std::string_view) {});
  const auto simulated = [&](const Recipe& recipe) {
    const sim::RankPrograms programs = programs_of(recipe, compute_, options_.num_ranks, silent,
                                                   options_.num_ranks > kMostReplayedRanks);
    return simulate_step(programs, machine, options);
  };
  ++num_simulated_;
  const Recipe recipe = recipe_of(layout.choice);
  const int64_t micro_batches =
      recipe.train.global_batch / recipe.train.micro_batch / layout.parallel.dp;
  const auto steps = train::short_steps(recipe, layout.parallel);
  if (!steps || micro_batches <= kMostReplayedMicroBatches) return simulated(recipe);
  SimulatedStep step = simulated(steps->shorter);
  grow(step, simulated(steps->longer), *steps, layout.tokens);
  return step;
}

void SearchStages::simulate(SearchedLayout& layout) {
  layout.step = simulated_on(machine_, layout);
}

std::vector<std::pair<std::string, double>> parts_of(const sizing::StepTime& t) {
  return {{"forward", t.forward_s},
          {"recomputation", t.recompute_s},
          {"loss", t.loss_s},
          {"backward", t.backward_s},
          {"copies of weights", t.weights_s},
          {"optimizer", t.optimizer_s},
          {"waits for weights", t.gather_wait_s},
          {"exposed sums of gradients", t.gradients_wait_s},
          {"waits of tp", t.tp_s},
          {"waits of cp", t.cp_s},
          {"waits of tsp", t.tsp_s},
          {"waits of ep", t.ep_s},
          {"messages of the pipeline", t.pp_s},
          {"bubble", t.bubble_s},
          {"parts of Muon's matrices", t.muon_s},
          {"reading", t.reading_s}};
}

std::vector<ClassShare> classes_of(SearchStages& stages, const SearchedLayout& best) {
  const int num_ranks = stages.options().num_ranks;
  const Recipe recipe = stages.recipe_of(best.choice);
  const MeshPlan plan =
      plan_mesh(recipe, stages.compute(), num_ranks, {}, 0, kRanksPerNode, &stages.log());
  std::vector<ClassShare> classes;
  for (const RankClass& c : plan.classes) {
    ClassShare share;
    share.ranks = c.ranks;
    share.peak_bytes = c.plan.memory.total.peak_bytes;
    for (size_t tag = 0; tag < share.tag_bytes.size(); ++tag)
      share.tag_bytes[tag] = c.plan.memory.tags[tag].peak_bytes;
    if (best.step) share.share = share_for(*best.step, best.parallel, c.ranks);
    classes.push_back(std::move(share));
  }
  return classes;
}

}  // namespace ashlar::plan
