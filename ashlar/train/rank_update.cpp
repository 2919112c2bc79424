#include "ashlar/train/rank_update.h"

#include "ashlar/parallel/muon_holdings.h"
#include "ashlar/tensor/pieces.h"

namespace ashlar::train {

namespace {

// The state of another rank that has the same share of the model, on meta.
class OtherRank {
 public:
  OtherRank(const Trainer& like, int rank)
      : like_(like),
        world_(like.model().muon().number_of(rank), like.model().muon().group().size(), {},
               allocator_),
        state_(like.model().zero().of_rank(allocator_, rank)),
        optimizer_(
            make_optimizer(allocator_, like.model(), world_.group(), std::move(state_.parameters))),
        ctx_{.device = Device::kMeta,
             .ops = like.context().ops,
             .threads = like.context().threads,
             .workspace = &workspace_,
             .trace = &world_.group().trace(),
             .spec = like.context().spec} {
    if (like.model().zero().stage() == 0) optimizer_.pack_in_updates(like.model().packed_rows());
  }

  // Returns the number of events of the gradient norm.
  size_t update() {
    optimizer_.gradient_squares(ctx_, [&](std::span<const kernels::Download> squares) {
      std::vector<kernels::Download> list;  // as RankModel::download_results puts it together
      for (const Tensor& result : like_.model().results()) list.push_back({.from = result});
      list.insert(list.end(), squares.begin(), squares.end());
      kernels::download(ctx_, list);
    });
    const size_t norm_end = trace().events().size();
    optimizer_.step(ctx_, like_.learning_rate(0), 1.0);
    return norm_end;
  }
  void run(const parallel::Zero::ShardWork& work) const {
    like_.model().zero().run(ctx_, work, state_);
  }

  Trace& trace() const { return *ctx_.trace; }
  const optim::Optimizer& optimizer() const { return optimizer_; }
  MemoryCounts memory() const { return allocator_.counts(); }
  int64_t workspace_bytes() const { return workspace_.peak_bytes(); }

 private:
  const Trainer& like_;
  Allocator allocator_{Device::kMeta};
  comm::RecordingWorld world_;  // stands for the group of the rank in which matrices are gathered
  parallel::Zero::OfRank state_;
  optim::Optimizer optimizer_;
  Arena workspace_{Device::kMeta};
  const kernels::Context ctx_;
};

}  // namespace

RankUpdate count_update(const Trainer& like, int rank) {
  OtherRank other(like, rank);
  other.trace().start();
  other.update();
  other.trace().stop();
  RankUpdate update;
  for (const TraceEvent& event : other.trace().events())
    if (event.kind == TraceEvent::Kind::kKernel) add_kernel(update.costs, other.trace(), event);
  update.memory = other.memory();
  update.workspace_bytes = other.workspace_bytes();
  std::vector<KeptTensor> values;
  for (const Parameter& p : other.optimizer().parameters())
    values.push_back({&p, p.logical, p.value});
  update.share = {pieces_to_write(values), other.optimizer().pieces(true)};
  return update;
}

void trace_own(const Trainer& like, int rank, std::span<const parallel::Zero::ShardWork> works,
               function_ref<void(const Trace&, const OwnEvents&)> read) {
  OtherRank other(like, rank);
  OwnEvents own;
  other.trace().start();
  own.norm_end = other.update();
  own.update_end = other.trace().events().size();
  for (const parallel::Zero::ShardWork& work : works) {
    other.run(work);
    own.work_ends.push_back(other.trace().events().size());
  }
  other.trace().stop();
  read(other.trace(), own);
}

}  // namespace ashlar::train
