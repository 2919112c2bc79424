// A tensor-parallel rank's model with all that a pass needs, its weights by formula; and the ranks'
// tensors put together to whole ones.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/parallel/context.h"
#include "ashlar/parallel/tensor.h"
#include "ashlar/parallel/tensor_runner.h"
#include "ashlar/parallel/tensor_sums.h"
#include "ashlar/tensor/box_order.h"
#include "tests/nn/golden.h"

namespace ashlar::parallel {

inline constexpr int64_t kTokens = 24;
inline constexpr double kSkipBias = 0.03;  // some tokens are skipped

inline ModelSpec spec_of(int64_t num_heads, int64_t num_keys) {
  ModelSpec s = nn::tiny_spec();
  s.hidden_size = 10, s.num_attention_heads = num_heads, s.num_key_value_heads = num_keys;
  s.num_experts = 5, s.moe_intermediate_size = 24, s.qk_norm_eps = 1e-12;
  return s;
}

struct Case {
  std::string name;
  int tp;
  ModelSpec whole;
  bool sequence_parallel = false;
  nn::Keep keep = nn::Keep::kAll;
  DType compute = DType::kF64;
  int cp = 1;
  ContextExchange exchange = ContextExchange::kAllGather;
};

inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

// f(placement, index in the local tensor, index in the logical one) over all elements.
template <typename F>
void for_elements(const std::vector<Placement>& placements, F f) {
  int64_t local = 0;
  for (const Placement& p : placements)
    for (const Box& box : p.boxes)
      for (int64_t i = 0; i < box.length.numel(); ++i)
        f(p, local++, index_in_tensor(p.global_shape, box, i));
}

class Step {
 public:
  // The reference: one rank, the layers as they are.
  Step(const Case& c, Device device) : Step(c, device, nullptr, nullptr) {}
  Step(const Case& c, Device device, comm::Group& tp, comm::Group* cp = nullptr)
      : Step(c, device, &tp, cp) {}

  // Forward and backward of one micro-batch; products overwrite what gradients held.  Gives the sum
  // of the losses of this rank's tokens.
  double run() {
    if (!ctx_.meta()) fill_zero(model_.unit_gradients(0));
    nn::BlockRunner* runner = runner_ ? &*runner_ : nullptr;
    nn::ModelCall call = context_
                             ? model_.call(*context_, context_->sequence(), ids_.tensor, runner)
                             : model_.call(exchange_, sequence_, ids_.tensor, runner);
    call.accumulate = false;
    nn::forward(ctx_, call, saved_);
    nn::head_loss_backward(ctx_, model_, saved_.final_TH, targets_.tensor, 0.5, loss_.tensor,
                           dfinal_.tensor, model_.gradients().embed);
    nn::backward(ctx_, call, saved_, dfinal_.tensor, model_.gradients());
    if (sums_) sums_->sum(ctx_, *tp_);
    double sum = 0;
    for (int64_t t = 0; t < stream_tokens_ && !ctx_.meta(); ++t)
      sum += nn::Harness::get(loss_.tensor, t);
    return sum;
  }

  const nn::Model& model() const { return model_; }
  // Tokens of each class, the skipped ones last.
  std::span<const int64_t> loads(int64_t layer) const {
    return saved_.blocks[size_t(layer)].moe.plan.count_X.span<const int64_t>();
  }
  const Allocator& allocator() const { return allocator_; }
  const TensorRunner& runner() const { return *runner_; }
  std::vector<Placement> placements_of(const std::string& name, const Shape& local) const {
    return placements(case_.whole, place_, name, local);
  }

