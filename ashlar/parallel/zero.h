// Data parallelism with ZeRO: what the ranks that hold the same weights and saw other tokens share
// of the state, and when it travels.  They are the data group (dp x cp x tsp); of heads and widths
// that tsp ranks divide, its ranks with the same share (dp x cp, and those of tsp that hold the
// same heads); of experts that ep ranks divide, those with the same ones.
//
//   stage  a rank keeps whole                   and a shard of         collectives of a step
//   0      weights, gradients, optimizer state  -                      all_reduce gradients
//   1      packed weights, gradients            weights, state         reduce_scatter, all_gather
//   2      packed weights                       weights, gradients,    reduce_scatter of every
//                                               state                  micro-batch, all_gather
//   3      -                                    the same               and all_gather of a block's
//                                                                      weights where it runs
//
// The root unit (nn/weights.h: embedding and all vectors) stays whole in weights and gradients and
// is reduced and gathered once a step.  Blocks of what is sharded stand in two slots while they
// run.
// From stage 1 on kernels read packed operands; row-major weights exist only while a unit is
// gathered (in fp64, where kernels read them, as long as their operands would).
//
// Source   Rajbhandari et al. 2020, arXiv:1910.02054; flat shards that ignore parameter borders:
//          ZAYA1, arXiv 2511.17127.
// Types    gradients travel in the stream type; weights of blocks as products read them (bf16 in a
//          bf16 run), those of the root in the stream type.
// Overlap  A unit is reduced while earlier blocks run backward, and gathered while earlier blocks
//          run forward (stage 3: backward too): those that are used next, as there is room.  A
//          step's order of operations is the same on every rank.
// Cut      Of units that tsp ranks divide whole weights are read in every turn (tsp.h): from stage
//          1 on they are gathered as in stage 3, but for fp64, where they stay.
// Traffic  of one step of m micro-batches, L blocks and n ranks, in times that every bucket of a
//          unit is moved; bytes of one bucket are those of the op in comm/group.h, with S the
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
//   1 - 3  ends       all_reduce      of the shard of it, likewise
//
//          The last row: forward and backward of a micro-batch each gather all blocks but the two
//          that the slots still have from what ran before; after an update they have none.  The
//          root's gather and the first two of the next forward begin as soon as weights are
//          updated.  In a pipeline blocks run in the order of its program (program.h).
#pragma once

#include <string>
#include <vector>

#include "ashlar/nn/model.h"
#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/placement.h"
#include "ashlar/parallel/shards.h"

namespace ashlar::parallel {

// Which products a model of a rank under ZeRO holds at a time.
nn::ModelMemory model_memory(const kernels::Context&, const ParallelSpec&, int num_data_ranks,
                             DType compute);

class Zero final : public nn::Residency {
 public:
  // optim: says how much state an element has, by which contiguous shards are made even.
  Zero(const kernels::Context&, Allocator&, const ParallelSpec&, const OptimSpec& optim,
       const Groups& groups, nn::Model& model);

  int stage() const { return stage_; }
  // Who shares the unit: the group, and how it is cut among its ranks.
  comm::Group& ranks_of(int64_t unit) const { return *family_of(unit).ranks; }
  const Shards& shards_of(int64_t unit) const { return family_of(unit).shards; }
  // So many neighbours of the data group hold other parts of the unit's tensors each.
  int num_parts(int64_t unit) const { return family_of(unit).stride; }
  // What a rank of the model group keeps of a unit where it is sharded.
  std::vector<Range> kept(int64_t unit, int world_rank) const;
  // The cost of the copies with which a rank of the model group has begun its gathers since the
  // last `begin`: all ranks of a family gather equally often, and each copies what it keeps.
  kernels::Cost gather_cost(int world_rank) const;
  // The parts of the trained tensors that this rank keeps, and the tensors they are parts of.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<nn::ParameterInfo>& infos() const { return infos_; }  // of the same order

