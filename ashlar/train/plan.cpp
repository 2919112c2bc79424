// How it works.  A plan takes two dry runs of a rank.  The first has a workspace that only counts,
// and so finds how large it must be and where it is fullest; the second is given a workspace of
// that size and does nothing, since all memory is taken by the constructor: its count is the plan.
// Of a step with many micro-batches the first is a short one, and another, a little longer, tells
// how costs grow, so that a step of a hundred thousand micro-batches is planned in a moment.
//
// plan_mesh does not run the step of every rank.  It makes every rank's trainer and runs its
// optimizer (kinds_of_ranks), which shows all that a step depends on (Signature), then runs one
// whole step per signature.  The work of all ranks is
//
//   sum over ranks of the update + sum over kinds of (step - update) of the first rank * ranks
//
// Ranks of different kinds may still need the same memory at the same place: they become one class.
#include "ashlar/train/plan.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "ashlar/models/step_model.h"
#include "ashlar/nn/parameters.h"
#include "ashlar/train/node_saves.h"
#include "ashlar/train/state.h"

namespace ashlar::train {
namespace {

// The threads of a rank, as many as in the run: Newton-Schulz takes workspace for each.
int planned_threads(const Recipe& recipe, int num_threads) {
  return num_threads > 0 ? num_threads : int(recipe.train.threads);
}

// The same recipe with so many micro-batches of each data rank in a step.
Recipe with_micro_batches(Recipe recipe, int64_t dp, int64_t micro_batches) {
  recipe.train.global_batch = micro_batches * recipe.train.micro_batch * dp;
  recipe.data.num_streams = recipe.train.global_batch;
  return recipe;
}

// What a step costs, sends and records is linear in its micro-batches once a pipeline is full: it
// grows by the same for every so many of them.
struct Growth {
  int64_t micro_batches, period;  // of the shorter of the two steps that tell it; its growth
  int64_t times;                  // that a whole step has grown since
};

// nullopt: the step is short enough to be run as it is.
std::optional<Growth> growth_of(const Recipe& recipe, const ParallelSpec& parallel) {
  const int64_t all = recipe.train.global_batch / recipe.train.micro_batch / parallel.dp;
  const int64_t period = parallel.pp, full = 4 * parallel.pp * parallel.virtual_stages + 4;
  if (all < full + 4 * period) return std::nullopt;
  const int64_t first = full + (all - full) % period;
  return Growth{first, period, (all - first) / period};
}

int64_t grown(int64_t shorter, int64_t longer, const Growth& growth) {
  return shorter + growth.times * (longer - shorter);
}

// What one step of a dry run tells.
void take_step(DryRank& dry, RunPlan& plan) {
  dry.step();
  plan.costs = dry.costs();
  plan.traffic = dry.traffic();
  plan.trace = dry.num_events();
}

// From a step to one that has grown.  `longer`: the step after one period.
void grow(RunPlan& plan, const RunPlan& longer, const Growth& growth) {
  Costs costs;
  add(costs, longer.costs, growth.times);
  add(costs, plan.costs, 1 - growth.times);
  plan.costs = std::move(costs);
  ASHLAR_ASSERT(plan.traffic.size() == longer.traffic.size());
  for (size_t i = 0; i < plan.traffic.size(); ++i) {
    comm::TrafficRow& row = plan.traffic[i].row;
    const comm::TrafficRow& next = longer.traffic[i].row;
    ASHLAR_ASSERT(row.op == next.op && row.label == next.label);
    row.launches = grown(row.launches, next.launches, growth);
    row.sent_bytes = grown(row.sent_bytes, next.sent_bytes, growth);
    row.received_bytes = grown(row.received_bytes, next.received_bytes, growth);
  }
  plan.trace.events = grown(plan.trace.events, longer.trace.events, growth);
  plan.trace.lane_events = grown(plan.trace.lane_events, longer.trace.lane_events, growth);
  plan.trace.messages = grown(plan.trace.messages, longer.trace.messages, growth);
}

RunPlan plan_rank(const Recipe& recipe, DType compute, int num_ranks, int rank, Threads& threads) {
  const ParallelSpec parallel = resolve_parallel(recipe, num_ranks);
  const std::optional<Growth> growth = growth_of(recipe, parallel);
  const auto of_length = [&](int64_t periods) {
    return growth ? with_micro_batches(recipe, parallel.dp,
                                       growth->micro_batches + periods * growth->period)
                  : recipe;
  };
  RunPlan plan;
  {
    DryRank dry(of_length(0), compute, num_ranks, rank, threads);
    const int64_t allocations = dry.memory().num_allocations;
    take_step(dry, plan);
    dry.evaluate();
    ASHLAR_ASSERT(dry.memory().num_allocations == allocations);  // all is taken at the start
    plan.num_parameters = dry.trainer().num_parameters();
    plan.workspace_bytes = dry.workspace_bytes();
    plan.workspace_peak = dry.workspace_peak();
  }
  if (growth) {
    RunPlan longer;
    DryRank dry(of_length(1), compute, num_ranks, rank, threads);
    take_step(dry, longer);
    grow(plan, longer, *growth);
  }
  plan.memory = DryRank(recipe, compute, num_ranks, rank, threads, plan.workspace_bytes).memory();
  return plan;
}

using Peaks = std::array<int64_t, kNumTags>;

Peaks peaks_of(const MemoryCounts& memory) {
  Peaks peaks;
  for (size_t tag = 0; tag < peaks.size(); ++tag) peaks[tag] = memory.tags[tag].peak_bytes;
  return peaks;
}

// What a rank's step depends on: its coordinates, its memory without the workspace, and how much
// workspace the optimizer needs.
struct Signature {
  int pp, cp, tsp, tp;
  Peaks peaks;
  int64_t allocations, update_workspace_bytes;
  auto operator<=>(const Signature&) const = default;
};

// The ranks of one signature.
struct Kind {
  Signature signature;
  std::vector<int> ranks;
  Costs update;  // of the first
};

Signature signature_of(const DryRank& dry) {
  const parallel::Groups& groups = dry.trainer().model().groups();
  const MemoryCounts memory = dry.memory();
  return {groups.coordinate(parallel::Axis::kPp),
          groups.coordinate(parallel::Axis::kCp),
          groups.coordinate(parallel::Axis::kTsp),
          groups.coordinate(parallel::Axis::kTp),
          peaks_of(memory),
          memory.num_allocations,
          dry.workspace_bytes()};
}

// Counts what is written of the first step that is saved, from one rank after another: if every
// rank writes its own part, and if one of each machine writes for all.  The leader's extra files
// are those of a run; for the tokenizer, which nobody has read, stands a short text.
class CheckpointMeter {
 public:
  CheckpointMeter(const Recipe& recipe, int num_ranks, int ranks_per_node)
      : recipe_(recipe),
        num_ranks_(num_ranks),
        ranks_per_node_(std::min(ranks_per_node, num_ranks)) {}

