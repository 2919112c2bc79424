// How it works.  A walk goes through the chunks of a row, in forward in the order of tokens and in
// backward against it, and carries the state of that row:
//
//   state = 0;  for each chunk:  if it is mine, entering[it] = state;  state = map of it (state)
//
// CpGatherStates has the maps of all chunks and walks up to the last chunk of its rank; without
// mask it walks in both directions, one after the other, in forward and in backward.  CpChainStates
// begins its walk with a state received from the rank of the chunk before its own, and sends the
// state behind its chunk to the next rank: with zigzag twice, up the ranks and down again, where
// the last rank continues with itself.  All rows are sent together.
#include "ashlar/parallel/cp_states.h"

#include <algorithm>
#include <cmath>

#include "ashlar/kernels/copy.h"
#include "ashlar/parallel/cp_exclusive_scan.h"

namespace ashlar::parallel {
namespace {

using kernels::Context;
using kernels::Matrix;
using nn::StateMaps;

// --- LASP-2 ---

class CpGatherStates final : public CpStates {
 public:
  CpGatherStates(comm::Group& ranks, const CpSplit& split, const State& state, DType wide,
                 Allocator& allocator)
      : CpStates(ranks, split, state),
        memory_(make_tensor(allocator, wide, {ranks.size() * here(), state.message()},
                            Tag::kCommunication)) {}

  void post(const Context& ctx, const StateMaps& maps) override {
    const Tensor all = gathered(maps);
    const int64_t first = ranks_.rank() * here();
    const Tensor mine = all.slice(first, first + here());
    const int64_t m = state_.numel();
    for (int64_t way = 0; way < state_.ways; ++way)
      copy(ctx, flat(maps.made.slice(way * here(), (way + 1) * here())),
           Matrix::of(mine).columns(way * m, (way + 1) * m));
    if (maps.transition)
      copy(ctx, flat(maps.transition), Matrix::of(mine).columns(state_.made(), mine.shape[1]));
    come_ = ranks_.all_gather(mine, all, label_of(maps));
  }

  void finish(const Context& ctx, const StateMaps& maps) override {
    come_.wait();
    const Tensor all = gathered(maps);
    if (maps.transition)
      copy(ctx, Matrix::of(all).columns(state_.made(), all.shape[1]), flat(maps.transitions));
    for (int64_t row = 0; row < rows(); ++row)
      for (int64_t way = 0; way < state_.ways; ++way)
        walk(ctx, maps, all, row, state_.ways == 1 ? maps.backward : way == 1, way);
  }

  void pass_on(const Context&, const StateMaps&) override {}

 private:
  void walk(const Context& ctx, const StateMaps& maps, const Tensor& all, int64_t row,
            bool against_tokens, int64_t way) {
    const Arena::Scope scope(*ctx.workspace);
    const Shape states{state_.heads, state_.key_dim, state_.value_dim};
    const Tensor state = ctx.workspace->take(all.dtype, states);
    fill(ctx, state, 0.0);
    const int64_t m = state_.numel();
    int64_t left = split_.chunks_of_rank();
    for (int64_t step = 0; left > 0; ++step) {
      const int64_t chunk = against_tokens ? num_chunks() - 1 - step : step;
      if (is_mine(chunk)) {
        copy(ctx, state, one_of(maps.entering, way * here() + index_of(chunk, row)));
        if (--left == 0) break;
      }
      const int64_t n = number_of(chunk, row);
      advance(ctx, maps, chunk, row,
              maps.transitions ? one_of(maps.transitions, n) : maps.transitions,
              one_of(all, n).slice(way * m, (way + 1) * m).view(states), state);
    }
  }

  // In forward a message has what a chunk made, in each direction, then its transitions; in
  // backward only the former.
  Tensor gathered(const StateMaps& maps) const {
    const int64_t length = maps.backward ? state_.made() : state_.message();
    const int64_t num = ranks_.size() * here();
    return memory_.tensor.view({memory_.tensor.numel()}).slice(0, num * length).view({num, length});
  }
  static Matrix flat(const Tensor& chunks) {
    const int64_t num = chunks.shape[0];
    return Matrix::of(chunks.view({num, chunks.numel() / num}));
  }

  OwnedTensor memory_;
  comm::Work come_;
};

// --- chains ---

// num_groups: groups of heads, which follow each other through the ranks.
class CpChainStates : public CpStates {
 public:
  CpChainStates(comm::Group& ranks, const CpSplit& split, const State& state, DType wide,
                Allocator& allocator, int64_t num_groups, bool at_once)
      : CpStates(ranks, split, state), num_groups_(num_groups), at_once_(at_once) {
    const int64_t per = split.chunks_of_rank();
    for (OwnedTensor* memory : {&arriving_, &leaving_})
      *memory = make_tensor(
          allocator, wide,
          {per * num_groups, rows(), state.heads / num_groups, state.key_dim, state.value_dim},
          Tag::kCommunication);
    leaves_.resize(size_t(per * num_groups));
    const int me = ranks.rank(), last = ranks.size() - 1;
    const auto both = [&](int a, int b, auto& up, auto& down) {
      up = ranks.channel(a, b, "states up");
      down = ranks.channel(b, a, "states down");
    };
    if (me > 0) both(me - 1, me, from_before_, to_before_);
    if (me < last) both(me, me + 1, to_next_, from_next_);
  }

