// Dense blocks, and blocks of several kinds in one model: gradients against central differences of
// the loss, and every number type and instruction set against fp64.
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/kernels/isa.h"
#include "ashlar/sizing/model.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using namespace parallel::testing_support;

// Grouped queries, windows, partial rotation, scaled RoPE, norms and a head of its own.
ModelKeys mixed() {
  ModelKeys keys = tiny_spec();
  keys.layer_types = {{AttentionSpec::kKind, MlpSpec::kKind, true},
                      {CcaSpec::kKind, MlpSpec::kKind},
                      {AttentionSpec::kKind, MoeSpec::kKind},
                      {AttentionSpec::kKind, MlpSpec::kKind},
                      {CcaSpec::kKind, MoeSpec::kKind, true}};
  keys.num_hidden_layers = 5, keys.intermediate_size = 6;
  keys.qk_norm = QkNorm::kRms, keys.residual = Residual::kPlain, keys.tie_word_embeddings = false;
  keys.rope_original_positions = 4, keys.rope_factor = 4, keys.qk_norm_eps = 1e-12;
  return keys;
}

ModelKeys llama() {
  ModelKeys keys = mixed();
  keys.layer_types.assign(5, LayerType::kFullAttention);
  keys.qk_norm = QkNorm::kNone, keys.partial_rotary_factor = 1.0;
  keys.rope_original_positions = 0;
  return keys;
}

// Norms of the stream, of queries and of keys with an offset.
ModelKeys zero_centered() {
  ModelKeys keys = mixed();
  keys.zero_centered_norm = true;
  return keys;
}

// MiniMax's way to join the stream, at blocks of every kind.
ModelKeys normed() {
  ModelKeys keys = mixed();
  keys.residual = Residual::kNormed;
  keys.full_attn = {1.3, 0.7}, keys.mlp = {0.8, 1.1};
  return keys;
}

// Qwen3-Next's attention.
ModelKeys gated() {
  ModelKeys keys = zero_centered();
  keys.attention_output_gate = true;
  return keys;
}

Batch packed() {
  return batch_of({{5, 1, 6}, {12}}, 11);
}

double loss_of(TinyRank& rank, const Batch& batch) {
  rank.model.weights_changed();
  const parallel::LossSum losses = rank.model.evaluate(batch.view());
  return losses.sum / 24.0;  // as gradients are: over all tokens
}

void check_gradients(const ModelKeys& keys) {
  const Batch batch = packed();
  TinyRank rank(recipe_of(keys, 2, 12));
  rank.step(batch);
  expect_central_differences(rank, whole_gradients(rank.model),
                             [&] { return loss_of(rank, batch); });
}

TEST(Dense, GradientsAreCentralDifferences) {
  check_gradients(llama());
}

TEST(Dense, GradientsOfBlocksOfEveryKindAreCentralDifferences) {
  check_gradients(mixed());
}

TEST(Dense, GradientsWithZeroCenteredNormsAreCentralDifferences) {
  check_gradients(zero_centered());
}

TEST(Dense, GradientsWithNormedResidualsAreCentralDifferences) {
  check_gradients(normed());
}

TEST(Dense, GradientsOfGatedAttentionAreCentralDifferences) {
  check_gradients(gated());
}

// With and without norms of queries and keys, which decide what forward keeps.
TEST(Dense, GradientsOfGatedAttentionWithoutNormsAreCentralDifferences) {
  ModelKeys keys = llama();
  keys.attention_output_gate = true;
  check_gradients(keys);
}

// A weight of w in a zero-centred norm is one of 1 + w in another, for the loss and all gradients.
TEST(Dense, AZeroCenteredNormAddsOneToItsWeight) {
  const auto is_norm = [](const std::string& name) {  // the router's own has no offset
    return name.ends_with("norm.weight") && name.find("router") == std::string::npos;
  };
  TinyRank centered(recipe_of(zero_centered(), 2, 12)), other(recipe_of(mixed(), 2, 12));
  int64_t num_norms = 0;
  for (const Piece& piece : other.model.pieces(false))
    for (int64_t i = 0; is_norm(piece.logical.name) && i < piece.data.numel(); ++i, ++num_norms)
      set(piece.data, i, get(piece.data, i) + 1);
  other.model.weights_changed();
  EXPECT_EQ(num_norms, (2 * 5 + 1) * 8 + 2 * 3 * 4);
  EXPECT_DOUBLE_EQ(centered.step(packed()).sum, other.step(packed()).sum);
  const Whole want = whole_gradients(other.model);
  for (const auto& [name, values] : whole_gradients(centered.model))
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], want.at(name)[i], 1e-12) << name << " " << i;
}

