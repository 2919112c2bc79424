// How it works.  Chunks are numbered in the order of the walk: places 0 .. A - 1, in forward in the
// order of tokens and in backward against it.  For each chunk here, and all rows at once:
//
//   before   the map of the chunks joined so far that come before it; none in round 0
//   sent     that map, then the chunk's own: sent to the place 2^i on
//   come     the map received from the place 2^i back; it precedes `before`
//
// A map is a state (made) and a transition.  Transitions of fixed decays are not sent: they follow
// from the number of joined chunks, and from where documents start.  Transitions that are matrices
// are kept as products in the order of tokens, in either direction of the walk.
#include "ashlar/parallel/cp_exclusive_scan.h"

#include "ashlar/kernels/copy.h"

namespace ashlar::parallel {
namespace {

using kernels::Context;
using kernels::Matrix;
using nn::StateMaps;

class CpExclusiveScan final : public CpStates {
 public:
  CpExclusiveScan(comm::Group& ranks, const CpSplit& split, const State& state, DType wide,
                  Allocator& allocator)
      : CpStates(ranks, split, state) {
    for (OwnedTensor* memory : {&before_, &sent_, &come_})
      *memory = make_tensor(allocator, wide, {split.chunks_of_rank(), rows(), state.message()},
                            Tag::kCommunication);
  }

  void post(const Context&, const StateMaps&) override {}

  void finish(const Context& ctx, const StateMaps& maps) override {
    const int64_t first = ranks_.rank() * here();
    if (maps.transition) copy(ctx, maps.transition, maps.transitions.slice(first, first + here()));
    for (int64_t i = 0; i < split_.chunks_of_rank(); ++i) fill(ctx, at(before_, i), 0.0);
    for (int64_t distance = 1; distance < num_chunks(); distance *= 2) {
      for (int64_t i = 0; i < split_.chunks_of_rank(); ++i)
        for (int64_t row = 0; row < rows(); ++row) join_own(ctx, maps, i, row, distance);
      exchange(ctx, maps, distance);
      for (int64_t i = 0; i < split_.chunks_of_rank(); ++i)
        for (int64_t row = 0; place_of(maps, i) >= distance && row < rows(); ++row)
          join_come(ctx, maps, i, row, distance);
    }
    for (int64_t i = 0; i < split_.chunks_of_rank(); ++i)
      for (int64_t row = 0; row < rows(); ++row)
        copy(ctx, state_of(before_, i, row), entering(maps, i, row));
  }

  void pass_on(const Context&, const StateMaps&) override {}

 private:
  // The i-th chunk of each row here, in the order of tokens.
  int64_t chunk_of(int64_t i) const {
    return i == 0 ? ranks_.rank() : num_chunks() - 1 - ranks_.rank();
  }
  int64_t chunk_at(const StateMaps& maps, int64_t place) const {
    return maps.backward ? num_chunks() - 1 - place : place;
  }
  int64_t place_of(const StateMaps& maps, int64_t i) const { return chunk_at(maps, chunk_of(i)); }
  Tensor at(const OwnedTensor& memory, int64_t i) const { return one_of(memory.tensor, i); }
  Tensor entering(const StateMaps& maps, int64_t i, int64_t row) const {
    return one_of(maps.entering, index_of(chunk_of(i), row));
  }

  Tensor state_of(const OwnedTensor& memory, int64_t i, int64_t row) const {
    return one_of(at(memory, i), row)
        .slice(0, state_.numel())
        .view({state_.heads, state_.key_dim, state_.value_dim});
  }
  // [H, dk, 1] or [H, dk, dk] if transitions depend on tokens; else absent.
  Tensor transition_of(const OwnedTensor& memory, int64_t i, int64_t row) const {
    if (state_.transition == 0) return {};
    return as_states(one_of(at(memory, i), row).slice(state_.numel(), state_.message()));
  }
  Tensor as_states(const Tensor& transitions) const {
    return transitions.view({state_.heads, state_.key_dim, state_.transition / state_.key_dim});
  }
  // The same as transitions of apply_map.
  Tensor as_transitions(const Tensor& states) const {
    return states.shape[2] == 1 ? states.view({state_.heads, state_.key_dim}) : states;
  }