  void post(const Context&, const StateMaps&) override {}

  void finish(const Context& ctx, const StateMaps& maps) override {
    // Backward reads only the transitions of the chunks here.
    const int64_t first = ranks_.rank() * here();
    if (maps.transition) copy(ctx, maps.transition, maps.transitions.slice(first, first + here()));
    for (int64_t turn = 0; turn < split_.chunks_of_rank(); ++turn) {
      const int64_t chunk = chunk_of(maps, turn);
      for (int64_t group = 0; group < num_groups_; ++group) {
        arrive(ctx, maps, turn, chunk, group);
        copy_to_entering(ctx, maps, turn, chunk, group);
        if (!waits_for_layer(turn)) leave(ctx, maps, turn, chunk, group);
      }
    }
  }

  void pass_on(const Context& ctx, const StateMaps& maps) override {
    if (at_once_) return;
    const int64_t turn = split_.chunks_of_rank() - 1;
    for (int64_t group = 0; group < num_groups_; ++group)
      leave(ctx, maps, turn, chunk_of(maps, turn), group);
  }

  void finish_sends() override {
    for (comm::Work& work : leaves_) work.wait();
  }

  std::vector<const comm::Group*> groups() const override {
    std::vector<const comm::Group*> list;
    for (const auto* channel : {&from_before_, &to_before_, &from_next_, &to_next_})
      if (*channel) list.push_back(&(*channel)->group());
    return list;
  }

 private:
  // A chain sends the state on once the layer has used it.  If a row has two chunks here, the state
  // of the first must be sent before that of the second arrives.
  bool waits_for_layer(int64_t turn) const {
    return !at_once_ && turn + 1 == split_.chunks_of_rank();
  }
  int64_t heads() const { return state_.heads / num_groups_; }
  // The chunk of a row here that comes at this turn of the walk.
  int64_t chunk_of(const StateMaps& maps, int64_t turn) const {
    const int64_t per = split_.chunks_of_rank(), n = maps.backward ? per - 1 - turn : turn;
    return n == 0 ? ranks_.rank() : num_chunks() - 1 - ranks_.rank();
  }
  int64_t before(const StateMaps& maps, int64_t chunk) const {
    return maps.backward ? chunk + 1 : chunk - 1;
  }
  int64_t behind(const StateMaps& maps, int64_t chunk) const {
    return maps.backward ? chunk - 1 : chunk + 1;
  }
  bool is_chunk(int64_t chunk) const { return chunk >= 0 && chunk < num_chunks(); }
  Tensor at(const OwnedTensor& memory, int64_t turn, int64_t group) const {
    return one_of(memory.tensor, turn * num_groups_ + group);
  }
  static Tensor heads_of(const Tensor& states, int64_t chunk, int64_t first, int64_t num) {
    return one_of(states, chunk).slice(first, first + num);
  }

  void arrive(const Context& ctx, const StateMaps& maps, int64_t turn, int64_t chunk,
              int64_t group) {
    const Tensor state = at(arriving_, turn, group);
    const int64_t from = before(maps, chunk);
    if (!is_chunk(from)) return fill(ctx, state, 0.0);
    if (is_mine(from)) return copy(ctx, at(leaving_, turn - 1, group), state);
    comm::Channel& channel = split_.owner(from) < ranks_.rank() ? *from_before_ : *from_next_;
    channel.receive(state, label_of(maps)).wait();
  }

  void copy_to_entering(const Context& ctx, const StateMaps& maps, int64_t turn, int64_t chunk,
                        int64_t group) {
    const Tensor state = at(arriving_, turn, group);
    for (int64_t row = 0; row < rows(); ++row)
      copy(ctx, state.slice(row, row + 1),
           heads_of(maps.entering, index_of(chunk, row), group * heads(), heads()));
  }

  void leave(const Context& ctx, const StateMaps& maps, int64_t turn, int64_t chunk,
             int64_t group) {
    const int64_t to = behind(maps, chunk), first = group * heads();
    if (!is_chunk(to)) return;
    const Tensor state = at(leaving_, turn, group);
    comm::Work& sent = leaves_[size_t(turn * num_groups_ + group)];
    sent.wait();  // the send of the layer before
    copy(ctx, at(arriving_, turn, group), state);
    for (int64_t row = 0; row < rows(); ++row) {
      Tensor transition = transition_here(maps, chunk, row);
      if (transition) transition = transition.slice(first, first + heads());
      advance(ctx, maps, chunk, row, transition,
              heads_of(maps.made, index_of(chunk, row), first, heads()), one_of(state, row), first);
    }
    if (is_mine(to)) return;
    comm::Channel& channel = split_.owner(to) < ranks_.rank() ? *to_before_ : *to_next_;
    sent = channel.send(state, label_of(maps));
  }

