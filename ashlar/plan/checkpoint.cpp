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

// The request of a rank that writes its share and nothing else.
checkpoint::SaveRequest request_at(int64_t step) {
  return {.step = step,
          .attempt = {},
          .model = {},
          .optim = {},
          .loader = {},
          .whole = {},
          .extra = {},
          .sections = {},
          .aliases = {},
          .await_data = {},
          .before_commit = {}};
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
  add(std::move(share), request_at(step_));
}

void CheckpointMeter::add(checkpoint::NodeShare share, checkpoint::SaveRequest request) {
  members_.push_back(std::move(share));
  const checkpoint::NodeShare& own = members_.back();
  note(own, alone_problem_);
  request.model = own.model;
  request.optim = own.optim;
  add(alone_, request, rank_, num_ranks_);
  busiest_bytes_ = std::max(busiest_bytes_, own.bytes());
  if (rank_ % ranks_per_node_ == 0) first_ = std::move(request);
  if (++rank_ % ranks_per_node_ == 0 || rank_ == num_ranks_) add_machine();
}

// The first member of the machine writes what all of them keep.
void CheckpointMeter::add_machine() {
  const std::vector<checkpoint::NodeShare> members = std::exchange(members_, {});
  if (!may_gather()) return;
  const checkpoint::NodeShare all = checkpoint::pieces_at(checkpoint::lay_out(members), nullptr);
  note(all, gathered_problem_);
  first_.model = all.model;
  first_.optim = all.optim;
  add(gathered_, first_, (rank_ - 1) / ranks_per_node_,
      (num_ranks_ + ranks_per_node_ - 1) / ranks_per_node_);
}

// As far as is known of the busiest rank.
bool CheckpointMeter::may_gather() const {
  return ranks_per_node_ > 1 && train::gathers(busiest_bytes_, recipe_.checkpoint.gather_mib);
}

void CheckpointMeter::join(const CheckpointMeter& next) {
  ASHLAR_ASSERT(members_.empty() && next.members_.empty());
  rank_ = next.rank_;
  busiest_bytes_ = std::max(busiest_bytes_, next.busiest_bytes_);
  alone_.add(next.alone_);
  gathered_.add(next.gathered_);
  if (alone_problem_.empty()) alone_problem_ = next.alone_problem_;
  if (gathered_problem_.empty()) gathered_problem_ = next.gathered_problem_;
}

checkpoint::StepSize CheckpointMeter::size() const {
  const bool gathered = may_gather();
  const std::string& problem = gathered ? gathered_problem_ : alone_problem_;
  ASHLAR_REQUIRE(problem.empty() || recipe_.checkpoint.every < 0, kConfig, "{}", problem);
  return gathered ? gathered_.size() : alone_.size();
}

void CheckpointMeter::add(checkpoint::StepMeter& meter, const checkpoint::SaveRequest& request,
                          int writer, int num_writers) {
  const checkpoint::Id id{};
  meter.add(checkpoint::make_save_plan(request, checkpoint::to_text(id), id, writer, num_writers));
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