TEST(Dense, HasTheParametersOfTheClosedFormula) {
  for (const ModelKeys& keys : {llama(), mixed(), normed(), gated()})
    EXPECT_EQ(TinyRank(recipe_of(keys, 2, 12)).model.local().num_parameters(),
              model_parameters(model_of(keys)).total);
}

TEST(Dense, RecomputationGivesTheSameBits) {
  for (const ModelKeys& keys : {llama(), mixed(), zero_centered(), normed(), gated()}) {
    Recipe recipe = recipe_of(keys, 2, 12);
    TinyRank kept(recipe, {.compute = DType::kF32});
    recipe.train.recompute = true;
    TinyRank again(recipe, {.compute = DType::kF32});
    const parallel::LossSum losses = kept.step(packed());
    EXPECT_EQ(losses.sum, again.step(packed()).sum);
    EXPECT_TRUE(whole_gradients(kept.model) == whole_gradients(again.model));
    EXPECT_LT(again.memory().tags[size_t(Tag::kSaved)].peak_bytes,
              kept.memory().tags[size_t(Tag::kSaved)].peak_bytes);
  }
}

// The relative distance of all gradients, in the norm.
double distance(const Whole& a, const Whole& b) {
  double difference = 0.0, size = 0.0;
  for (const auto& [name, values] : a)
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - b.at(name)[i], 2);
      size += values[i] * values[i];
    }
  return std::sqrt(difference / size);
}

void check_types_and_instruction_sets(const ModelKeys& keys) {
  const kernels::Isa used = kernels::isa();
  TinyRank exact(recipe_of(keys, 2, 12));
  const double loss = exact.step(packed()).sum;
  const Whole gradients = whole_gradients(exact.model);
  for (const kernels::Isa isa : kernels::supported_isas()) {
    kernels::select_isa(isa);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const double tolerance = compute == DType::kF32 ? 1e-5 : 5e-2;
      TinyRank rank(recipe_of(keys, 2, 12), {.compute = compute});
      EXPECT_NEAR(rank.step(packed()).sum, loss, tolerance * loss) << name_of(isa);
      EXPECT_LT(distance(gradients, whole_gradients(rank.model)), tolerance) << name_of(isa);
    }
  }
  kernels::select_isa(used);
}

TEST(Dense, EveryTypeAndInstructionSetComesCloseToFp64) {
  check_types_and_instruction_sets(llama());
  // Dense blocks: where a router chooses, types can differ in a choice.  Without an offset, with
  // which the tiny model's weights near 1 would make scores large enough for one key to take all.
  for (ModelKeys keys : {normed(), gated()}) {
    keys.layer_types = llama().layer_types, keys.zero_centered_norm = false;
    check_types_and_instruction_sets(keys);
  }
}

// A document's tokens see nothing of the others, in blocks of any kind.
TEST(Dense, PackedDocumentsAreApart) {
  for (const ModelKeys& keys : {llama(), mixed(), normed(), gated()}) {
    TinyRank packed_rank(recipe_of(keys, 2, 12)), alone(recipe_of(keys, 1, 6));
    Batch batch = packed();
    packed_rank.step(batch);
    const std::vector<double> together = packed_rank.logits();
    const Batch last{{batch.ids.begin() + 6, batch.ids.begin() + 12},
                     std::vector<int32_t>(6, -1),
                     {{0, 6, 0, 0}}};
    alone.step(last);
    const std::vector<double> apart = alone.logits();
    for (size_t i = 0; i < apart.size(); ++i)
      EXPECT_NEAR(apart[i], together[6 * 11 + i], 1e-12) << i;
  }
}

}  // namespace
}  // namespace ashlar::nn
