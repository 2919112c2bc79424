// Adapters and frozen tensors: the loss and the gradients are those of the merged model, nothing
// but adapters is trained, and ranks give what one rank gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "ashlar/comm/thread/run_ranks.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;

constexpr int64_t kLoraRank = 3;
constexpr double kLoraAlpha = 2.25;

// Blocks of every kind: grouped queries, windows, CCA and experts.
ModelKeys every_kind() {
  ModelKeys keys = nn::tiny_spec();
  keys.layer_types = {{AttentionSpec::kKind, MlpSpec::kKind, true},
                      {CcaSpec::kKind, MlpSpec::kKind},
                      {AttentionSpec::kKind, MoeSpec::kKind}};
  keys.num_hidden_layers = 3, keys.intermediate_size = 6;
  keys.qk_norm = QkNorm::kRms, keys.residual = Residual::kPlain, keys.tie_word_embeddings = false;
  keys.qk_norm_eps = 1e-12;
  return keys;
}

ModelKeys dense_blocks() {
  ModelKeys keys = every_kind();
  keys.layer_types.assign(3, LayerType::kFullAttention);
  keys.qk_norm = QkNorm::kNone, keys.partial_rotary_factor = 1.0;
  return keys;
}

Recipe with_adapters(const ModelKeys& keys,
                     std::vector<std::string> targets = {"attention", "mlp"}) {
  Recipe recipe = recipe_of(keys, 2, 12);
  recipe.tune.lora = {.rank = kLoraRank, .alpha = kLoraAlpha, .targets = std::move(targets)};
  return recipe;
}

Batch lora_batch() {
  return batch_of({{5, 7}, {12}}, nn::tiny_spec().vocab_size);
}

bool is_adapter(const std::string& name) {
  return name.find(".lora_") != std::string::npos;
}

// The weights of a rank's model by name; the model must be on one rank.
Whole whole_values(const RankModel& model) {
  Whole whole;
  for (const std::vector<Piece>& pieces : {model.pieces(false), model.frozen_pieces()})
    for (const Piece& piece : pieces) whole[piece.logical.name] = values_of(piece.data);
  return whole;
}

std::string base_of(const std::string& adapter, const Whole& tensors) {
  const std::string layer = adapter.substr(0, adapter.find(".lora_"));
  return tensors.contains(layer) ? layer : layer + ".weight";  // a stack of experts has no suffix
}

// Matrix g of several of one size, one after another.
std::vector<double> matrix_of(const std::vector<double>& all, int64_t g, int64_t num_matrices) {
  const auto size = int64_t(all.size()) / num_matrices;
  return {all.begin() + g * size, all.begin() + (g + 1) * size};
}

// sum over k of a[i, k] b[k, j], for matrices in rows.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b,
                            int64_t rows, int64_t inner, int64_t cols) {
  std::vector<double> c(size_t(rows * cols));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t j = 0; j < cols; ++j)
        c[size_t(i * cols + j)] += a[size_t(i * inner + k)] * b[size_t(k * cols + j)];
  return c;
}

std::vector<double> transposed(const std::vector<double>& a, int64_t rows, int64_t cols) {
  std::vector<double> t(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) t[size_t(j * rows + i)] = a[size_t(i * cols + j)];
  return t;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& want,
                 const std::string& name) {
  ASSERT_EQ(found.size(), want.size()) << name;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(found[i], want[i], 1e-11 * std::max(1.0, std::abs(want[i]))) << name << " " << i;
}

