// The memory of what forward keeps for backward.
#include <algorithm>
#include <array>

#include "ashlar/nn/make_branch.h"
#include "ashlar/nn/model.h"

namespace ashlar::nn {
namespace {

// Columns of the carry that block l makes; 0: none.  The block may be on another rank.
int64_t carry_width(const ModelWeights& weights, int64_t l) {
  const auto branch = make_feed_forward(weights.spec.blocks[size_t(l)].feed_forward);
  branch->list({weights.spec, weights.share, {}, l, ""}, [](const Stored&) {});
  return branch->needs().carry_width;
}

// Columns of the carry that crosses from the blocks before `border` to those from it on; 0: none.
int64_t width_over_border(const ModelWeights& weights, int64_t border) {
  int64_t before = 0, after = 0;
  for (int64_t l = 0; l < weights.spec.num_blocks(); ++l) {
    int64_t& side = l < border ? before : after;
    side = std::max(side, carry_width(weights, l));
  }
  return std::min(before, after);
}

// Takes memory for chunks of blocks.  The order of calls is the order of memory.
class SavedMaker {
 public:
  SavedMaker(Arena& arena, const ModelWeights& weights, const Types& types, TokenCounts tokens,
             int64_t num_halos, Keep keep)
      : arena_(arena),
        weights_(weights),
        types_(types),
        tokens_(tokens),
        num_halos_(num_halos),
        keep_(keep) {
    const auto& blocks = weights.spec.blocks;
    // The output of branches whose result only the next merge reads.
    if (std::any_of(blocks.begin(), blocks.end(), returns_once))
      output_ = arena.take(types.activation, {tokens.stream, weights.spec.hidden_size});
  }

  // Everything except the blocks, which add_block adds.
  Saved make(const BlockRange& chunk, int slot) const {
    const ModelSpec& spec = weights_.spec;
    const auto L = size_t(spec.num_blocks());
    const Shape TH{tokens_.stream, spec.hidden_size};
    Saved s{.keep = keep_, .slot = slot, .chunk = chunk};
    s.x.resize(L + 1), s.rstd.resize(L + 1), s.carry.resize(L + 1), s.blocks.resize(L);
    // Inference reads x[l], and a block's carry, only while the next block runs, so two tensors
    // suffice in turn.
    std::vector<Tensor> streams, carries;
    const auto take = [&](std::vector<Tensor>& list, DType dtype, const Shape& shape) {
      const bool takes_turns = keep_ == Keep::kNothing && list.size() >= 2;
      return list.emplace_back(takes_turns ? list[list.size() - 2] : arena_.take(dtype, shape));
    };
    const auto take_carry = [&](int64_t width) {
      return take(carries, types_.wide, {tokens_.layer, width});
    };
    for (int64_t l = chunk.begin; l <= chunk.end; ++l) {
      s.x[size_t(l)] = take(streams, types_.stream, TH);
      s.rstd[size_t(l)] = arena_.take(types_.wide, {tokens_.stream});
    }
    const int64_t arrives = width_over_border(weights_, chunk.begin),
                  leaves = width_over_border(weights_, chunk.end);
    if (arrives > 0) s.carry[size_t(chunk.begin)] = take_carry(arrives);
    for (int64_t l = chunk.begin; l < chunk.end; ++l) {
      const int64_t made = carry_width(weights_, l);
      s.carry[size_t(l) + 1] = made > 0 ? take_carry(made) : s.carry[size_t(l)];
    }
    s.hands_on = leaves > 0;
    if (arrives > 0 || leaves > 0)
      s.d_carry = arena_.take(types_.wide, {tokens_.layer, std::max(arrives, leaves)});
    return s;
  }

  // lasting, block: as in SavedArenas.
  void add_block(Saved& s, int64_t l, Arena& lasting, Arena& block) const {
    const Block& b = weights_.blocks[size_t(l)];
    const bool once = returns_once(weights_.spec.blocks[size_t(l)]);
    const bool recomputes = keep_ == Keep::kBranchInputs;
    s.blocks[size_t(l)] =
        BlockSaved::make(block, recomputes ? lasting : block, weights_.spec.hidden_size, types_,
                         tokens_.stream, once ? output_ : Tensor{});
    for (Branch* branch : {b.mixer.get(), b.feed_forward.get()})
      branch->lay_out({lasting, block}, types_,
                      {.num_tokens = tokens_.layer,
                       .num_halos = num_halos_,
                       .recomputes = recomputes,
                       .backward = keep_ != Keep::kNothing,
                       .num_chunks = tokens_.num_chunks,
                       .num_all_chunks = tokens_.num_all_chunks},
                      s.slot);
  }

  void add_final(Saved& s) const {
    const ModelSpec& spec = weights_.spec;
    if (s.chunk.end == spec.num_blocks())
      s.final_TH = arena_.take(spec.head_fp32 ? types_.wide : types_.activation,
                               {tokens_.stream, spec.hidden_size});
  }

 private:
  static bool returns_once(const BlockSpec& block) { return !block.reads_summands(); }
  Arena& arena_;
  const ModelWeights& weights_;
  const Types types_;
  const TokenCounts tokens_;
  const int64_t num_halos_;
  const Keep keep_;
  Tensor output_;
};

}  // namespace

std::vector<std::vector<Saved>> make_saved(Arena& arena, const ModelWeights& weights,
                                           const Types& types, TokenCounts tokens,
                                           int64_t num_halos, Keep keep,
                                           std::span<const int> slots_of_chunk, int first_slot) {
  const SavedMaker maker(arena, weights, types, tokens, num_halos, keep);
  const Stage& stage = weights.share.stage;
  // The model's own tensors come first: if blocks share memory, the input of a block is made while
  // the output of the block before is read.
  std::vector<std::vector<Saved>> all(slots_of_chunk.size());
  for (size_t r = 0; r < all.size(); ++r)
    for (int slot = first_slot; slot < first_slot + slots_of_chunk[r]; ++slot)
      all[r].push_back(maker.make(stage.chunk(int(r), weights.spec.num_blocks()), slot));
  const auto each = [&](auto use) {
    for (std::vector<Saved>& slots : all)
      for (Saved& s : slots)
        for (int64_t l = s.chunk.begin; l < s.chunk.end; ++l) use(s, l);
  };
  if (keep == Keep::kAll) {
    each([&](Saved& s, int64_t l) { maker.add_block(s, l, arena, arena); });
  } else {
    // Blocks share the memory that the largest of them needs.
    Arena unused(Device::kMeta), counter(Device::kMeta);
    each([&](Saved& s, int64_t l) {
      const Arena::Scope scope(counter);
      maker.add_block(s, l, unused, counter);
    });
    Arena shared = arena.part(counter.peak_bytes());
    const auto in_memory = std::make_shared<BlockInMemory>();
    each([&](Saved& s, int64_t l) {
      const Arena::Scope scope(shared);
      maker.add_block(s, l, arena, shared);
      if (keep == Keep::kBlockInput) s.in_memory = in_memory;
    });
  }
  for (std::vector<Saved>& slots : all)
    for (Saved& s : slots) maker.add_final(s);
  return all;
}

Saved Saved::make(Arena& arena, const ModelWeights& weights, const Types& types, TokenCounts tokens,
                  int64_t num_halos, Keep keep, int slot) {
  return make_saved(arena, weights, types, tokens, num_halos, keep, std::array{1}, slot)[0][0];
}

}  // namespace ashlar::nn
