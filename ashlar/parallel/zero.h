// Data parallelism with ZeRO: how the ranks that hold the same weights and saw different tokens
// share the state, and when it is communicated.  These ranks are the data group (dp x cp x tsp);
// for heads and widths that tsp ranks divide, its ranks with the same share (dp x cp, and the ranks
// of tsp that hold the same heads); for experts that ep ranks divide, its ranks with the same
// experts.
//
//   stage  a rank keeps whole                   and a shard of         collectives of a step
//   0      weights, gradients, optimizer state  -                      all_reduce gradients
//   1      packed weights, gradients            weights, state         reduce_scatter, all_gather
//   2      packed weights                       weights, gradients,    reduce_scatter of every
//                                               state                  micro-batch, all_gather
//   3      -                                    the same               and all_gather of a block's
//                                                                      weights when it runs
//
// The root unit (nn/weights.h: embedding and all vectors) keeps whole weights and gradients, and is
// reduced and gathered once a step.  Blocks whose weights or gradients are sharded take turns in
// two slots while they run.  From stage 1 on kernels read packed operands; row-major weights exist
// only while a unit is gathered (in fp64, where kernels read them, as long as their operands
// would).
//
// Source   Rajbhandari et al. 2020, arXiv:1910.02054; flat shards that ignore parameter borders:
//          ZAYA1, arXiv 2511.17127.
// Types    gradients are sent in the wide type; weights of blocks as products read them (bf16 in
//          a bf16 run), weights of the root in the wide type.
// Overlap  A unit is reduced while earlier blocks run backward, and gathered while earlier blocks
//          run forward (stage 3: backward too).  The units that are used next are gathered as far
//          as there is room.  A step's order of operations is the same on every rank.
// Cut      Every turn reads the whole weights of units that tsp ranks divide (tsp.h): from stage 1
//          on they are gathered as in stage 3, except in fp64, where they stay.
// Traffic  of one step of m micro-batches, L blocks and n ranks: how often every bucket of a unit
//          is moved.  The bytes of one bucket are those of the op in comm/group.h, with S the
//          bucket, c_r the piece of it that rank r keeps (shards.h), gradients and weights in the
//          types above.  n = 1: nothing.  Overlap and recomputation change nothing.
//
//   stage  label      op              root  block l of 1 .. L
//   0      gradients  all_reduce      1     1
//   1      gradients  reduce_scatter  1     1
//   2, 3   gradients  reduce_scatter  1     m
//   1, 2   weights    all_gather      1     1
//   3      weights    all_gather      1     1 + (m - 1) [l > 2] + m [l < L - 1]
//   0      ends       all_reduce      of a split embedding, after its "gradients", once
//   1 - 3  ends       all_reduce      of its shard, likewise
//
//          Weights in stage 3: forward and backward of a micro-batch each gather all blocks but the
//          two that the slots still hold from the pass before; after an update they hold none.  The
//          root's gather and the first two of the next forward begin as soon as weights are
//          updated.  In a pipeline blocks run in the order of its program (program.h).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/kernels/update.h"
#include "ashlar/nn/model.h"
#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/placement.h"
#include "ashlar/parallel/shard_map.h"

namespace ashlar::parallel {

class CopyCheck;
class Replay;

// The products that the model of a rank holds at a time under ZeRO.
nn::ModelMemory model_memory(const kernels::Context&, const ParallelSpec&, int num_data_ranks,
                             DType compute);

class Zero final : public nn::Residency {
 public:
  // optim: determines how much state an element has; contiguous shards have equal state.
  Zero(const kernels::Context&, Allocator&, const ParallelSpec&, const OptimSpec& optim,
       const Groups& groups, nn::Model& model);