// With W + scale B A in place of W, the same model without adapters has the same loss; its gradient
// G of W gives those of A and B by the chain rule: scale B^T G and scale G A^T.
void expect_merged_model(const Recipe& recipe) {
  TinyRank tuned(recipe);
  Recipe plain = recipe;
  plain.tune = {};
  TinyRank merged(plain);
  const Whole values = whole_values(tuned.model);
  const double scale = recipe.tune.lora.scale();
  const int64_t rank = recipe.tune.lora.rank;
  std::map<std::string, int64_t> num_matrices, cols;
  for (const Piece& piece : merged.model.pieces(false)) {
    const std::string& name = piece.logical.name;
    const Shape& shape = piece.logical.global_shape;
    if (!values.contains(lora_a_name(name))) continue;
    const int64_t all = shape.ndim() == 3 ? shape[0] : 1;
    num_matrices[name] = all, cols[name] = shape[shape.ndim() - 1];
    const int64_t rows = shape[shape.ndim() - 2], size = rows * cols[name];
    for (int64_t g = 0; g < all; ++g) {
      const std::vector<double> delta =
          product(matrix_of(values.at(lora_b_name(name)), g, all),
                  matrix_of(values.at(lora_a_name(name)), g, all), rows, rank, cols[name]);
      for (int64_t i = 0; i < size; ++i)
        set(piece.data, g * size + i, get(piece.data, g * size + i) + scale * delta[size_t(i)]);
    }
  }
  merged.model.weights_changed();
  const double want = merged.step(lora_batch()).sum;
  EXPECT_NEAR(tuned.step(lora_batch()).sum, want, 1e-12 * std::abs(want));
  const Whole found = whole_gradients(tuned.model), of_merged = whole_gradients(merged.model);
  ASSERT_FALSE(found.empty());
  for (const auto& [name, gradient] : found) {
    ASSERT_TRUE(is_adapter(name)) << name;
    const std::string base = base_of(name, of_merged);
    const int64_t all = num_matrices.at(base), K = cols.at(base);
    const bool is_a = name == lora_a_name(base);
    std::vector<double> chain;
    for (int64_t n = 0; n < all; ++n) {
      const std::vector<double> g = matrix_of(of_merged.at(base), n, all);
      const int64_t N = int64_t(g.size()) / K;
      const std::vector<double> of_one =
          is_a ? product(transposed(matrix_of(values.at(lora_b_name(base)), n, all), N, rank), g,
                         rank, N, K)
               : product(g, transposed(matrix_of(values.at(lora_a_name(base)), n, all), rank, K), N,
                         K, rank);
      for (const double x : of_one) chain.push_back(scale * x);
    }
    expect_near(gradient, chain, name);
  }
}

TEST(Lora, HasTheLossAndTheGradientsOfTheMergedModel) {
  expect_merged_model(with_adapters(every_kind(), {"attention", "mlp", "experts"}));
  expect_merged_model(with_adapters(every_kind(), {"experts.down_proj"}));
  expect_merged_model(with_adapters(dense_blocks(), {"q_proj", "v_proj", "down_proj"}));
}

TEST(Lora, DividesByTheRootOfTheRank) {
  Recipe recipe = with_adapters(dense_blocks());
  recipe.tune.lora.rslora = true;
  EXPECT_DOUBLE_EQ(recipe.tune.lora.scale(), kLoraAlpha / std::sqrt(3.0));
  expect_merged_model(recipe);
}

TEST(Lora, RecomputationGivesTheSameBits) {
  Recipe recipe = with_adapters(every_kind());
  TinyRank kept(recipe);
  recipe.train.recompute = true;
  TinyRank recomputed(recipe);
  EXPECT_EQ(kept.step(lora_batch()).sum, recomputed.step(lora_batch()).sum);
  EXPECT_EQ(whole_gradients(kept.model), whole_gradients(recomputed.model));
}

TEST(Lora, GradientsAreCentralDifferences) {
  TinyRank rank(with_adapters(every_kind(), {"attention", "mlp", "experts"}));
  rank.step(lora_batch());
  const Whole gradients = whole_gradients(rank.model);
  for (const auto& [name, gradient] : gradients)
    EXPECT_TRUE(std::any_of(gradient.begin(), gradient.end(), [](double g) { return g != 0; }))
        << name;
  expect_central_differences(rank, gradients, [&] {
    rank.model.weights_changed();
    return rank.model.evaluate(lora_batch().view()).sum / double(12 * 2);
  });
}

// Adapters of r (K + N) elements for each target and nothing else; B of zeros changes no bit.
TEST(Lora, BeginsWithTheModelAndTrainsAdaptersAlone) {
  TinyRank tuned(with_adapters(dense_blocks())), plain(recipe_of(dense_blocks(), 2, 12));
  for (const Parameter& p : tuned.model.parameters())
    for (int64_t i = 0; p.logical.name.ends_with("lora_B.weight") && i < p.value.numel(); ++i)
      set(p.value, i, 0.0);
  tuned.model.weights_changed();
  EXPECT_EQ(tuned.step(lora_batch()).sum, plain.step(lora_batch()).sum);
  const ModelKeys keys = dense_blocks();
  const int64_t H = keys.hidden_size, F = keys.intermediate_size;
  const int64_t q = keys.num_attention_heads * keys.head_dim,
                kv = keys.num_key_value_heads * keys.head_dim;
  const int64_t of_block = 2 * (H + q) + 2 * (H + kv) + 3 * (H + F);
  EXPECT_EQ(tuned.model.local().num_parameters(), 3 * kLoraRank * of_block);
}

