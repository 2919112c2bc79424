#include "ashlar/train/rank_update.h"

#include "ashlar/parallel/muon_holdings.h"
#include "ashlar/parallel/zero.h"
#include "ashlar/tensor/pieces.h"

namespace ashlar::train {

RankUpdate count_update(const Trainer& like, int rank) {
  const parallel::RankModel& model = like.model();
  const parallel::MuonMatrices& muon = model.muon();
  RankUpdate update;
  Allocator allocator(Device::kMeta);
  // Stands for the group of the rank in which matrices are gathered.
  comm::RecordingWorld ranks(muon.number_of(rank), muon.group().size(), {}, allocator);
  parallel::Zero::OfRank kept = model.zero().of_rank(allocator, rank);
  optim::Optimizer optimizer =
      make_optimizer(allocator, model, ranks.group(), std::move(kept.parameters));
  if (model.zero().stage() == 0) optimizer.pack_in_updates(model.packed_rows());

  Arena workspace(Device::kMeta);
  Trace& trace = ranks.group().trace();
  const kernels::Context ctx{.device = Device::kMeta,
                             .threads = like.context().threads,
                             .workspace = &workspace,
                             .trace = &trace};
  trace.start();
  optimizer.gradient_squares(ctx);
  optimizer.step(ctx, like.learning_rate(0), 1.0);
  trace.stop();
  for (const TraceEvent& event : trace.events())
    if (event.kind == TraceEvent::Kind::kKernel) add_kernel(update.costs, trace, event);

  update.memory = allocator.counts();
  update.workspace_bytes = workspace.peak_bytes();
  std::vector<KeptTensor> values;
  for (const Parameter& p : optimizer.parameters()) values.push_back({&p, p.logical, p.value});
  update.share = {pieces_to_write(values), optimizer.pieces(true)};
  return update;
}

}  // namespace ashlar::train