  void add(const Trainer& trainer) {
    const int64_t every = recipe_.checkpoint.every;
    auto writer = std::make_unique<StateWriter>(
        trainer, models::Companions{.files = {{models::kTokenizerFile, "tokenizer"}}}, "isa");
    const data::LoaderState start = data::first_state(recipe_.data.train.size());
    const checkpoint::SaveRequest request =
        writer->request({.step = every > 0 ? every : recipe_.train.steps}, {}, start);
    members_.push_back(writer->share());
    note(members_.back(), alone_problem_);
    add(alone_, request, rank_, num_ranks_);
    busiest_bytes_ = std::max(busiest_bytes_, members_.back().bytes());
    if (rank_ % ranks_per_node_ == 0) first_ = {std::move(writer), request};
    if (++rank_ % ranks_per_node_ == 0 || rank_ == num_ranks_) add_machine();
  }

  // kConfig as the run's start.
  checkpoint::StepSize size() const {
    const bool gathered =
        ranks_per_node_ > 1 && gathers(busiest_bytes_, recipe_.checkpoint.gather_mib);
    const std::string& problem = gathered ? gathered_problem_ : alone_problem_;
    ASHLAR_REQUIRE(problem.empty() || recipe_.checkpoint.every < 0, kConfig, "{}", problem);
    return gathered ? gathered_.size() : alone_.size();
  }

 private:
  // The first member of the machine writes what all of them keep.
  void add_machine() {
    const checkpoint::NodeShare all = checkpoint::pieces_at(checkpoint::lay_out(members_), nullptr);
    members_.clear();
    note(all, gathered_problem_);
    first_.request.model = all.model;
    first_.request.optim = all.optim;
    add(gathered_, first_.request, (rank_ - 1) / ranks_per_node_,
        (num_ranks_ + ranks_per_node_ - 1) / ranks_per_node_);
  }
  static void note(const checkpoint::NodeShare& written, std::string& problem) {
    try {
      check_files(written);
    } catch (const Error& error) {
      if (problem.empty()) problem = error.what();
    }
  }
  void add(checkpoint::StepMeter& meter, const checkpoint::SaveRequest& request, int writer,
           int num_writers) {
    const checkpoint::Id id{};
    meter.add(
        checkpoint::make_save_plan(request, checkpoint::to_text(id), id, writer + 1, num_writers));
  }