 private:
  Step(const Case& c, Device device, comm::Group* tp, comm::Group* cp)
      : case_(c),
        tp_(tp),
        place_{tp ? tp->size() : 1, tp ? tp->rank() : 0},
        layer_tokens_(cp ? kTokens / cp->size() : kTokens),
        stream_tokens_(tp && c.sequence_parallel ? layer_tokens_ / tp->size() : layer_tokens_),
        allocator_(device),
        threads_(1),
        workspace_(device == Device::kMeta ? Arena(device)
                                           : Arena(allocator_, 4 << 20, Tag::kWorkspace)),
        ctx_{.device = device, .threads = &threads_, .workspace = &workspace_},
        model_(ctx_, allocator_, local_spec(c.whole, place_), c.compute, 64, true),
        saved_arena_(
            nn::arena_for(allocator_, Tag::kSaved, [&](Arena& arena) { make_saved(arena); })),
        saved_(make_saved(saved_arena_)),
        ids_(make_tensor(allocator_, DType::kI32, {stream_tokens_}, Tag::kInput)),
        targets_(make_tensor(allocator_, DType::kI32, {stream_tokens_}, Tag::kInput)),
        loss_(make_tensor(allocator_, model_.types().stream, {stream_tokens_}, Tag::kInput)),
        dfinal_(
            make_tensor(allocator_, saved_.final_TH.dtype, saved_.final_TH.shape, Tag::kWorkspace)),
        sequence_(documents_of(c)) {
    const ContextSplit split{ContextLayout::kZigzag, c.cp, 1, kTokens};
    if (cp) {
      context_ =
          make_context_parallel(c.exchange, *cp, split, model_.spec(), model_.types(), allocator_);
      context_->assign(sequence_.segments());
    }
    if (tp) runner_.emplace(*tp, model_, c.sequence_parallel);
    if (tp && c.sequence_parallel) sums_.emplace(allocator_, model_);
    if (device == Device::kMeta) return;
    fill_weights();
    const int64_t first = stream_tokens_ < layer_tokens_ ? stream_tokens_ * place_.rank : 0;
    for (int64_t i = 0; i < stream_tokens_; ++i) {
      const int64_t t = cp ? whole_row(split, cp->rank(), i + first) : i + first;
      ids_.tensor.as<int32_t>()[i] = int32_t((7 * t + 3) % 11);
      targets_.tensor.as<int32_t>()[i] = t % 6 == 4 ? -1 : int32_t(t % 11);
    }
  }

  // Whole documents; without context parallelism one of them in two pieces, the later one first.
  static std::vector<Segment> documents_of(const Case& c) {
    if (c.cp > 1) return {{0, 9, 0, 3}, {9, 15, 0, 1}};
    return {{0, 5, 0, 3}, {5, 7, 4, 1}, {12, 4, 0, 1}, {16, 8, 0, 2}};
  }

  nn::Saved make_saved(Arena& arena) const {
    return nn::Saved::make(arena, model_.spec(), model_.types(),
                           nn::TokenCounts(stream_tokens_, layer_tokens_), 8, case_.keep);
  }

  void fill_weights() {
    const bool identity = case_.whole.skip_output == SkipOutput::kIdentity;
    model_.weights().for_each(model_.spec(), [&](const nn::ParameterInfo& info, const Tensor& w) {
      const auto list = placements_of(info.name, w.shape);
      for_elements(list, [&](const Placement& p, int64_t local, int64_t at) {
        const int64_t numel = p.global_shape.numel();
        const bool skip = info.init == nn::Init::kBalancing && at == numel - 1;
        nn::Harness::set(
            w, local,
            skip ? (identity ? kSkipBias : -1.0) : nn::golden_weight(info.name, at, numel));
      });
    });
    model_.pack(ctx_);
  }

  Case case_;
  comm::Group* tp_;
  TensorPlace place_;
  int64_t layer_tokens_, stream_tokens_;
  Allocator allocator_;
  Threads threads_;
  Arena workspace_;
  kernels::Context ctx_;
  nn::Model model_;
  Arena saved_arena_;
  nn::Saved saved_;
  OwnedTensor ids_, targets_, loss_, dfinal_;
  kernels::Sequence sequence_;
  nn::LocalExchange exchange_;
  std::unique_ptr<ContextParallel> context_;
  std::optional<TensorRunner> runner_;
  std::optional<PartialSums> sums_;
};

using Whole = std::map<std::string, std::vector<double>>;

struct Element {
  std::string name;
  int64_t numel, at;  // of the logical tensor
  int copy;
  double value;
};

inline std::vector<Element> gradients_of(const Step& step) {
  std::vector<Element> elements;
  const auto visit = [&](const nn::ParameterInfo& info, const Tensor& g) {
    const std::vector<Placement> list = step.placements_of(info.name, g.shape);
    for_elements(list, [&](const Placement& p, int64_t local, int64_t at) {
      elements.push_back(
          {info.name, p.global_shape.numel(), at, p.copy, nn::Harness::get(g, local)});
    });
  };
  step.model().gradients().for_each(step.model().spec(), visit);
  return elements;
}

// Copies 0 of all ranks; every element must be there once, and other copies have the same bits.
inline Whole put_together(const std::vector<std::vector<Element>>& ranks) {
  Whole whole;
  for (const bool first : {true, false})
    for (const std::vector<Element>& elements : ranks)
      for (const Element& e : elements) {
        if ((e.copy == 0) != first) continue;
        std::vector<double>& values = whole[e.name];
        values.resize(size_t(e.numel), std::nan(""));
        double& value = values[size_t(e.at)];
        if (first) {
          EXPECT_TRUE(std::isnan(value)) << e.name << " " << e.at << " is held twice";
          value = e.value;
        } else {
          EXPECT_EQ(value, e.value) << e.name << " " << e.at << " of copy " << e.copy;
        }
      }
  return whole;
}

}  // namespace ashlar::parallel
