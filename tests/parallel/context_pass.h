// Forward and backward of a tiny model over one micro-batch, on this rank's part of every row; the
// same pass for one rank, several, and meta.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>

#include "ashlar/parallel/context.h"
#include "tests/nn/golden.h"

namespace ashlar::parallel::testing_support {

struct Batch {
  std::vector<int32_t> ids, targets;
  std::vector<Segment> segments;
};

// Rows of documents of these lengths.
inline Batch batch_of(const std::vector<std::vector<int64_t>>& rows, int64_t vocab_size) {
  Batch b;
  int64_t row = 0;
  uint32_t seed = 7;
  const auto draw = [&] {
    seed = seed * 1664525u + 1013904223u;
    return int32_t((seed >> 8) % uint32_t(vocab_size));
  };
  for (const auto& lengths : rows)
    for (const int64_t length : lengths) {
      b.segments.push_back({row, length, 0, int64_t(b.segments.size())});
      for (int64_t i = 0; i < length; ++i) {
        b.ids.push_back(draw());
        b.targets.push_back(i + 1 < length ? draw() : -1);
      }
      row += length;
    }
  return b;
}

struct PassSpec {
  ModelSpec spec;
  DType compute = DType::kF64;
  ContextSplit split;  // num_ranks 1: everything here, and no group
  ContextExchange kind = ContextExchange::kAllGather;
  nn::Keep keep = nn::Keep::kAll;
  Device device = Device::kCpu;
};

inline Arena arena_of(Allocator& allocator, int64_t bytes) {
  if (allocator.device() == Device::kMeta) return Arena(Device::kMeta);
  return Arena(allocator, bytes, Tag::kWorkspace);
}

class Pass {
 public:
  Pass(const PassSpec& how, comm::Group* ranks)
      : how_(how),
        allocator_(how.device),
        workspace_(arena_of(allocator_, 4 << 20)),
        ctx_{.device = how.device, .threads = &threads_, .workspace = &workspace_},
        model_(ctx_, allocator_, how.spec, how.compute, how.split.length, true),
        saved_arena_(
            nn::arena_for(allocator_, Tag::kSaved, [&](Arena& a) { make_saved(a, ranks); })),
        saved_(make_saved(saved_arena_, ranks)) {
    const int64_t T = how.split.local_tokens();
    ids_ = make_tensor(allocator_, DType::kI32, {T}, Tag::kInput);
    targets_ = make_tensor(allocator_, DType::kI32, {T}, Tag::kInput);
    loss_ = make_tensor(allocator_, model_.types().stream, {T}, Tag::kInput);
    dfinal_ = make_tensor(allocator_, saved_.final_TH.dtype, saved_.final_TH.shape, Tag::kInput);
    if (ranks)
      shared_ =
          make_context_parallel(how.kind, *ranks, how.split, how.spec, model_.types(), allocator_);
    model_.gradients().for_each(
        how.spec, [&](const nn::ParameterInfo&, const Tensor& g) { gradients_.push_back(g); });
    if (!ctx_.meta()) fill_weights();
  }

  // Gradients of the sum of this rank's losses.
  void run(const Batch& batch) {
    load(batch);
    const nn::ModelCall call = shared_ ? model_.call(*shared_, shared_->sequence(), ids_.tensor)
                                       : model_.call(local_, sequence_, ids_.tensor);
    nn::forward(ctx_, call, saved_);
    head_loss_backward(ctx_, model_, saved_.final_TH, targets_.tensor, 1.0, loss_.tensor,
                       dfinal_.tensor, model_.gradients().embed);
    nn::backward(ctx_, call, saved_, dfinal_.tensor, model_.gradients());
  }
  double loss() const {
    double sum = 0;
    for (int64_t t = 0; t < loss_.tensor.numel(); ++t)
      if (targets_.tensor.as<int32_t>()[t] >= 0) sum += nn::Harness::get(loss_.tensor, t);
    return sum;
  }
  const std::vector<Tensor>& gradients() const { return gradients_; }
  int64_t workspace_bytes() const { return workspace_.peak_bytes(); }
  int64_t communication_bytes() const {
    return allocator_.counts().tags[size_t(Tag::kCommunication)].peak_bytes;
  }
  const Allocator& allocator() const { return allocator_; }

 private:
  nn::Saved make_saved(Arena& arena, comm::Group* ranks) const {
    return nn::Saved::make(arena, how_.spec, nn::Types::of(how_.compute), how_.split.local_tokens(),
                           ranks ? max_halos(how_.split, ranks->rank()) : 0, how_.keep);
  }
  void fill_weights() {
    model_.weights().for_each(how_.spec, [&](const nn::ParameterInfo& info, const Tensor& t) {
      for (int64_t i = 0; i < t.numel(); ++i)
        nn::Harness::set(t, i, nn::golden_weight(info.name, i, t.numel()));
    });
    model_.pack(ctx_);
  }
  void load(const Batch& batch) {
    shared_ ? shared_->assign(batch.segments) : sequence_.assign(batch.segments);
    for (const Tensor& gradient : gradients_) fill_zero(gradient);
    if (ctx_.meta()) return;
    const int rank = shared_ ? shared_->rank() : 0;
    take_local(how_.split, rank, batch.ids, ids_.tensor.span<int32_t>());
    take_local(how_.split, rank, batch.targets, targets_.tensor.span<int32_t>());
  }

  const PassSpec how_;
  Allocator allocator_;
  Threads threads_{1};
  Arena workspace_;
  kernels::Context ctx_;
  nn::Model model_;
  Arena saved_arena_;
  nn::Saved saved_;
  OwnedTensor ids_, targets_, loss_, dfinal_;
  kernels::Sequence sequence_;
  nn::LocalExchange local_;
  std::vector<Tensor> gradients_;
  std::unique_ptr<ContextParallel> shared_;
};

}  // namespace ashlar::parallel::testing_support
