// The parts of tensor-parallel ranks tile the whole model, and begin with its numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ashlar/checkpoint/format/cover.h"
#include "ashlar/nn/init.h"
#include "ashlar/parallel/placement.h"
#include "ashlar/tensor/box_order.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using testing_support::spec_with_heads;

struct Heads {
  int tp;
  int64_t heads, keys;
};
const Heads kCases[] = {{1, 8, 4}, {2, 8, 1}, {2, 8, 2}, {2, 8, 4}, {4, 8, 1}, {4, 8, 2},
                        {4, 8, 4}, {8, 8, 1}, {8, 8, 2}, {8, 8, 4}, {3, 3, 3}, {3, 6, 3}};

// f(index in the local tensor, index in the logical one) over all elements.
template <typename F>
void for_elements(const std::vector<Placement>& placements, F f) {
  int64_t local = 0;
  for (const Placement& p : placements)
    for (const Box& box : p.boxes)
      for (int64_t i = 0; i < box.length.numel(); ++i)
        f(local++, index_in_tensor(p.global_shape, box, i));
}

// The tensors of which the share of the model holds any.
void visit(const ModelKeys& spec, const nn::Share& share,
           function_ref<void(const nn::ParameterInfo&)> visitor) {
  const nn::ModelWeights weights(model_of(spec), share);
  weights.for_each(
      [&](const nn::ParameterInfo& info, const Tensor&, const Tensor&) { visitor(info); });
}

struct HeldBoxes {
  Shape global_shape;
  std::vector<Box> first;                       // copies 0
  std::map<std::string, std::set<int>> copies;  // by box
  std::map<std::string, int> num_copies;
};

std::string text_of(const Box& box) {
  return box.offset.to_string() + box.length.to_string();
}

std::map<std::string, HeldBoxes> held_by_ranks(const ModelKeys& whole, int tp) {
  std::map<std::string, HeldBoxes> held;
  for (int rank = 0; rank < tp; ++rank)
    visit(whole, nn::Share::even(rank, tp), [&](const nn::ParameterInfo& info) {
      HeldBoxes& h = held[info.name];
      for (const Placement& p : placements(info, nn::Share::even(rank, tp))) {
        if (h.num_copies.empty()) h.global_shape = p.global_shape;
        EXPECT_EQ(p.global_shape, h.global_shape) << info.name;
        for (const Box& box : p.boxes) {
          if (p.copy == 0) h.first.push_back(box);
          EXPECT_TRUE(h.copies[text_of(box)].insert(p.copy).second) << info.name;
          h.num_copies[text_of(box)] = p.num_copies;
        }
      }
    });
  return held;
}

TEST(TpBoxes, TileEveryTensorOnce) {
  for (const Heads& c : kCases) {
    SCOPED_TRACE(fmt::format("tp {} heads {} keys {}", c.tp, c.heads, c.keys));
    const ModelKeys whole = spec_with_heads(c.heads, c.keys);
    std::map<std::string, HeldBoxes> held = held_by_ranks(whole, c.tp);
    size_t num_tensors = 0;
    visit(whole, {}, [&](const nn::ParameterInfo& info) {
      ++num_tensors;
      ASSERT_TRUE(held.contains(info.name)) << info.name;
      const HeldBoxes& h = held[info.name];
      EXPECT_EQ(h.global_shape, info.shape) << info.name;
      EXPECT_EQ(checkpoint::find_cover_error(info.shape, h.first), std::nullopt) << info.name;
      for (const auto& [box, copies] : h.copies) {
        EXPECT_EQ(int(copies.size()), h.num_copies.at(box)) << info.name << box;
        EXPECT_EQ(*copies.begin(), 0);
        EXPECT_EQ(*copies.rbegin(), int(copies.size()) - 1);
      }
    });
    EXPECT_EQ(held.size(), num_tensors);
  }
}

TEST(TpBoxes, OneRankHoldsTheWholeModel) {
  const ModelKeys whole = spec_with_heads(8, 2);
  visit(whole, {}, [&](const nn::ParameterInfo& info) {
    const std::vector<Placement> p = placements(info, {});
    ASSERT_EQ(p.size(), 1u) << info.name;
    EXPECT_EQ(p[0].boxes, std::vector{Box::whole(info.shape)}) << info.name;
    EXPECT_EQ(p[0].num_copies, 1) << info.name;
  });
}

// A share's weights in memory.
struct ShareWeights {
  ShareWeights(Allocator& allocator, const ModelKeys& spec, const nn::Share& share,
               const InitSpec& init)
      : weights(model_of(spec), share, init),
        memory(arena_for(allocator, Tag::kWeights, [&](Arena& arena) { lay_out_in(arena); })) {
    lay_out_in(memory);
  }
  void lay_out_in(Arena& arena) {
    nn::lay_out(weights, &nn::Weight::value, arena, [&](int64_t) -> Arena& { return arena; },
                {DType::kF32, DType::kF32, DType::kF32});
  }
  nn::ModelWeights weights;
  Arena memory;
};

// Every kind of initialisation, from logical coordinates.
TEST(TpBoxes, WeightsBeginAsThoseOfTheWholeModel) {
  Threads threads(2);
  const kernels::Context ctx{.threads = &threads};
  const InitSpec init{.std = 0.3, .temp = 1.25, .conv_uniform = true, .output_depth = true};
  for (const Heads& c : kCases) {
    const ModelKeys whole = spec_with_heads(c.heads, c.keys);
    Allocator allocator(Device::kCpu);
    const ShareWeights all(allocator, whole, {}, init);
    nn::initialize(ctx, all.weights, 7);
    std::map<std::string, Tensor> by_name;
    all.weights.for_each([&](const nn::ParameterInfo& info, const Tensor& value, const Tensor&) {
      by_name[info.name] = value;
    });
    for (int rank = 0; rank < c.tp; ++rank) {
      const nn::Share share = nn::Share::even(rank, c.tp);
      const ShareWeights part(allocator, whole, share, init);
      part.weights.for_each([&](const nn::ParameterInfo& info, const Tensor& value, const Tensor&) {
        const std::vector<Placement> places = placements(info, share);
        EXPECT_EQ(value.shape, local_shape(info, share)) << info.name;
        int64_t at_box = 0;
        for (const Placement& p : places)
          for (const Box& box : p.boxes) {
            const int64_t end = at_box + box.length.numel();
            const Tensor data = value.view({value.numel()}).slice(at_box, end);
            nn::initialize(ctx, info, {{info.name, data.dtype, p.global_shape}, box, data}, 7);
            at_box = end;
          }
        ASSERT_EQ(at_box, value.numel()) << info.name;
        const float* logical = by_name.at(info.name).as<float>();
        for_elements(places, [&](int64_t local, int64_t at) {
          ASSERT_EQ(value.as<float>()[local], logical[at]) << info.name << " " << at;
        });
      });
    }
  }
}

TEST(TpBoxes, PartialGradientsAreThoseOfNormsMergesAndTheRoot) {
  std::set<std::string> partial;
  const ModelKeys spec = spec_with_heads(8, 2);
  visit(spec, {}, [&](const nn::ParameterInfo& info) {
    if (partial_over_shares(info, true)) partial.insert(info.name);
  });
  EXPECT_EQ(partial.size(), size_t(10 * spec.num_hidden_layers + 4));
  EXPECT_TRUE(partial.contains("model.norm.weight"));
  EXPECT_TRUE(partial.contains("model.layers.1.input_layernorm.weight"));
  EXPECT_FALSE(partial.contains("model.layers.1.mlp.gate.router_mlp.norm.weight"));
}

}  // namespace
}  // namespace ashlar::parallel