// Every tensor that is not frozen has the gradient that it has if all are trained, bit for bit.
TEST(Freezing, LeavesTheOtherGradientsAsTheyAre) {
  Recipe recipe = recipe_of(every_kind(), 2, 12);
  TinyRank all(recipe);
  recipe.tune.freeze = {"model.embed_tokens.weight", "*.mlp.experts.*", "model.layers.0.*",
                        "*.o_proj.weight", "*.self_attn.q_norm.weight"};
  TinyRank some(recipe);
  EXPECT_EQ(all.step(lora_batch()).sum, some.step(lora_batch()).sum);
  const Whole want = whole_gradients(all.model), found = whole_gradients(some.model);
  size_t num_frozen = 0;
  for (const auto& [name, gradient] : want) {
    const bool frozen = recipe.tune.freezes(name);
    num_frozen += frozen;
    ASSERT_EQ(found.contains(name), !frozen) << name;
    if (!frozen) {
      EXPECT_EQ(found.at(name), gradient) << name;
    }
  }
  EXPECT_EQ(num_frozen + found.size(), want.size());
  EXPECT_GT(num_frozen, 10u);
}

std::string refusal(const Recipe& recipe) {
  try {
    TinyRank rank(recipe);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(Freezing, RefusesWhatItCannotDo) {
  Recipe recipe = recipe_of(every_kind(), 2, 12);
  recipe.tune.freeze = {"model.layers.0.self_attn.k_proj.weight"};
  EXPECT_NE(refusal(recipe).find("which are one product"), std::string::npos);
  recipe.tune.freeze = {"model.layer.*"};
  EXPECT_NE(refusal(recipe).find("no tensor of the model matches"), std::string::npos);
  recipe.tune.freeze = {"*"};
  EXPECT_NE(refusal(recipe).find("leave one to train"), std::string::npos);
  recipe = with_adapters(dense_blocks(), {"experts"});
  EXPECT_NE(refusal(recipe).find("no linear layer of the model matches"), std::string::npos);
}

TEST(Freezing, APatternMatchesTheWholeName) {
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_TRUE(matches_pattern("a*b*c", "a-b-b-c"));
  EXPECT_TRUE(matches_pattern("*norm.weight", "model.norm.weight"));
  EXPECT_FALSE(matches_pattern("norm.weight", "model.norm.weight"));
  EXPECT_FALSE(matches_pattern("a*b", "a-b-c"));
  EXPECT_FALSE(matches_pattern("", "a"));
}

// Ranks that share heads and widths, also one key head among several, give what one rank gives.
TEST(Lora, TensorParallelRanksGiveTheGradientsOfOne) {
  for (const bool sequence_parallel : {false, true})
    for (const auto& [heads, keys, tp] : {std::tuple(4, 2, 2), std::tuple(4, 2, 4)}) {
      SCOPED_TRACE(fmt::format("{} heads, {} keys, tp {}", heads, keys, tp));
      ModelKeys model = every_kind();
      model.num_attention_heads = heads, model.num_key_value_heads = keys;
      model.intermediate_size = 8, model.moe_intermediate_size = 8;
      Recipe recipe = with_adapters(model);
      TinyRank one(recipe);
      const double want = one.step(lora_batch()).sum;
      recipe.parallel.tp = tp;
      recipe.parallel.sequence_parallel = sequence_parallel;
      const auto num_ranks = size_t(tp);
      std::vector<std::vector<Element>> elements(num_ranks);
      std::vector<double> losses(num_ranks);
      Allocator allocator(Device::kCpu);
      comm::run_ranks(tp, {.timeout_s = 60, .staging_bytes = 1 << 16}, allocator,
                      [&](comm::Group& ranks) {
                        TinyRank rank(recipe, ranks);
                        losses[size_t(ranks.rank())] = rank.step(lora_batch()).sum;
                        elements[size_t(ranks.rank())] = elements_of_gradients(rank.model);
                      });
      double loss = 0;
      for (const double part : losses) loss += sequence_parallel ? part : part / tp;
      EXPECT_NEAR(loss, want, 1e-11 * std::abs(want));
      const Whole found = put_together(elements);
      for (const auto& [name, gradient] : whole_gradients(one.model))
        expect_near(found.at(name), gradient, name);
    }
}

}  // namespace
}  // namespace ashlar::parallel