  int stage() const { return stage_; }
  // The group that shares the unit, and the cuts of the unit among its ranks.
  comm::Group& ranks_of(int64_t unit) const { return *families_[index_of(unit)]; }
  const Shards& shards_of(int64_t unit) const { return map_->shards_of(unit); }
  // The parts that all ranks of the model group keep; it may outlive this object.
  const std::shared_ptr<const ShardMap>& map() const { return map_; }
  // The cost of the copies with which a rank of the model group has begun its gathers since the
  // last `begin`: all ranks of a family gather equally often, and each copies what it keeps.
  kernels::Cost gather_cost(int world_rank) const;
  // The parts of the trained tensors that this rank keeps, and in the same order their tensors.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<nn::ParameterInfo>& infos() const { return infos_; }
  // The kept ranges of all blocks, one after another; empty without shards.
  struct Shard {
    OwnedTensor weights, gradients;
  };
  // The ranges of a unit that a rank keeps, and where they begin in its weights and gradients.
  struct Kept {
    std::vector<Range> ranges;
    std::vector<int64_t> begins;
  };
  // On meta: the shard and the same parameters of another rank that has the same share of the
  // model.
  struct OfRank {
    std::vector<Kept> kept;  // by unit; empty without shards
    Shard shard;
    std::vector<Parameter> parameters;
  };
  OfRank of_rank(Allocator&, int world_rank) const;

  // The kernels that depend on the place of a shard: copies into a unit that is to be gathered, and
  // out of one whose gradients were reduced.
  struct ShardWork {
    enum class Kind : uint8_t { kGather, kKeep, kAdd };  // kKeep, kAdd: of gradients
    Kind kind = Kind::kGather;
    int64_t unit = 0;
    TracePlace place{};
    size_t begin = 0, end = 0;  // its events in the trace of this rank
  };
  // Lists the works from now on, where a dry run asks for them; null: no more.
  void list_works(std::vector<ShardWork>* works) { works_ = works; }
  // Runs the kernels of a work as another rank would, on meta.
  void run(const kernels::Context&, const ShardWork&, const OfRank&) const;

  // Every rank calls, in this order:
  //
  //   a step       begin; need_root; forward and backward of the model with this residency, in the
  //                order of the uses; then finish_gradients; weights_changed if it was applied
  //   evaluation   begin, need_root, forward of the blocks; between steps only
  void begin(std::span<const nn::Use> uses) override;
  // Whether gradients of blocks stay where backward writes them, so that micro-batches add up
  // there.
  bool keeps_gradients() const { return stage_ < 2; }
  // Gathers and packs the embedding and all vectors, which everything else reads.
  void need_root(const kernels::Context& ctx);
  // From now on `check` gets the whole weights of every unit before they are read; null: nobody.
  void set_copy_check(CopyCheck* check) { copy_check_ = check; }
  // From now on `replay` sees the gradients of every block before they are reduced, and may drop
  // them; null: nobody.
  void set_replay(Replay* replay) { replay_ = replay; }
  // To be called after the last backward of the step: reduces the remaining gradients and waits.
  void finish_gradients(const kernels::Context&);
  // Where updates of parameters() can refresh the packed forms of their rows, in that order: rows
  // of operands that are updated whole here, without shards.
  const std::vector<kernels::PackedRows>& packed_rows() const { return packed_rows_; }
  // To be called after values of parameters() were written: begins to gather them; they are packed
  // before they are read.  by_updates: updates have packed packed_rows().
  void weights_changed(bool by_updates = false);

  void acquire(const kernels::Context&, const nn::Use&) override;
  void release(const kernels::Context&, const nn::Use&) override;

 private:
  struct Unit {
    std::vector<comm::Work> gather, reduce;
    bool gathering = false, reducing = false;
    bool overwrites = false;  // the gradients in reduction are the first of the step
    bool ready = false;       // its operands are packed from the current weights
    bool updated = false;     // those in packed_in_updates_ are
    int64_t num_gathers = 0;  // since begin
  };
  // A tensor of the flat state, or a part of it.
  struct Placed {
    const nn::ParameterInfo* info;
    Placement place;
    nn::FlatRange at;
  };
  struct Block {
    int64_t made = 0, to_make = 0;  // gradients made since begin, and gradients to come
  };
  // Units that the same ranks share (ShardMap::Family).  The root is a row of its own for two
  // reasons: all ranks keep rows of the embedding beside experts, where a few would otherwise keep
  // nothing else; and every tp rank holds nearly all of the root, so a rank writes less of a shard
  // of it to checkpoints than of a shard of blocks.  kHeads includes tensors cut by width, if the
  // same ranks share both.
  enum FamilyIndex : size_t { kWhole, kHeads, kWidths, kExperts, kEmbedding, kRoot, kNumFamilies };
  FamilyIndex index_of(int64_t unit) const { return FamilyIndex(map_->family_of(unit)); }
  FamilyIndex choose_family(int64_t unit) const;
  std::shared_ptr<const ShardMap> make_map(const Mesh&, const ParallelSpec&,
                                           const OptimSpec&) const;
  ShardMap::Family make_family(const ParallelSpec&, const OptimSpec&, FamilyIndex index) const;
  std::vector<Stretch> row_of(const OptimSpec&, std::span<const int64_t> unit_numel) const;

