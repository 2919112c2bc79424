#include "ashlar/plan/checkpoint.h"

#include "ashlar/models/step_model.h"
#include "ashlar/plan/rank_counts.h"
#include "ashlar/train/plan.h"

namespace ashlar::plan {
namespace {

void note(const checkpoint::NodeShare& written, std::string& problem) {
  if (!problem.empty()) return;
  try {
    train::check_files(written);
  } catch (const Error& error) {
    problem = error.what();
  }
}

}  // namespace

checkpoint::NodeShare share_of(const train::Trainer& trainer) {
  return train::StateWriter(trainer, {}, "isa").share();
}

void CheckpointMeter::add(const train::Trainer& trainer) {
  if (rank_ != 0) return add(share_of(trainer));
  leader_ = std::make_unique<train::StateWriter>(
      trainer, models::Companions{.files = {{models::kTokenizerFile, "tokenizer"}}}, "isa");
  const data::LoaderState start = data::first_state(recipe_.data.train.size());
  add(leader_->share(), leader_->request({.step = step_}, {}, start));
}

void CheckpointMeter::add(checkpoint::NodeShare share) {
  ASHLAR_ASSERT(rank_ != 0);
  add(std::move(share), {.step = step_});
}

void CheckpointMeter::add(checkpoint::NodeShare share, checkpoint::SaveRequest request) {
  busiest_bytes_ = std::max(busiest_bytes_, share.bytes());
  const int rank = rank_++;
  if (!gathers_) {
    note(share, problem_);
    request.model = share.model;
    request.optim = share.optim;
    return add(request, rank, num_ranks_);
  }
  members_.push_back(std::move(share));
  if (rank % ranks_per_node_ == 0) first_ = std::move(request);
  if (rank_ % ranks_per_node_ == 0 || rank_ == num_ranks_) add_machine();
}

// The first member of the machine writes what all of them keep.
void CheckpointMeter::add_machine() {
  const std::vector<checkpoint::NodeShare> members = std::exchange(members_, {});
  const checkpoint::NodeShare all = checkpoint::pieces_at(checkpoint::lay_out(members), nullptr);
  note(all, problem_);
  first_.model = all.model;
  first_.optim = all.optim;
  add(first_, (rank_ - 1) / ranks_per_node_, (num_ranks_ + ranks_per_node_ - 1) / ranks_per_node_);
}

bool CheckpointMeter::gathers(const Recipe& recipe, int ranks_per_node, int64_t busiest_bytes) {
  return ranks_per_node > 1 && train::gathers(busiest_bytes, recipe.checkpoint.gather_mib);
}

void CheckpointMeter::join(const CheckpointMeter& next) {
  ASHLAR_ASSERT(members_.empty() && next.members_.empty() && gathers_ == next.gathers_);
  rank_ = next.rank_;
  busiest_bytes_ = std::max(busiest_bytes_, next.busiest_bytes_);
  meter_.add(next.meter_);
  if (problem_.empty()) problem_ = next.problem_;
}

checkpoint::StepSize CheckpointMeter::size() const {
  ASHLAR_ASSERT(gathers_ == should_gather());
  ASHLAR_REQUIRE(problem_.empty() || recipe_.checkpoint.every < 0, kConfig, "{}", problem_);
  return meter_.size();
}

void CheckpointMeter::add(const checkpoint::SaveRequest& request, int writer, int num_writers) {
  const checkpoint::Id id{};
  meter_.add(checkpoint::make_save_plan(request, checkpoint::to_text(id), id, writer, num_writers));
}

checkpoint::StepSize plan_checkpoint(const Recipe& recipe, DType compute, int num_ranks,
                                     int num_threads, int ranks_per_node) {
  Threads rank_threads(train::planned_threads(recipe, num_threads)), workers(0);
  parallel::SharedMuonPlans plans;
  Log silent([](std::string_view) {});
  Progress progress(silent, "counting ranks", num_ranks, "ranks");
  return count_ranks({recipe, compute, num_ranks, ranks_per_node, rank_threads, workers, plans},
                     progress)
      .meter.size();
}

}  // namespace ashlar::plan
