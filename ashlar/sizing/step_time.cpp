#include "ashlar/sizing/step_time.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/sizing/block_time.h"
#include "ashlar/sizing/exchange_waits.h"
#include "ashlar/sizing/rank_weights.h"

namespace ashlar::sizing {
namespace {

using machine::CollectiveOp;

// Compute and the lane beside it, on which gathers and sums queue.
struct Clock {
  double now = 0, lane = 0;
  // An operation that compute posts; returns when it has ended.
  double post(double seconds, bool overlap) {
    lane = std::max(lane, now) + seconds;
    if (!overlap) now = lane;
    return lane;
  }
  // Compute waits until then; returns how long.
  double wait(double until) {
    const double waited = std::max(0.0, until - now);
    now += waited;
    return waited;
  }
};

// The times of one block on this rank.
struct Block {
  BlockTime kernels;
  ExchangeWaits waits;
  double gather_s = 0, reduce_s = 0;  // of its units, on the lane
  double copy_s = 0, pack_s = 0;      // of its weights
  double keep_s = 0;                  // of its sums: to the shard of gradients
};

class Step {
 public:
  Step(const StepShape& shape, const MachineRates& rates)
      : shape_(shape),
        p_(shape.parallel),
        rates_(rates),
        H_(double(shape.model.hidden_size)),
        zero_(p_.dp * p_.cp * p_.tsp > 1 ? p_.zero : 0) {
    a_ = shape.bf16 ? 2 : kStreamBytes;
    const double sequence_ranks = double(p_.cp * p_.tsp);
    pass_.rows = double(shape.micro_batch);
    pass_.sequence = double(shape.sequence_length);
    pass_.tokens = pass_.rows * pass_.sequence / sequence_ranks;
    pass_.tp = double(p_.tp);
    pass_.ep = double(p_.ep);
    pass_.stream_bytes = shape.stream_bytes();
    pass_.merged = pass_.tokens / (p_.sequence_parallel ? pass_.tp : 1);
    pass_.cp = sequence_ranks;
    if (p_.cp_layout == CpLayout::kContiguous && p_.cp_exchange != CpExchange::kAllToAll)
      pass_.busiest = (2 * sequence_ranks - 1) / sequence_ranks;
  }

  StepTime time() {
    const StageTimes stages = stage_times();
    make_blocks(stages.busiest);
    run();
    add_pipeline(stages);
    StepTime& t = time_;
    t.total_s = t.forward_s + t.recompute_s + t.loss_s + t.backward_s + t.weights_s +
                t.optimizer_s + t.gather_wait_s + t.gradients_wait_s + t.tp_s + t.cp_s + t.tsp_s +
                t.ep_s + t.pp_s + t.bubble_s + t.muon_s;
    const double read_s = rates_.reading_s(4 * double(shape_.tokens()) / double(p_.num_ranks()));
    t.reading_s = std::max(0.0, read_s - t.total_s);
    t.total_s += t.reading_s;
    return t;
  }

 private:
  struct StageTimes {
    std::vector<double> seconds;  // forward and backward of a micro-batch, by stage
    double weights_part_s = 0;    // of backward, for gradients of weights alone, in the busiest
    int64_t busiest = 0;
  };

  Block make_block(const BlockSpec& spec, const BlockTuning& tuning) const;
  void add_zero(Block& block, const BlockTuning& tuning) const;
  StageTimes stage_times();
  void make_blocks(int64_t stage);
  void run();
  void run_backward(Clock& clock, bool first, bool last);
  void run_block(Clock& clock, double kernels_s, double waits_s);
  void run_optimizer(Clock& clock);
  void add_pipeline(const StageTimes& stages);
  bool all_have_mlps() const {
    return std::all_of(shape_.model.blocks.begin(), shape_.model.blocks.end(), [](const auto& b) {
      return std::holds_alternative<MlpSpec>(b.feed_forward);
    });
  }
  double layer_s(const Block& b, bool last) const {
    const bool again = shape_.recompute && !last;
    return b.kernels.forward_s() + b.kernels.backward_s() + b.waits.forward_s + b.waits.backward_s +
           (again ? b.kernels.recompute_s + b.waits.forward_s : 0);
  }