  bool sharded() const { return stage_ > 0; }
  // Whether the unit's operands stay valid when its whole weights are dropped.
  bool stays_packed(int64_t unit) const {
    return packed_ && index_of(unit) != kHeads && index_of(unit) != kWidths;
  }
  bool is_root(int64_t unit) const { return !model_.flat().units.of_block(unit); }
  // Units [first, end) of a block.
  std::pair<int64_t, int64_t> units_of(int64_t block) const;
  size_t slot_of(int64_t block) const { return size_t(block) % 2; }
  static Tensor part(const Tensor& vector, const Range& range) {
    return vector.slice(range.begin, range.end);
  }
  Shard allocate_shard(Allocator&, int64_t numel) const;
  std::pair<std::vector<Kept>, int64_t> kept_by(int world_rank) const;
  std::vector<Placed> list_placed() const;
  // The parameters of a rank that keeps these parts, in `shard`.  each: gets their tensors.
  std::vector<Parameter> parameters_of(int world_rank, const std::vector<Kept>&, const Shard&,
                                       function_ref<void(const nn::ParameterInfo&)> each) const;
  void list_packed_rows(const kernels::Context&);
  Parameter parameter_at(const Placed&, int world_rank, const Range& part, const Tensor& value,
                         const Tensor& gradient) const;
  Tensor kept_weights(int64_t unit, const Kept&, size_t range, const Shard&) const;
  Tensor kept_gradients(int64_t unit, const Kept&, size_t range, const Shard&) const;

  void bring(const kernels::Context&, int64_t unit);
  void bring_block(const kernels::Context&, int64_t block);
  void start_gather(int64_t unit);
  void copy_kept(int64_t unit);
  void work_on(const kernels::Context&, ShardWork::Kind, int64_t unit);
  void work_on(const kernels::Context&, ShardWork::Kind, int64_t unit, const Kept&,
               const Shard&) const;
  void finish_gather(int64_t unit);
  bool is_ready(int64_t block) const;
  bool is_gathering(int64_t block) const;
  void prefetch();
  void prefetch(int64_t block);
  void prefetch_now(int64_t block);
  void take_slot(int64_t block);
  void start_reduce(int64_t unit, bool overwrites);
  void finish_reduce(const kernels::Context&, int64_t unit);
  void begin_gradient(const kernels::Context&, int64_t block);
  void end_gradient(const kernels::Context&, int64_t block);
  void sum_over_ends();
  std::span<const int64_t> counts_of(int64_t unit, int64_t bucket);

  const kernels::Context gather_ctx_;  // for the copies that begin a gather
  nn::Model& model_;
  const int stage_;
  const bool overlap_;
  const bool packed_;          // kernels read packed operands only
  const bool slots_are_read_;  // a running block reads whole weights too
  comm::Group* const ends_;    // null: no other stage holds the embedding
  const std::array<comm::Group*, kNumFamilies> families_;
  const std::shared_ptr<const ShardMap> map_;
  std::vector<Kept> kept_;  // by unit; empty without shards
  Shard shard_;
  std::vector<Unit> units_;
  std::vector<Block> blocks_;
  std::vector<Placed> placed_;
  std::vector<Parameter> parameters_;
  std::vector<nn::ParameterInfo> infos_;
  std::vector<kernels::PackedRows> packed_rows_;
  std::vector<const kernels::Operand*> packed_in_updates_;  // operands of packed_rows_
  std::vector<int64_t> counts_;
  // The block in each slot.
  std::array<int64_t, 2> weight_slot_{-1, -1}, operand_slot_{-1, -1}, gradient_slot_{-1, -1};
  std::span<const nn::Use> uses_;
  size_t next_ = 0;  // the first of uses_ that was not acquired
  std::vector<ShardWork>* works_ = nullptr;
  CopyCheck* copy_check_ = nullptr;
  Replay* replay_ = nullptr;
};

}  // namespace ashlar::parallel
