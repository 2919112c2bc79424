// A rank's model with what it runs on, for models of a few thousand weights: alone, as one of
// threads, or recorded on meta.  Its weights are those of the golden file's formula, on any layout;
// and gradients of all ranks are put together to whole tensors.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/comm/self/self.h"
#include "ashlar/nn/loss.h"
#include "ashlar/parallel/rank_model.h"
#include "ashlar/tensor/box_order.h"
#include "ashlar/tensor/pieces.h"
#include "tests/nn/golden.h"
#include "tests/support/values.h"

namespace ashlar::parallel::testing_support {

using ashlar::testing_support::get;
using ashlar::testing_support::set;
using ashlar::testing_support::values_of;

// The tiny model with other heads, and an expert width that any number of ranks here divides.
inline ModelKeys spec_with_heads(int64_t num_heads, int64_t num_keys) {
  ModelKeys s = nn::tiny_spec();
  s.hidden_size = 10, s.num_attention_heads = num_heads, s.num_key_value_heads = num_keys;
  s.num_experts = 5, s.moe_intermediate_size = 24, s.qk_norm_eps = 1e-12;
  return s;
}

// One micro-batch of `rows` rows a step; no shards.
inline Recipe recipe_of(const ModelKeys& model, int64_t rows, int64_t length) {
  Recipe recipe;
  recipe.model = model;
  recipe.data.sequence_length = length;
  recipe.train.micro_batch = recipe.train.global_batch = rows;
  recipe.parallel.zero = 0;
  return recipe;
}

struct Batch {
  std::vector<int32_t> ids, targets;
  std::vector<Segment> segments;
  MicroBatch view() const { return {ids, targets, segments}; }
};

// Rows of documents of these lengths; no loss on a document's last token.
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

struct TinyOptions {
  DType compute = DType::kF64;
  Device device = Device::kCpu;
  int num_threads = 1;
  bool reference = false;  // see kernels::Context
  const kernels::Ops* ops = &kernels::cpu::kOps;
  bool traced = false;  // the context has the world's trace, which is not started
};

class TinyRank {
 public:
  explicit TinyRank(const Recipe& recipe, const TinyOptions& options = {})
      : TinyRank(recipe, nullptr, options) {}
  TinyRank(const Recipe& recipe, comm::Group& world, const TinyOptions& options = {})
      : TinyRank(recipe, &world, options) {}

  // A whole step of one micro-batch; gradients are then those of all ranks.
  LossSum step(const Batch& batch) {
    model.step(std::array{batch.view()});
    model.reduce();
    model.download_results();
    return model.losses();
  }
  // Logits of the last micro-batch: [T, V].
  std::vector<double> logits() const {
    const Tensor& final_TH = model.saved().final_TH;
    const int64_t T = final_TH.shape[0], V = model.recipe().model.vocab_size;
    const Arena::Scope scope(*ctx.workspace);
    const Tensor logits_TV = ctx.workspace->take(model.local().types().wide, {T, V});
    nn::head_logits(ctx, model.local(), final_TH, logits_TV);
    return values_of(logits_TV);
  }
  int64_t workspace_bytes() const { return workspace_.peak_bytes(); }
  MemoryCounts memory() const { return allocator_.counts(); }

 private:
  TinyRank(const Recipe& recipe, comm::Group* world, const TinyOptions& options)
      : allocator_(options.device),
        threads_(options.num_threads),
        workspace_(options.device == Device::kMeta ? Arena(Device::kMeta)
                                                   : Arena(allocator_, 8 << 20, Tag::kWorkspace)),
        alone_(host_),
        ctx{.device = options.device,
            .ops = options.ops,
            .threads = &threads_,
            .workspace = &workspace_,
            .reference = options.reference,
            .trace = options.traced ? &(world ? *world : alone_.group()).trace() : nullptr},
        model(ctx, allocator_, recipe, resolve_parallel(recipe, world ? world->size() : 1),
              world ? *world : alone_.group(), options.compute, {.num_halos = 8}) {
    if (!ctx.meta())
      for (const std::vector<Piece>& pieces : {model.pieces(false), model.frozen_pieces()})
        for (const Piece& piece : pieces) fill(piece);
    model.weights_changed();
  }
  static void fill(const Piece& piece) {
    const LogicalTensor& t = piece.logical;
    for (int64_t i = 0; i < piece.data.numel(); ++i)
      set(piece.data, i,
          nn::golden_weight(t.name, index_in_tensor(t.global_shape, piece.box, i),
                            t.global_shape.numel()));
  }

  Allocator allocator_, host_{Device::kCpu};
  Threads threads_;
  Arena workspace_;
  comm::SelfWorld alone_;

 public:
  const kernels::Context ctx;
  RankModel model;
};

using Whole = std::map<std::string, std::vector<double>>;  // tensors by name

// An element of a gradient as one rank keeps it.
struct Element {
  std::string name;
  int64_t numel, at;  // of the logical tensor
  int copy;
  double value;
};

inline std::vector<Element> elements_of_gradients(const RankModel& model) {
  std::vector<Element> elements;
  for (const Parameter& p : model.parameters())
    for (const Piece& piece : pieces_of({&p, p.logical, p.gradient})) {
      const Shape& shape = p.logical.global_shape;
      for (int64_t i = 0; i < piece.data.numel(); ++i)
        elements.push_back({p.logical.name, shape.numel(), index_in_tensor(shape, piece.box, i),
                            p.copy, get(piece.data, i)});
    }
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

// Where this rank keeps all of it.
inline Whole whole_gradients(const RankModel& model) {
  return put_together({elements_of_gradients(model)});
}

// Every gradient against a central difference of the loss, of the fourth order, along a direction
// with an element of each size.  loss(): of the values as they are then.
template <typename Loss>
void expect_central_differences(TinyRank& rank, const Whole& gradients, Loss loss) {
  for (const Parameter& p : rank.model.parameters()) {
    std::vector<double> before(size_t(p.value.numel()));
    double wanted = 0.0;
    const std::vector<double>& gradient = gradients.at(p.logical.name);
    const auto direction = [&](int64_t i) { return std::sin(double(7 * i + 3)); };
    for (int64_t i = 0; i < p.value.numel(); ++i) {
      before[size_t(i)] = get(p.value, i);
      wanted += gradient[size_t(i)] * direction(i);
    }
    const double step = 1e-5;
    const auto slope = [&](double steps) {
      double sides[2];
      for (const int side : {0, 1}) {
        const double at = (side ? step : -step) * steps;
        for (int64_t i = 0; i < p.value.numel(); ++i)
          set(p.value, i, before[size_t(i)] + at * direction(i));
        sides[side] = loss();
      }
      return (sides[1] - sides[0]) / (2 * step * steps);
    };
    const double found = (4 * slope(1) - slope(2)) / 3;
    for (int64_t i = 0; i < p.value.numel(); ++i) set(p.value, i, before[size_t(i)]);
    EXPECT_NEAR(wanted, found, 1e-8 * std::max(1.0, std::abs(wanted))) << p.logical.name << wanted;
  }
}

}  // namespace ashlar::parallel::testing_support
