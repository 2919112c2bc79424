#include "ashlar/parallel/cp.h"

namespace ashlar::parallel {

void CpRowSums::sum(const Tensor& of_rows) {
  ranks_.all_reduce(of_rows, of_rows, "row loads").wait();
}

CpSequence::CpSequence(const kernels::Context& ctx, const CpKinds& kinds, comm::Group& ranks,
                       const CpSplit& split, const nn::ModelWeights& weights,
                       const nn::Types& types, Allocator& allocator)
    : split_(split),
      rank_(ranks.rank()),
      parts_(size_t(split.num_ranks)),
      halos_(ranks, split, weights.needs(), types.wide, allocator),
      keys_(CpKeys::make(kinds.keys, ranks, split, parts_, weights.needs(), types, allocator)),
      rows_(ranks) {
  for (std::vector<Segment>& part : parts_) part.reserve(size_t(split.local_tokens()));
  sequence_.reserve(split.local_tokens());
  const nn::ExchangeNeeds::StateShape state = weights.needs().state;
  if (state.heads == 0) return;
  CpStates::LogDecays log_decays(weights.blocks.size());
  weights.for_each_block([&](const nn::Block& block, int64_t l) {
    log_decays[size_t(l)] = block.mixer->needs().tokens.log_decay_H;
  });
  states_ =
      CpStates::make(ctx, kinds.states, ranks, split, state, log_decays, types.wide, allocator);
}

void CpSequence::assign(std::span<const Segment> whole_rows) {
  for (int rank = 0; rank < split_.num_ranks; ++rank)
    take_local_segments(split_, rank, whole_rows, parts_[size_t(rank)]);
  sequence_.assign(parts_[size_t(rank_)]);
  ASHLAR_ASSERT(sequence_.num_tokens() == split_.local_tokens());
  halos_.assign(sequence_);
  keys_->assign();
  if (states_) states_->assign(whole_rows);
}

nn::TokenExchanges CpSequence::exchanges() {
  return {.halos = &halos_,
          .keys = keys_.get(),
          .states = states_.get(),
          .passing = states_.get(),
          .rows = &rows_};
}

void CpSequence::finish_sends() {
  if (states_) states_->finish_sends();
}

}  // namespace ashlar::parallel
