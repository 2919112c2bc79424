#include "ashlar/plan/checkpoint.h"

#include "ashlar/models/step_model.h"
#include "ashlar/train/plan.h"

namespace ashlar::plan {
namespace {

void note(const checkpoint::NodeShare& written, std::string& problem) {
  try {
    train::check_files(written);
  } catch (const Error& error) {
    if (problem.empty()) problem = error.what();
  }
}

}  // namespace

void CheckpointMeter::add(const train::Trainer& trainer) {
  const int64_t every = recipe_.checkpoint.every;
  auto writer = std::make_unique<train::StateWriter>(
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

checkpoint::StepSize CheckpointMeter::size() const {
  const bool gathered =
      ranks_per_node_ > 1 && train::gathers(busiest_bytes_, recipe_.checkpoint.gather_mib);
  const std::string& problem = gathered ? gathered_problem_ : alone_problem_;
  ASHLAR_REQUIRE(problem.empty() || recipe_.checkpoint.every < 0, kConfig, "{}", problem);
  return gathered ? gathered_.size() : alone_.size();
}

// The first member of the machine writes what all of them keep.
void CheckpointMeter::add_machine() {
  const checkpoint::NodeShare all = checkpoint::pieces_at(checkpoint::lay_out(members_), nullptr);
  members_.clear();
  note(all, gathered_problem_);
  first_.request.model = all.model;
  first_.request.optim = all.optim;
  add(gathered_, first_.request, (rank_ - 1) / ranks_per_node_,
      (num_ranks_ + ranks_per_node_ - 1) / ranks_per_node_);
}

void CheckpointMeter::add(checkpoint::StepMeter& meter, const checkpoint::SaveRequest& request,
                          int writer, int num_writers) {
  const checkpoint::Id id{};
  meter.add(checkpoint::make_save_plan(request, checkpoint::to_text(id), id, writer, num_writers));
}

checkpoint::StepSize plan_checkpoint(const Recipe& recipe, DType compute, int num_ranks,
                                     int num_threads, int ranks_per_node) {
  Threads threads(train::planned_threads(recipe, num_threads));
  CheckpointMeter meter(recipe, num_ranks, ranks_per_node);
  for (int rank = 0; rank < num_ranks; ++rank)
    meter.add(train::DryRank(recipe, compute, num_ranks, rank, threads).trainer());
  return meter.size();
}

}  // namespace ashlar::plan