  const Recipe& recipe_;
  int num_ranks_, ranks_per_node_, rank_ = 0;
  int64_t busiest_bytes_ = 0;
  // Of the machine under way.
  std::vector<checkpoint::NodeShare> members_;
  struct {
    std::unique_ptr<StateWriter> writer;  // owns what the request points to
    checkpoint::SaveRequest request;
  } first_;
  checkpoint::StepMeter alone_, gathered_;
  std::string alone_problem_, gathered_problem_;
};

// Adds the work of all optimizers to `updates`, and what all ranks save to `meter`.
std::vector<Kind> kinds_of_ranks(const Recipe& recipe, DType compute, int num_ranks,
                                 Threads& threads, Costs& updates, CheckpointMeter& meter,
                                 Progress& progress) {
  std::vector<Kind> kinds;
  std::map<Signature, size_t> known;
  for (int rank = 0; rank < num_ranks; ++rank) {
    DryRank dry(recipe, compute, num_ranks, rank, threads);
    meter.add(dry.trainer());
    dry.update();
    add(updates, dry.costs());
    const Signature signature = signature_of(dry);
    const auto [found, added] = known.try_emplace(signature, kinds.size());
    if (added) kinds.push_back({signature, {}, dry.costs()});
    kinds[found->second].ranks.push_back(rank);
    progress.advance(1);
  }
  return kinds;
}

bool same_memory(const RunPlan& a, const RunPlan& b) {
  return peaks_of(a.memory) == peaks_of(b.memory) &&
         a.memory.num_allocations == b.memory.num_allocations &&
         a.workspace_peak == b.workspace_peak;
}

void add_to_classes(std::vector<RankClass>& classes, const std::vector<int>& ranks, RunPlan plan) {
  for (RankClass& c : classes) {
    if (!same_memory(c.plan, plan)) continue;
    const auto middle = c.ranks.insert(c.ranks.end(), ranks.begin(), ranks.end());
    std::inplace_merge(c.ranks.begin(), middle, c.ranks.end());
    return;
  }
  classes.push_back({ranks, std::move(plan)});
}

}  // namespace

RunPlan plan_run(const Recipe& recipe, DType compute, int num_ranks, int num_threads, int rank) {
  Threads threads(planned_threads(recipe, num_threads));
  return plan_rank(recipe, compute, num_ranks, rank, threads);
}

MeshPlan plan_mesh(const Recipe& recipe, DType compute, int num_ranks, std::optional<int> rank,
                   int num_threads, int ranks_per_node, Log* log) {
  Log silent([](std::string_view) {});
  if (!log) log = &silent;
  MeshPlan plan;
  plan.parallel = resolve_parallel(recipe, num_ranks);
  Threads threads(planned_threads(recipe, num_threads));
  if (rank) {
    ASHLAR_REQUIRE(0 <= *rank && *rank < num_ranks, kConfig,
                   "rank {} of {} ranks; expected 0 to {}", *rank, num_ranks, num_ranks - 1);
    plan.classes.push_back({{*rank}, plan_rank(recipe, compute, num_ranks, *rank, threads)});
    return plan;
  }
  Costs& all = plan.costs.emplace();
  CheckpointMeter meter(recipe, num_ranks, ranks_per_node);
  std::vector<Kind> kinds;
  {
    Progress progress(*log, "counting ranks", num_ranks, "ranks");
    kinds = kinds_of_ranks(recipe, compute, num_ranks, threads, all, meter, progress);
  }
  Progress progress(*log, "counting a step of each kind of rank", int64_t(kinds.size()), "kinds");
  for (const Kind& kind : kinds) {
    RunPlan first = plan_rank(recipe, compute, num_ranks, kind.ranks[0], threads);
    // Ranks of a kind differ in their optimizers' work alone, and that is in the sum.
    const auto num = int64_t(kind.ranks.size());
    add(all, first.costs, num);
    add(all, kind.update, -num);
    add_to_classes(plan.classes, kind.ranks, std::move(first));
    progress.advance(1);
  }
  plan.checkpoint = meter.size();
  return plan;
}

checkpoint::StepSize plan_checkpoint(const Recipe& recipe, DType compute, int num_ranks,
                                     int num_threads, int ranks_per_node) {
  Threads threads(planned_threads(recipe, num_threads));
  CheckpointMeter meter(recipe, num_ranks, ranks_per_node);
  for (int rank = 0; rank < num_ranks; ++rank)
    meter.add(DryRank(recipe, compute, num_ranks, rank, threads).trainer());
  return meter.size();
}

}  // namespace ashlar::train
