// Dense blocks, and blocks of several kinds in one model: gradients against central differences of
// the loss, and every number type and instruction set against fp64.
#include <gtest/gtest.h>

#include "ashlar/sizing/model.h"
#include "tests/nn/model_checks.h"

namespace ashlar::nn {
namespace {

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
  keys.rope_scaling.type = RopeType::kLlama3, keys.rope_scaling.original_positions = 4,
  keys.rope_scaling.factor = 4;
  keys.qk_norm_eps = 1e-12;
  return keys;
}

ModelKeys llama() {
  ModelKeys keys = mixed();
  keys.layer_types.assign(5, LayerType::kFullAttention);
  keys.qk_norm = QkNorm::kNone, keys.partial_rotary_factor = 1.0;
  keys.rope_scaling.type = RopeType::kDefault, keys.rope_scaling.original_positions = 0;
  return keys;
}

// Biases of all projections, and YaRN, which changes the length of what it rotates.
ModelKeys biased() {
  ModelKeys keys = llama();
  keys.attention_bias = AttentionBias::kQkvo;
  keys.rope_scaling.type = RopeType::kYarn, keys.rope_scaling.original_positions = 4,
  keys.rope_scaling.factor = 4;
  keys.rope_scaling.beta_fast = 2, keys.rope_scaling.beta_slow = 0.1;
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

TEST(Dense, GradientsAreCentralDifferences) {
  check_central_differences(llama());
}

TEST(Dense, GradientsOfBlocksOfEveryKindAreCentralDifferences) {
  check_central_differences(mixed());
}

TEST(Dense, GradientsWithZeroCenteredNormsAreCentralDifferences) {
  check_central_differences(zero_centered());
}

TEST(Dense, GradientsWithNormedResidualsAreCentralDifferences) {
  check_central_differences(normed());
}

TEST(Dense, GradientsWithBiasesAreCentralDifferences) {
  check_central_differences(biased());
}

// Norms of queries, keys and values alone, beside norms of queries and keys, and of a gate.
TEST(Dense, GradientsWithSomeBiasesInBlocksOfEveryKindAreCentralDifferences) {
  ModelKeys keys = mixed();
  keys.attention_bias = AttentionBias::kQkv;
  check_central_differences(keys);
  keys = gated();
  keys.attention_bias = AttentionBias::kQkvo;
  check_central_differences(keys);
}

TEST(Dense, GradientsOfGatedAttentionAreCentralDifferences) {
  check_central_differences(gated());
}

// With and without norms of queries and keys, which decide what forward keeps.
TEST(Dense, GradientsOfGatedAttentionWithoutNormsAreCentralDifferences) {
  ModelKeys keys = llama();
  keys.attention_output_gate = true;
  check_central_differences(keys);
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
  for (ModelKeys keys : {llama(), mixed(), normed(), gated()})
    for (const AttentionBias bias :
         {AttentionBias::kNone, AttentionBias::kQkv, AttentionBias::kQkvo}) {
      keys.attention_bias = bias;
      EXPECT_EQ(TinyRank(recipe_of(keys, 2, 12)).model.local().num_parameters(),
                model_parameters(model_of(keys)).total);
    }
}

TEST(Dense, RecomputationGivesTheSameBits) {
  for (const ModelKeys& keys : {llama(), mixed(), zero_centered(), normed(), gated(), biased()})
    check_recomputation(keys);
}

TEST(Dense, EveryTypeAndInstructionSetComesCloseToFp64) {
  check_types_and_instruction_sets(llama(), 1e-5, 5e-2);
  // YaRN makes queries and keys longer, and so larger scores, in which rounding shows more.
  check_types_and_instruction_sets(biased(), 1e-5, 0.15);
  // Dense blocks: where a router chooses, types can differ in a choice.  Without an offset, with
  // which the tiny model's weights near 1 would make scores large enough for one key to take all.
  for (ModelKeys keys : {normed(), gated()}) {
    keys.layer_types = llama().layer_types, keys.zero_centered_norm = false;
    check_types_and_instruction_sets(keys, 1e-5, 5e-2);
  }
}

// In blocks of any kind.
TEST(Dense, PackedDocumentsAreApart) {
  for (const ModelKeys& keys : {llama(), mixed(), normed(), gated(), biased()})
    check_documents_are_apart(keys);
}

}  // namespace
}  // namespace ashlar::nn
