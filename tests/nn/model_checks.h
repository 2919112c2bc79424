// Duties of every kind of model, small enough for central differences.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/kernels/isa.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {

using namespace parallel::testing_support;

// Two rows of 12 tokens: documents of 5, 1 and 6, and one of 12.
inline Batch packed() {
  return batch_of({{5, 1, 6}, {12}}, 11);
}

inline double loss_of(TinyRank& rank, const Batch& batch) {
  rank.model.weights_changed();
  const parallel::LossSum losses = rank.model.evaluate(batch.view());
  return losses.sum / 24.0;  // as gradients are: over all tokens
}

inline void check_central_differences(const ModelKeys& keys) {
  const Batch batch = packed();
  TinyRank rank(recipe_of(keys, 2, 12));
  rank.step(batch);
  expect_central_differences(rank, whole_gradients(rank.model),
                             [&] { return loss_of(rank, batch); });
}

// Recomputation gives the same bits and keeps less.
inline void check_recomputation(const ModelKeys& keys) {
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

// The relative distance of all gradients, in the norm.
inline double distance(const Whole& a, const Whole& b) {
  double difference = 0.0, size = 0.0;
  for (const auto& [name, values] : a)
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - b.at(name)[i], 2);
      size += values[i] * values[i];
    }
  return std::sqrt(difference / size);
}

// fp32 and bf16 on every instruction set of this machine come as close to fp64.
inline void check_types_and_instruction_sets(const ModelKeys& keys, double fp32, double bf16) {
  const kernels::Isa used = kernels::isa();
  TinyRank exact(recipe_of(keys, 2, 12));
  const double loss = exact.step(packed()).sum;
  const Whole gradients = whole_gradients(exact.model);
  for (const kernels::Isa isa : kernels::supported_isas()) {
    kernels::select_isa(isa);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const double tolerance = compute == DType::kF32 ? fp32 : bf16;
      TinyRank rank(recipe_of(keys, 2, 12), {.compute = compute});
      EXPECT_NEAR(rank.step(packed()).sum, loss, tolerance * loss) << name_of(isa);
      EXPECT_LT(distance(gradients, whole_gradients(rank.model)), tolerance) << name_of(isa);
    }
  }
  kernels::select_isa(used);
}

// A document's tokens see nothing of the others.
inline void check_documents_are_apart(const ModelKeys& keys) {
  TinyRank packed_rank(recipe_of(keys, 2, 12)), alone(recipe_of(keys, 1, 6));
  Batch batch = packed();
  packed_rank.step(batch);
  const std::vector<double> together = packed_rank.logits();
  const Batch last{
      {batch.ids.begin() + 6, batch.ids.begin() + 12}, std::vector<int32_t>(6, -1), {{0, 6, 0, 0}}};
  alone.step(last);
  const std::vector<double> apart = alone.logits();
  for (size_t i = 0; i < apart.size(); ++i) EXPECT_NEAR(apart[i], together[6 * 11 + i], 1e-12) << i;
}

}  // namespace ashlar::nn