  const StepShape& shape_;
  const ParallelSpec& p_;
  const MachineRates& rates_;
  const double H_;
  const int64_t zero_;  // 0 where a single data rank shares nothing
  double a_ = 2;
  RankPass pass_;
  EndTime ends_;
  RankWeights weights_;
  std::vector<Block> all_;     // of the model, one for each of its blocks
  std::vector<Block> blocks_;  // of the busiest stage
  bool has_input_ = true, has_loss_ = true;
  double root_gather_s_ = 0, root_reduce_s_ = 0;
  bool bulk_on_links_ = false;  // what the lane moves stays in a node of devices
  double crowded_s_ = 0;        // more of waits, where the lane uses the same links
  StepTime time_;
};

Block Step::make_block(const BlockSpec& spec, const BlockTuning& tuning) const {
  Block block;
  block.kernels = block_time(spec, tuning, H_, pass_, shape_.bf16, rates_);
  block.waits = exchange_waits(shape_, spec, tuning, block.kernels, pass_, rates_);
  add_zero(block, tuning);
  return block;
}

void Step::add_zero(Block& block, const BlockTuning& tuning) const {
  const std::array<Unit, 3> units = units_of(shape_, tuning);
  const double bucket = double(p_.bucket_bytes);
  for (const Unit& unit : units) {
    if (unit.numel <= 0) continue;
    const RankSpan group = rates_.group(unit.ranks, unit.stride);
    const CollectiveOp sum = zero_ == 0 ? CollectiveOp::kAllReduce : CollectiveOp::kReduceScatter;
    block.reduce_s += rates_.collective_s(sum, group, unit.numel * kStreamBytes, bucket);
    if (zero_ > 0) {
      block.gather_s +=
          rates_.collective_s(CollectiveOp::kAllGather, group, unit.numel * a_, bucket);
      block.copy_s += rates_.memory_s(unit.numel / double(unit.ranks) * (kStreamBytes + a_));
    }
    if (zero_ >= 2) block.keep_s += rates_.memory_s(unit.numel / double(unit.ranks) * kStreamBytes);
    block.pack_s += rates_.memory_s(unit.numel * (zero_ > 0 ? 3 * a_ : kStreamBytes + a_));
  }
}

Step::StageTimes Step::stage_times() {
  ends_ = end_time(shape_.model, shape_.tuning, pass_, shape_.bf16, rates_);
  const int64_t L = shape_.model.num_blocks();
  for (int64_t l = 0; l < L; ++l) {
    const BlockSpec& block = shape_.model.blocks[size_t(l)];
    const BlockTuning& tuning = shape_.tuning.blocks[size_t(l)];
    const bool as_before = l > 0 && block == shape_.model.blocks[size_t(l - 1)] &&
                           tuning == shape_.tuning.blocks[size_t(l - 1)];
    if (as_before)
      all_.push_back(all_.back());
    else
      all_.push_back(make_block(block, tuning));
  }
  StageTimes stages;
  stages.seconds.resize(size_t(p_.pp));
  for (int64_t l = 0; l < L; ++l)
    stages.seconds[size_t(stage_of(shape_, l))] += layer_s(all_[size_t(l)], l + 1 == L);
  stages.seconds.front() += ends_.input_s + ends_.input_backward_s;
  stages.seconds.back() += ends_.loss_s;
  stages.busiest =
      std::max_element(stages.seconds.begin(), stages.seconds.end()) - stages.seconds.begin();
  return stages;
}

void Step::make_blocks(int64_t stage) {
  for (int64_t l = 0; l < shape_.model.num_blocks(); ++l)
    if (stage_of(shape_, l) == stage) blocks_.push_back(all_[size_t(l)]);
  has_input_ = stage == 0;
  has_loss_ = stage + 1 == p_.pp;
  weights_ = rank_weights(shape_, stage);
  const RankSpan data = rates_.group(p_.dp * p_.cp * p_.tsp, p_.tp);
  bulk_on_links_ = rates_.on_devices() && data.nodes == 1;
  const double root = weights_.root * kStreamBytes, bucket = double(p_.bucket_bytes);
  root_reduce_s_ = rates_.collective_s(
      zero_ == 0 ? CollectiveOp::kAllReduce : CollectiveOp::kReduceScatter, data, root, bucket);
  if (zero_ > 0) root_gather_s_ = rates_.collective_s(CollectiveOp::kAllGather, data, root, bucket);
}

void Step::run() {
  StepTime& t = time_;
  const size_t L = blocks_.size();
  const int64_t m = shape_.micro_batches();
  Clock clock;
  // The update before this step has posted the root's gather and those of two blocks.
  const double root_end = clock.post(root_gather_s_, p_.overlap);
  std::vector<double> gathered(L, 0);
  for (size_t l = 0; l < std::min<size_t>(2, L); ++l)
    gathered[l] = clock.post(blocks_[l].gather_s, p_.overlap);
  t.weights_s += rates_.memory_s(weights_.root * kStreamBytes) +
                 rates_.memory_s(weights_.root_packed * 2 * kStreamBytes);
  t.gather_wait_s += clock.wait(root_end);
  clock.now += t.weights_s;
  for (int64_t batch = 0; batch < m; ++batch) {
    if (has_input_) clock.now += ends_.input_s, t.forward_s += ends_.input_s;
    for (size_t l = 0; l < L; ++l) {
      const Block& b = blocks_[l];
      if (batch == 0 || zero_ == 3) {
        t.gather_wait_s += clock.wait(gathered[l]);
        const double copied_s = (l + 2 < L ? blocks_[l + 2].copy_s : 0) + b.pack_s;
        clock.now += copied_s, t.weights_s += copied_s;
        if (l + 2 < L) gathered[l + 2] = clock.post(blocks_[l + 2].gather_s, p_.overlap);
      }
      run_block(clock, b.kernels.forward_s() + b.waits.turn_pack_s, b.waits.forward_s);
      t.forward_s += b.kernels.forward_s();
      t.weights_s += b.waits.turn_pack_s;
    }
    if (has_loss_) clock.now += ends_.loss_s, t.loss_s += ends_.loss_s;
    run_backward(clock, batch == 0, batch + 1 == m);
    if (zero_ == 3 && batch + 1 < m)
      for (size_t l = 0; l < std::min<size_t>(2, L); ++l) gathered[l] = clock.now;
  }
  run_optimizer(clock);
}

void Step::run_backward(Clock& clock, bool first, bool last) {
  StepTime& t = time_;
  const size_t L = blocks_.size();
  std::vector<double> reduced(L, 0), gathered(L, 0);
  for (size_t l = L; l-- > 0;) {
    const Block& b = blocks_[l];
    if (zero_ == 3 && l + 2 < L) {
      t.gather_wait_s += clock.wait(gathered[l]);
      clock.now += b.pack_s, t.weights_s += b.pack_s;
    }
    const bool reduces = last || zero_ >= 2;
    // Slots of gradients are two: the sum of the block after the next has left its slot.
    if (zero_ >= 2 && l + 2 < L) t.gradients_wait_s += clock.wait(reduced[l + 2]);
    if (shape_.recompute && (l + 1 < L || !has_loss_)) {
      run_block(clock, b.kernels.recompute_s, b.waits.forward_s);
      t.recompute_s += b.kernels.recompute_s;
    }
    const double packed_s = b.waits.turn_pack_s * (shape_.recompute ? 2 : 1);
    const double kept_s = b.keep_s * (first ? 2 : 3);  // copied, or added
    run_block(clock, b.kernels.backward_s() + packed_s + kept_s, b.waits.backward_s);
    t.backward_s += b.kernels.backward_s();
    t.weights_s += packed_s + kept_s;
    if (zero_ == 3 && l >= 2) {
      clock.now += blocks_[l - 2].copy_s, t.weights_s += blocks_[l - 2].copy_s;
      gathered[l - 2] = clock.post(blocks_[l - 2].gather_s, p_.overlap);
    }
    if (reduces) reduced[l] = clock.post(b.reduce_s, p_.overlap);
  }
  if (has_input_) clock.now += ends_.input_backward_s, t.backward_s += ends_.input_backward_s;
  if (!last) return;
  t.gradients_wait_s += clock.wait(clock.post(root_reduce_s_, p_.overlap));
  // Loss, loads of experts, and the norm: a few numbers each, summed over all ranks.
  const RankSpan world = rates_.group(p_.dp * p_.cp * p_.tsp * p_.tp, 1);
  const double sum_s = rates_.collective_s(CollectiveOp::kAllReduce, world, 8);
  const double sums_s = (all_have_mlps() ? 2 : 3) * sum_s;
  clock.now += sums_s, t.gradients_wait_s += sums_s;
}

// Kernels, and operations that compute waits for.  Sums of tp are long messages: beside what the
// lane moves they have half of the links.
void Step::run_block(Clock& clock, double kernels_s, double waits_s) {
  clock.now += kernels_s;
  const double crowded_s =
      bulk_on_links_ && p_.tp > 1 ? std::min(waits_s, std::max(0.0, clock.lane - clock.now)) : 0;
  clock.now += waits_s + crowded_s;
  if (crowded_s > 0) clock.lane += crowded_s;
  crowded_s_ += crowded_s;
}

// Norm of the gradients, momenta, Newton-Schulz, update; bytes of an element as kernels/update.h.
void Step::run_optimizer(Clock& clock) {
  const RankWeights& w = weights_;
  double bytes = 4 * w.kept;
  bytes += 28 * (w.kept - w.kept_matrices);
  double flop = 0;
  if (shape_.matrices == MatrixOptimizer::kMuon) {
    bytes += 28 * w.kept_matrices;
    flop = w.newton_schulz_flop * double(shape_.muon_steps);
  } else {
    bytes += 28 * w.kept_matrices;
  }
  const double products_s = shape_.bf16 ? rates_.product_s(flop) : rates_.fp32_product_s(flop);
  time_.optimizer_s = rates_.memory_s(bytes) + products_s;
  time_.muon_s = rates_.message_s(rates_.group(2, p_.tp), w.exchanged * kStreamBytes);
  clock.now += time_.optimizer_s + time_.muon_s;
  for (size_t l = 0; l < std::min<size_t>(2, blocks_.size()); ++l)
    time_.weights_s += blocks_[l].copy_s;
  // Waits inside of blocks, over the whole step.
  const double m = double(shape_.micro_batches());
  double waited = crowded_s_;
  for (size_t l = 0; l < blocks_.size(); ++l) {
    const Block& b = blocks_[l];
    const bool again = shape_.recompute && (l + 1 < blocks_.size() || !has_loss_);
    waited += m * (b.waits.forward_s * (again ? 2 : 1) + b.waits.backward_s);
  }
  (p_.tsp > 1  ? time_.tsp_s
   : p_.tp > 1 ? time_.tp_s
   : p_.ep > 1 ? time_.ep_s
               : time_.cp_s) += waited;
}

void Step::add_pipeline(const StageTimes& stages) {
  if (p_.pp == 1) return;
  const double all = std::accumulate(stages.seconds.begin(), stages.seconds.end(), 0.0);
  const double busiest = stages.seconds[size_t(stages.busiest)];
  double share = 1 / double(p_.virtual_stages);
  if (p_.schedule == Schedule::kZeroBubble) share = 1.0 / 3;
  time_.bubble_s = (all - busiest) * share;
  const RankSpan pair = rates_.group(2, p_.dp * p_.cp * p_.tsp * p_.tp);
  const double message_s = rates_.message_s(pair, pass_.merged * H_ * shape_.stream_bytes());
  time_.pp_s = 2 * double(p_.pp * p_.virtual_stages - 1) * message_s;
}

}  // namespace

StepShape step_shape(const Recipe& recipe, const ParallelSpec& resolved, bool bf16) {
  ASHLAR_ASSERT(resolved.bucket_bytes != kAutoBucketBytes);
  const ModelSpec model = model_of(recipe.model);
  return {.model = model,
          .tuning = tuning_of(model, recipe.tune),
          .parallel = resolved,
          .micro_batch = recipe.train.micro_batch,
          .global_batch = recipe.train.global_batch,
          .sequence_length = recipe.data.sequence_length,
          .recompute = recipe.train.recompute,
          .bf16 = bf16,
          .stream = recipe.train.stream,
          .matrices = recipe.optim.matrices,
          .muon_steps = recipe.optim.muon_steps,
          .aux_loss = recipe.balance.aux_loss_coef > 0};
}

StepTime step_time(const StepShape& shape, const MachineRates& rates) {
  return Step(shape, rates).time();
}

}  // namespace ashlar::sizing