  // Every rank calls, in this order:
  //
  //   a step       begin; need_root; forward and backward of the model with this residency, as the
  //                list says; then finish_gradients; weights_changed if it was applied
  //   evaluation   begin, need_root, forward of the blocks; between steps only
  void begin(std::span<const nn::Use> uses) override;
  // Whether gradients of blocks stay where backward makes them, so that micro-batches add up there.
  bool keeps_gradients() const { return stage_ < 2; }
  // Brings the embedding and all vectors, which everything else reads.
  void need_root(const kernels::Context& ctx);
  // After the last backward of the step: reduces what is left and waits.
  void finish_gradients(const kernels::Context&);
  // After values of parameters() were written: begins to gather them; they are packed before they
  // are read.
  void weights_changed();

  void acquire(const kernels::Context&, const nn::Use&) override;
  void release(const kernels::Context&, const nn::Use&) override;

 private:
  struct Unit {
    std::vector<comm::Work> gather, reduce;
    bool gathering = false, reducing = false;
    bool overwrites = false;       // what is reduced is the first of its step
    bool ready = false;            // its operands are those of the kept weights
    int64_t num_gathers = 0;       // since begin
    std::vector<Range> kept;       // of this rank
    std::vector<int64_t> kept_at;  // where these begin in weights_ and gradients_
  };
  struct Block {
    int64_t made = 0, to_make = 0;  // gradients since begin, and after that
  };
  // Units that the same ranks share.  With contiguous shards they make one row.  The root is a row
  // of its own, so that all ranks keep rows of the embedding beside experts, and not a few of them
  // nothing else; and under tp nearly all of it stands on every tp rank, so that of a shard of it a
  // rank writes less to checkpoints than of one of blocks.
  struct Family {
    comm::Group* ranks;
    Shards shards;  // of all units; those of other families are empty here
    int stride;     // the ranks of the family are every stride-th of the data group
  };
  // kHeads: and what is cut by width, where the same ranks share both.
  enum FamilyIndex : size_t { kWhole, kHeads, kWidths, kExperts, kEmbedding, kRoot };
  FamilyIndex index_of(int64_t unit) const;
  const Family& family_of(int64_t unit) const { return families_[index_of(unit)]; }
  Family make_family(const ParallelSpec&, const OptimSpec&, comm::Group& ranks,
                     FamilyIndex index) const;
  std::vector<Stretch> row_of(const OptimSpec&, std::span<const int64_t> unit_numel) const;

  bool sharded() const { return stage_ > 0; }
  // Whether the unit's operands stay as they are when its whole weights go.
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
  void lay_out_shards(Allocator&);
  void list_parameters();
  void list_placed(const nn::ParameterInfo&, const Placement&, const nn::FlatRange&);
  void add_parameter(const nn::ParameterInfo&, const Placement&, const nn::FlatRange&,
                     const Range& part, const Tensor& value, const Tensor& gradient);
  Tensor kept_weights(int64_t unit, size_t range) const;
  Tensor kept_gradients(int64_t unit, size_t range) const;

  void bring(const kernels::Context&, int64_t unit);
  void bring_block(const kernels::Context&, int64_t block);
  void start_gather(int64_t unit);
  void copy_kept(int64_t unit, const Tensor& whole);
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
  const bool slots_are_read_;  // while a block runs, its whole weights are read too
  const Mesh mesh_;
  comm::Group* const ends_;  // null: the embedding stands here alone
  const std::vector<Family> families_;
  OwnedTensor weights_, gradients_;  // kept of the blocks, one range after another
  std::vector<Unit> units_;
  std::vector<Block> blocks_;
  std::vector<Parameter> parameters_;
  std::vector<nn::ParameterInfo> infos_;
  std::vector<int64_t> counts_;
  // The block that holds a slot.
  std::array<int64_t, 2> weight_slot_{-1, -1}, operand_slot_{-1, -1}, gradient_slot_{-1, -1};
  std::span<const nn::Use> uses_;
  size_t next_ = 0;  // of uses_: the first that was not acquired
};

}  // namespace ashlar::parallel
