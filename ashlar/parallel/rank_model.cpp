// How it works.  The layers of nn meet the mesh in three things, which RankModel chooses:
//
//   exchanges  nn::LocalExchange, or CpSequence where ranks share sequences; HeadSums and
//              ExpertSums where they share heads and width, EpExchange where they share experts
//   branches   those of nn, inside a TpBranch where ranks share heads and width
//   residency  Zero; on one data rank it only packs weights after they changed
#include "ashlar/parallel/rank_model.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ashlar/kernels/copy.h"
#include "ashlar/nn/lora.h"
#include "ashlar/nn/loss.h"
#include "ashlar/nn/moe.h"
#include "ashlar/parallel/copy_check.h"
#include "ashlar/parallel/cp.h"
#include "ashlar/parallel/ep.h"
#include "ashlar/parallel/muon_holdings.h"
#include "ashlar/parallel/pp.h"
#include "ashlar/parallel/replay.h"
#include "ashlar/parallel/tp.h"
#include "ashlar/parallel/tp_sums.h"
#include "ashlar/parallel/zero.h"

namespace ashlar::parallel {

// --- composition ---

RankModel::RankModel(const kernels::Context& ctx, Allocator& allocator, const Recipe& recipe,
                     const ParallelSpec& resolved, comm::Group& world, DType compute,
                     const RankModelOptions& options)
    : recipe_(recipe),
      parallel_(resolved),
      ctx_(ctx),
      groups_(world, resolved, model_of(recipe.model)) {
  take_share(allocator, compute);
  if (parallel_.tsp > 1) fold_layers(allocator);
  plan_step();
  lay_out_activations(allocator, options.num_halos);
  if (step_program_.num_late > 0) lay_out_late_products(allocator, options.late_bytes);
  lay_out_inputs(allocator);
  if (parallel_.sequence_ranks() > 1) share_sequences(allocator);
  if (parallel_.tp > 1) share_layers();
  if (parallel_.ep > 1) share_experts();
  if (parallel_.tp > 1) sum_partial(allocator);
  shard_state(allocator, options.muon_plans);
  if (recipe_.health.weights_every > 0) check_copies();
  if (recipe_.health.replay_every > 0 && !ctx_.meta()) check_gradients();
}

RankModel::~RankModel() = default;

CpSplit RankModel::cp_split() const {
  return {parallel_.cp_layout, int(parallel_.sequence_ranks()), recipe_.train.micro_batch,
          recipe_.data.sequence_length, model_of(recipe_.model).halo_reach()};
}

int RankModel::cp_rank() const {
  return groups_.mesh().number_within(groups_.rank(), std::array{Axis::kCp, Axis::kTsp});
}

// Folded branches recompute by themselves, and need only the input of each.
nn::Keep RankModel::keep() const {
  const auto& blocks = model_->spec().blocks;
  const bool enough = std::none_of(blocks.begin(), blocks.end(),
                                   [](const BlockSpec& block) { return block.reads_summands(); });
  if (!recipe_.train.recompute) return nn::Keep::kAll;
  return parallel_.tsp > 1 && enough ? nn::Keep::kBranchInputs : nn::Keep::kBlockInput;
}

nn::TokenCounts RankModel::token_counts() const {
  const CpSplit split = cp_split();
  const int64_t layer = split.local_tokens();
  nn::TokenCounts counts{shards_stream() ? layer / parallel_.tp : layer, layer};
  if (split.num_ranks > 1) {
    counts.num_chunks = split.num_rows * split.chunks_of_rank();
    counts.num_all_chunks = split.num_rows * split.num_chunks();
  }
  return counts;
}

void RankModel::take_share(Allocator& allocator, DType compute) {
  const ModelSpec whole = model_of(recipe_.model);
  nn::require_tunable(whole, recipe_.tune);
  model_ = std::make_unique<nn::Model>(
      ctx_, allocator, whole, compute, recipe_.data.sequence_length,
      nn::ModelOptions{.memory = model_memory(ctx_, parallel_, groups_.data().size(), compute),
                       .share = share_of(parallel_, whole, groups_.rank()),
                       .init = recipe_.init,
                       .tune = recipe_.tune,
                       .stream = recipe_.train.stream});
}

void RankModel::fold_layers(Allocator& allocator) {
  shard_memory_ = fold_branches(ctx_, allocator, *model_, groups_);
}

void RankModel::plan_step() {
  const nn::Stage& stage = model_->weights().share.stage;
  for (int c = 0; c < stage.num_chunks(); ++c)
    chunks_.push_back(stage.chunk(c, model_->spec().num_blocks()));
  step_program_ = step_program(parallel_, stage, chunks_, micro_batches_per_step(),
                               keep() == nn::Keep::kBlockInput);
  evaluation_program_ = evaluation_program(stage, chunks_);
  accumulates_.resize(chunks_.size());
  if (stage.count > 1)
    pp_ = std::make_unique<PpTransfers>(groups_.pp(), step_program_.slots_of_chunk);
}

void RankModel::lay_out_activations(Allocator& allocator, int64_t num_halos) {
  const int64_t most = num_halos + max_halos(cp_split(), cp_rank());
  const auto lay_out = [&](Arena& arena) {
    return nn::make_saved(arena, model_->weights(), model_->types(), token_counts(), most, keep(),
                          step_program_.slots_of_chunk);
  };
  saved_arena_ = arena_for(allocator, Tag::kSaved, [&](Arena& arena) { lay_out(arena); });
  saved_ = lay_out(saved_arena_);
}

void RankModel::lay_out_late_products(Allocator& allocator, std::optional<int64_t> bytes) {
  ASHLAR_ASSERT(bytes || ctx_.meta());
  constexpr size_t kMostOfBlock = 32;
  late_arenas_.reserve(size_t(step_program_.num_late));  // products point at them
  for (int i = 0; i < step_program_.num_late; ++i) {
    late_arenas_.push_back(bytes ? Arena(allocator, *bytes, Tag::kSaved) : Arena(Device::kMeta));
    late_.push_back(std::make_unique<nn::LateProducts>(
        late_arenas_.back(), kMostOfBlock * size_t(model_->spec().num_blocks())));
  }
}

void RankModel::lay_out_inputs(Allocator& allocator) {
  const int64_t num_tokens = token_counts().stream;
  const auto lay_out = [&](Arena& arena) {
    loads_.emplace(arena, model_->weights());
    ids_ = arena.take(DType::kI32, {num_tokens});
    targets_ = arena.take(DType::kI32, {num_tokens});
    loss_table_.emplace(arena, model_->types().wide, micro_batches_per_step(),
                        model_->weights().share.stage.last() ? num_tokens : 0,
                        has_router_losses() ? int64_t(loads_->of_step().size()) : 0);
  };
  input_arena_ = arena_for(allocator, Tag::kInput, lay_out);
  lay_out(input_arena_);
  if (!ctx_.meta()) {
    // This rank's part of every row, and of that part the tokens of its stream.
    const int64_t first = shards_stream() ? num_tokens * groups_.tp().rank() : 0;
    for (int64_t i = 0; i < num_tokens; ++i)
      whole_rows_.push_back(whole_row(cp_split(), cp_rank(), first + i));
    local_.resize(whole_rows_.size());
  }
  if (parallel_.sequence_ranks() == 1) sequence_.reserve(token_counts().layer);
}

void RankModel::share_sequences(Allocator& allocator) {
  const CpKinds kinds{parallel_.cp_exchange, parallel_.state_exchange};
  cp_ = std::make_unique<CpSequence>(ctx_, kinds, groups_.cp(), cp_split(), model_->weights(),
                                     model_->types(), allocator);
}

void RankModel::share_layers() {
  comm::Group& tp = groups_.tp();
  const bool sequence = parallel_.sequence_parallel;
  model_->weights().for_each_block([&](nn::Block& block, int64_t) {
    block.mixer = std::make_unique<TpBranch>(std::move(block.mixer), tp, "tp attention", sequence);
    block.feed_forward =
        std::make_unique<TpBranch>(std::move(block.feed_forward), tp, "tp feed-forward", sequence);
  });
  expert_sums_ = std::make_unique<ExpertSums>(tp);
  layer_sums_ = std::make_unique<TpSums>(tp);
  head_sums_ = HeadSums::among(tp, model_->weights().needs().key_copies);
}

void RankModel::share_experts() {
  for (const BlockSpec& block : model_->spec().blocks) {
    const auto* moe = std::get_if<MoeSpec>(&block.feed_forward);
    if (!moe || ep_) continue;  // all mixtures of a recipe are alike
    const int64_t rows = token_counts().layer * moe->experts_of_token();
    ep_ = std::make_unique<EpExchange>(groups_.ep(), groups_.tp(), moe->num_experts,
                                       nn::rows_of_round(rows, model_->weights().share));
  }
}

void RankModel::sum_partial(Allocator& allocator) {
  partial_ = std::make_unique<PartialSums>(allocator, *model_, shards_stream());
  if (partial_->empty()) partial_.reset();
}

void RankModel::shard_state(Allocator& allocator, SharedMuonPlans* plans) {
  zero_ = std::make_unique<Zero>(ctx_, allocator, parallel_, recipe_.optim, groups_, *model_);
  muon_ =
      std::make_unique<MuonMatrices>(groups_, recipe_, parallel_, *zero_, model_->types(), plans);
}

void RankModel::check_copies() {
  const nn::FlatLayout& flat = model_->flat();
  std::vector<comm::Group*> ranks_of_unit;
  for (int64_t unit = 0; unit < flat.units.size(); ++unit)
    ranks_of_unit.push_back(&zero_->ranks_of(unit));
  copy_check_ = std::make_unique<CopyCheck>(recipe_.health.weights_every, flat.units,
                                            std::move(ranks_of_unit));
  if (!copy_check_->compares()) copy_check_.reset();
  zero_->set_copy_check(copy_check_.get());
}

void RankModel::check_gradients() {
  replay_ =
      std::make_unique<Replay>(recipe_.health.replay_every, model_->weights(), groups_, parallel_);
  if (!replay_->repeats()) return replay_.reset();
  replay_program_ = step_program(parallel_, model_->weights().share.stage, chunks_, 1,
                                 keep() == nn::Keep::kBlockInput);
  zero_->set_replay(replay_.get());
}

// --- a step ---

void RankModel::begin_step(const StageProgram& program) {
  in_step_ = true;
  ctx_.enter("start of step");
  ctx_.enter_micro_batch(-1);
  const nn::Units& units = model_->flat().units;
  for (int64_t unit = 0; unit < units.size(); ++unit)
    if (!units.of_block(unit) && model_->flat().unit_numel[size_t(unit)] > 0)
      fill(ctx_, model_->unit_gradients(unit), 0.0);
  loads_->begin_step(ctx_);
  losses_ = {};
  accumulates_.assign(chunks_.size(), false);
  loaded_ = -1;
  zero_->begin(program.uses);
}

// Does nothing if this micro-batch is the one that is loaded.
void RankModel::load(int64_t number, const MicroBatch& batch) {
  if (std::exchange(loaded_, number) == number) return;
  ctx_.enter("inputs");
  const auto num_tokens = size_t(recipe_.train.micro_batch * recipe_.data.sequence_length);
  ASHLAR_ASSERT(batch.ids.size() == num_tokens && batch.targets.size() == num_tokens);
  cp_ ? cp_->assign(batch.segments) : sequence_.assign(batch.segments);
  take_local(batch.ids, ids_);
  take_local(batch.targets, targets_);
  num_targets_ = ctx_.meta() ? targets_.numel()
                             : std::count_if(local_.begin(), local_.end(),
                                             [](int32_t target) { return target >= 0; });
}

void RankModel::take_local(std::span<const int32_t> whole, const Tensor& out) {
  if (ctx_.meta()) return upload(ctx_, whole.first(size_t(out.numel())), out);
  for (size_t i = 0; i < whole_rows_.size(); ++i) local_[i] = whole[size_t(whole_rows_[i])];
  upload(ctx_, local_, out);
}

nn::ModelCall RankModel::call() {
  nn::ModelCall call =
      cp_ ? model_->call(cp_->exchanges(), cp_->sequence(), ids_, zero_.get())
          : model_->call(local_exchange_.exchanges(), sequence_, ids_, zero_.get());
  if (expert_sums_) call.exchanges.experts = expert_sums_.get();
  if (ep_) call.exchanges.experts = ep_.get();
  call.exchanges.heads = head_sums_.get();
  call.exchanges.layer = layer_sums_.get();
  return call;
}

// The activations that an action of a program works on.
const nn::Saved& RankModel::saved_of(const StageProgram& program, size_t action) const {
  return saved_[size_t(program.actions[action].chunk)][size_t(program.slot_of_action[action])];
}

nn::StepLosses RankModel::step_losses() const {
  return {.aux_loss = recipe_.balance.aux_loss_coef,
          .z_loss = recipe_.balance.z_loss_coef,
          .token_share = 1.0 / double(recipe_.train.global_batch * recipe_.data.sequence_length),
          .num_rows = recipe_.train.micro_batch};
}

void RankModel::step(std::span<const MicroBatch> batches, function_ref<void(int64_t)> ended) {
  using Kind = Action::Kind;
  ASHLAR_ASSERT(int64_t(batches.size()) == micro_batches_per_step());
  const bool replayed = replay_ && replay_->begin_step();
  if (replayed) repeat(1, batches[0]);
  begin_step(step_program_);
  if (replayed) replay_->begin_pass(/*drops=*/false);
  if (ep_) ep_->take_rounds();  // forgets those of evaluations
  for (size_t i = 0; i < step_program_.actions.size(); ++i) {
    const Action& action = step_program_.actions[i];
    const nn::Saved& saved = saved_of(step_program_, i);
    ctx_.enter_micro_batch(action.micro_batch);
    const bool computes = action.kind <= Kind::kInputs;
    if (computes) load(action.micro_batch, batches[size_t(action.micro_batch)]);
    if (pp_) pp_->wait_before(action, saved);
    if (action.kind == Kind::kForward) {
      run_forward(saved);
    } else if (computes) {
      run_backward(i, saved);
      if (replayed && action.micro_batch == 0) replay_->end_pass();
      if (action.chunk == 0 && action.kind == Kind::kBackward) ended(action.micro_batch);
    } else if (action.kind == Kind::kWeights) {
      run_weights(i);
      ended(action.micro_batch);
    } else {
      pp_->post(action, saved);
    }
  }
  if (pp_) pp_->finish();
  if (cp_) cp_->finish_sends();
  if (ep_) {
    const auto [rounds, mixtures] = ep_->take_rounds();
    losses_.rounds = double(rounds), losses_.mixtures = double(mixtures);
  }
  if (replayed) end_replay(batches[0]);
}

// Computes the gradients of the first micro-batch of another replica, and drops them.
void RankModel::repeat(int distance, const MicroBatch& own) {
  const MicroBatch batch = replay_->inputs_of(distance, own);
  begin_step(replay_program_);
  replay_->begin_pass(/*drops=*/true);
  ctx_.enter_micro_batch(0);
  load(0, batch);
  const nn::Saved& saved = saved_of(replay_program_, 0);
  ASHLAR_ASSERT(step_program_.actions[1] == replay_program_.actions[1]);
  run_forward(saved);
  run_backward(1, saved);
  if (cp_) cp_->finish_sends();
  replay_->end_pass();
}

void RankModel::end_replay(const MicroBatch& own) {
  if (replay_->agrees()) return;
  zero_->finish_gradients(ctx_);  // the repetitions write where gradients are being summed
  for (const int distance : replay_->deciding_distances()) repeat(distance, own);
  replay_->fail();
}

void RankModel::run_forward(const nn::Saved& saved) {
  zero_->need_root(ctx_);
  forward(ctx_, call(), saved);
  last_saved_ = &saved;
}

void RankModel::run_backward(size_t number, const nn::Saved& saved) {
  const Action& action = step_program_.actions[number];
  nn::ModelCall call = this->call();
  if (action.kind == Action::Kind::kInputs)
    call.late = late_[size_t(step_program_.late_of_action[number])].get();
  call.add_to_gradients = zero_->keeps_gradients() && accumulates_[size_t(action.chunk)];
  accumulates_[size_t(action.chunk)] = true;
  call.losses = step_losses();
  {
    const Arena::Scope scope(*ctx_.workspace);
    Tensor dfinal;
    if (saved.final_TH) {
      ctx_.enter("loss");
      dfinal = ctx_.workspace->take(saved.final_TH.dtype, saved.final_TH.shape);
      head_loss_backward(ctx_, *model_, saved.final_TH, targets_, call.losses.token_share,
                         loss_table_->of_tokens(action.micro_batch), dfinal);
      losses_.count += double(num_targets_);
    }
    backward(ctx_, call, saved, dfinal);
  }
  keep_router_losses(action.micro_batch, saved);
  loads_->find(saved);
  if (recipe_.balance.scope == BalanceScope::kMicroBatch)
    loads_->sum_found_over(saved, groups_.data());
  loads_->count(ctx_, saved);
}

void RankModel::run_weights(size_t number) {
  const Action& action = step_program_.actions[number];
  nn::LateProducts& late = *late_[size_t(step_program_.late_of_action[number])];
  const nn::BlockRange& chunk = chunks_[size_t(action.chunk)];
  for (int64_t l = chunk.end - 1; l >= chunk.begin; --l) {
    const nn::Use use{nn::Use::Why::kWeights, int32_t(l)};
    ctx_.enter("gradients of weights", l);
    zero_->acquire(ctx_, use);
    late.run(ctx_, l);
    zero_->release(ctx_, use);
  }
  ASHLAR_ASSERT(late.size() == 0);
}

void RankModel::reduce() {
  ASHLAR_ASSERT(in_step_);
  ctx_.enter("reduce");
  ctx_.enter_micro_batch(-1);
  if (partial_) partial_->sum(ctx_, groups_.tp());
  zero_->finish_gradients(ctx_);
  if (recipe_.balance.scope == BalanceScope::kGlobalBatch) loads_->sum_over(groups_.data());
  // Each stage has filled its own places, so the sum joins them.
  if (pp_) loads_->sum_over(groups_.pp());
  if (copy_check_) copy_check_->end_step();
  in_step_ = false;
}

std::vector<Tensor> RankModel::results() const {
  std::vector<Tensor> list;
  for (const Tensor& tensor : {loads_->packed(), loss_table_->rows()})
    if (!tensor.empty()) list.push_back(tensor);
  return list;
}

void RankModel::download_results(std::span<const kernels::Download> others) {
  std::array<kernels::Download, 4> list;  // no vector: a step allocates nothing
  size_t size = 0;
  const auto add = [&](const kernels::Download& result) {
    ASHLAR_ASSERT(size < list.size());
    if (!result.from.empty()) list[size++] = result;
  };
  add(loads_->result());
  add(loss_table_->result());
  for (const kernels::Download& other : others) add(other);
  download(ctx_, std::span(list).first(size));
  sum_losses();
}

// --- queries ---

int64_t RankModel::micro_batches_per_step() const {
  return recipe_.train.global_batch / recipe_.train.micro_batch / parallel_.dp;
}

int64_t RankModel::late_peak_bytes() const {
  int64_t bytes = 0;
  for (const Arena& arena : late_arenas_) bytes = std::max(bytes, arena.peak_bytes());
  return bytes;
}

std::vector<const comm::Group*> RankModel::all_groups() const {
  std::vector<const comm::Group*> list = groups_.list();
  if (pp_)
    for (const comm::Group* channel : pp_->groups()) list.push_back(channel);
  if (head_sums_) list.push_back(&head_sums_->sharers());
  if (cp_ && cp_->states())
    for (const comm::Group* channel : cp_->states()->groups()) list.push_back(channel);
  return list;
}

}  // namespace ashlar::parallel