  const int64_t num_groups_;
  const bool at_once_;
  OwnedTensor arriving_, leaving_;  // by chunk of a row, by group of heads
  std::unique_ptr<comm::Channel> from_before_, to_before_, from_next_, to_next_;
  std::vector<comm::Work> leaves_;
};

// The largest number of equal groups of heads up to kMostGroups; with more groups, latencies cost
// more than the time they hide.
int64_t num_groups_of(int64_t heads) {
  constexpr int64_t kMostGroups = 8;
  int64_t groups = std::min(heads, kMostGroups);
  while (heads % groups != 0) --groups;
  return groups;
}

}  // namespace

CpStates::CpStates(comm::Group& ranks, const CpSplit& split, const State& state)
    : ranks_(ranks), split_(split), state_(state) {
  const int64_t c = split.chunk_length();
  for (int64_t row = 0; row < split.num_rows; ++row)
    for (int64_t i = 0; i < split.chunks_of_rank(); ++i) {
      const int64_t begin = row * split.local_length() + i * c;
      chunks_.push_back({begin, begin + c});
    }
  starts_.resize(size_t(split.num_rows * split.num_chunks()));
}

int64_t CpStates::index_of(int64_t chunk, int64_t row) const {
  const int64_t second = chunk >= split_.num_ranks;
  return row * split_.chunks_of_rank() + second;
}

int64_t CpStates::number_of(int64_t chunk, int64_t row) const {
  return split_.owner(chunk) * here() + index_of(chunk, row);
}

void CpStates::assign(std::span<const Segment> whole_rows) {
  starts_.assign(starts_.size(), false);
  for (const Segment& segment : whole_rows) {
    const int64_t row = segment.row / split_.length, token = segment.row % split_.length;
    starts_[size_t(row * num_chunks() + token / split_.chunk_length())] = true;
  }
}

Tensor CpStates::transition_here(const StateMaps& maps, int64_t chunk, int64_t row) const {
  const Tensor& all = maps.backward ? maps.transitions : maps.transition;
  if (!all) return all;
  const int64_t n = maps.backward ? number_of(chunk, row) : index_of(chunk, row);
  return one_of(all, n);
}

void CpStates::advance(const Context& ctx, const StateMaps& maps, int64_t chunk, int64_t row,
                       const Tensor& transition, const Tensor& made, const Tensor& state,
                       int64_t first_head) {
  if (transition) return apply_map(ctx, transition, made, state, maps.backward);
  advance_fixed(ctx, maps, chunk, 1, row, made, state, first_head);
}

void CpStates::advance_fixed(const Context& ctx, const StateMaps& maps, int64_t first, int64_t num,
                             int64_t row, const Tensor& made, const Tensor& state,
                             int64_t first_head) {
  bool starts = false;
  for (int64_t chunk = first; chunk < first + num; ++chunk)
    starts |= starts_[size_t(row * num_chunks() + chunk)] != 0;
  const Tensor fixed = one_of(one_of(fixed_.tensor, maps.block), starts ? 0 : num);
  apply_map(ctx, fixed.slice(first_head, first_head + state.shape[0]), made, state, maps.backward);
}

void CpStates::take_fixed(const Context& ctx, const LogDecays& log_decays, DType wide,
                          Allocator& allocator) {
  const int64_t blocks = int64_t(log_decays.size()), H = state_.heads;
  fixed_ = make_tensor(allocator, wide, {blocks, num_chunks() + 1, H}, Tag::kCommunication);
  std::vector<double> values;
  for (const std::span<const double>& log_decay : log_decays)
    for (int64_t n = 0; n <= num_chunks(); ++n)
      for (int64_t h = 0; h < H; ++h) {
        const double through_one = log_decay.empty() ? 0.0 : log_decay[size_t(h)];
        values.push_back(n == 0 ? 0.0 : std::exp(double(n * split_.chunk_length()) * through_one));
      }
  upload(ctx, values, fixed_.tensor.view({fixed_.tensor.numel()}));
}

namespace {

std::unique_ptr<CpStates> make_states(StateExchange kind, comm::Group& ranks, const CpSplit& split,
                                      const CpStates::State& state, DType wide,
                                      Allocator& allocator) {
  if (kind == StateExchange::kAllGather)
    return std::make_unique<CpGatherStates>(ranks, split, state, wide, allocator);
  ASHLAR_ASSERT(state.ways == 1);
  if (kind == StateExchange::kExclusiveScan)
    return make_exclusive_scan(ranks, split, state, wide, allocator);
  const bool scan = kind == StateExchange::kScan;
  return std::make_unique<CpChainStates>(ranks, split, state, wide, allocator,
                                         scan ? num_groups_of(state.heads) : 1, scan);
}

}  // namespace

std::unique_ptr<CpStates> CpStates::make(const Context& ctx, StateExchange kind, comm::Group& ranks,
                                         const CpSplit& split, const State& state,
                                         const LogDecays& log_decays, DType wide,
                                         Allocator& allocator) {
  auto states = make_states(kind, ranks, split, state, wide, allocator);
  if (state.transition == 0) states->take_fixed(ctx, log_decays, wide, allocator);
  return states;
}

}  // namespace ashlar::parallel