  // sent = before, then the chunk itself.
  void join_own(const Context& ctx, const StateMaps& maps, int64_t i, int64_t row,
                int64_t distance) {
    const int64_t chunk = chunk_of(i);
    const Tensor state = state_of(sent_, i, row), own = transition_here(maps, chunk, row);
    copy(ctx, state_of(before_, i, row), state);
    advance(ctx, maps, chunk, row, own, one_of(maps.made, index_of(chunk, row)), state);
    if (!own) return;
    const Tensor joined = transition_of(sent_, i, row), before = transition_of(before_, i, row);
    if (num_joined(maps, i, distance) == 0) return copy(ctx, as_states(own), joined);
    copy(ctx, maps.backward ? as_states(own) : before, joined);
    apply_map(ctx, maps.backward ? as_transitions(before) : own, {}, joined, false);
  }

  // before = come, then before.
  void join_come(const Context& ctx, const StateMaps& maps, int64_t i, int64_t row,
                 int64_t distance) {
    const Tensor before = state_of(before_, i, row), come = state_of(come_, i, row);
    const Tensor transition = transition_of(before_, i, row);
    const int64_t joined = num_joined(maps, i, distance);
    if (joined == 0) {
      copy(ctx, come, before);
      if (transition) copy(ctx, transition_of(come_, i, row), transition);
      return;
    }
    if (!transition) {
      const int64_t place = place_of(maps, i), a = chunk_at(maps, place - joined),
                    b = chunk_at(maps, place - 1);
      advance_fixed(ctx, maps, std::min(a, b), joined, row, before, come);
      return copy(ctx, come, before);
    }
    apply_map(ctx, as_transitions(transition), before, come, maps.backward);
    copy(ctx, come, before);
    const Tensor other = transition_of(come_, i, row);
    if (maps.backward) return apply_map(ctx, as_transitions(other), {}, transition, false);
    apply_map(ctx, as_transitions(transition), {}, other, false);
    copy(ctx, other, transition);
  }

  // The number of chunks in `before` after all rounds of smaller distances.
  int64_t num_joined(const StateMaps& maps, int64_t i, int64_t distance) const {
    return std::min(distance - 1, place_of(maps, i));
  }

  void exchange(const Context& ctx, const StateMaps& maps, int64_t distance) {
    sends_.clear();
    receives_.clear();
    // Both sides list messages in the order of places, so two messages between the same ranks
    // match.
    for (int64_t place = 0; place + distance < num_chunks(); ++place) {
      const int64_t from = chunk_at(maps, place), to = chunk_at(maps, place + distance);
      if (is_mine(from) && is_mine(to)) {
        copy(ctx, at(sent_, number_here(from)), at(come_, number_here(to)));
      } else if (is_mine(from)) {
        sends_.push_back({split_.owner(to), at(sent_, number_here(from))});
      } else if (is_mine(to)) {
        receives_.push_back({split_.owner(from), at(come_, number_here(to))});
      }
    }
    ranks_.send_receive(sends_, receives_, label_of(maps)).wait();
  }
  int64_t number_here(int64_t chunk) const { return chunk >= split_.num_ranks; }

  OwnedTensor before_, sent_, come_;
  std::vector<comm::Transfer> sends_, receives_;
};

}  // namespace

std::unique_ptr<CpStates> make_exclusive_scan(comm::Group& ranks, const CpSplit& split,
                                              const CpStates::State& state, DType wide,
                                              Allocator& allocator) {
  return std::make_unique<CpExclusiveScan>(ranks, split, state, wide, allocator);
}

}  // namespace ashlar::parallel
