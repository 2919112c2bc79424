// Packing, splitting and padding change nothing: loss and every gradient stay those of whole
// documents.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/parallel/tiny_rank.h"

namespace ashlar::nn {
namespace {

using parallel::LossSum;
using namespace parallel::testing_support;

struct Result {
  double loss_sum;
  Whole gradients;
};

// Sum of losses and its gradients.
Result run(const std::vector<int32_t>& ids, const std::vector<int32_t>& targets,
           const std::vector<Segment>& segments, bool recompute = false, int num_threads = 2) {
  const auto num_tokens = int64_t(ids.size());
  Recipe recipe = recipe_of(tiny_spec(), 1, num_tokens);
  recipe.train.recompute = recompute;
  TinyRank rank(recipe, {.num_threads = num_threads});
  const LossSum losses = rank.step({ids, targets, segments});
  Result result{losses.sum, whole_gradients(rank.model)};
  for (auto& [name, values] : result.gradients)
    for (double& g : values) g *= double(num_tokens);  // they are those of the mean
  return result;
}

void expect_equal(const Result& a, const Result& b, double tolerance) {
  EXPECT_NEAR(a.loss_sum, b.loss_sum, tolerance * std::abs(b.loss_sum));
  for (const auto& [name, values] : b.gradients)
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(a.gradients.at(name)[i], values[i], tolerance) << name << " " << i;
}

Result add(const Result& a, const Result& b) {
  Result sum = a;
  sum.loss_sum += b.loss_sum;
  for (auto& [name, values] : sum.gradients)
    for (size_t i = 0; i < values.size(); ++i) values[i] += b.gradients.at(name)[i];
  return sum;
}

const std::vector<int32_t> kIds = {3, 7, 1, 9, 9, 2, 10}, kTargets = {7, 1, 9, 9, 2, 10, 4};

TEST(Sequence, PackedDocumentsEqualSeparateOnes) {
  for (const int64_t cut : {1, 2, 3, 6}) {
    const Result packed = run(kIds, kTargets, {{0, cut, 0, 5}, {cut, 7 - cut, 0, 9}});
    const auto part = [&](int64_t begin, int64_t end) {
      const std::vector<int32_t> ids(kIds.begin() + begin, kIds.begin() + end);
      const std::vector<int32_t> targets(kTargets.begin() + begin, kTargets.begin() + end);
      return run(ids, targets, {{0, end - begin, 0, 0}});
    };
    expect_equal(packed, add(part(0, cut), part(cut, 7)), 1e-12);
  }
}

// The pieces of one document in any order of rows: halos and keys come from other rows of the
// batch.
TEST(Sequence, SplitDocumentsEqualWholeOnes) {
  const Result whole = run(kIds, kTargets, {{0, 7, 0, 1}});
  expect_equal(run(kIds, kTargets, {{0, 3, 0, 1}, {3, 4, 3, 1}}), whole, 1e-12);
  expect_equal(run(kIds, kTargets, {{0, 2, 0, 1}, {2, 2, 2, 1}, {4, 3, 4, 1}}), whole, 1e-12);
  expect_equal(run(kIds, kTargets, {{0, 1, 0, 1}, {1, 1, 1, 1}, {2, 1, 2, 1}, {3, 4, 3, 1}}), whole,
               1e-12);
  // Last piece first.
  const std::vector<int32_t> ids = {9, 2, 10, 3, 7, 1, 9}, targets = {2, 10, 4, 7, 1, 9, 9};
  expect_equal(run(ids, targets, {{0, 3, 4, 1}, {3, 2, 0, 1}, {5, 2, 2, 1}}), whole, 1e-12);
}

TEST(Sequence, PaddingChangesNothing) {
  const Result whole = run(kIds, kTargets, {{0, 7, 0, 1}});
  std::vector<int32_t> ids = {0, 0, 0}, targets = {-1, -1, -1};
  ids.insert(ids.end(), kIds.begin(), kIds.end());
  targets.insert(targets.end(), kTargets.begin(), kTargets.end());
  expect_equal(run(ids, targets, {{0, 3, 0, 99}, {3, 7, 0, 1}}), whole, 1e-12);
}

// Change document A: the logits of document B in the same row keep their bits.
TEST(Sequence, NothingLeaksBetweenDocuments) {
  std::vector<std::vector<double>> logits;
  for (const int32_t first : {3, 8}) {
    TinyRank rank(recipe_of(tiny_spec(), 1, 7), {.compute = DType::kF32, .num_threads = 2});
    Batch batch{kIds, kTargets, {{0, 3, 0, 0}, {3, 4, 0, 1}}};
    batch.ids[0] = first;
    batch.ids[2] = first;
    rank.model.evaluate(batch.view());
    const std::vector<double> all = rank.logits();
    logits.emplace_back(all.begin() + 33, all.end());
  }
  EXPECT_EQ(logits[0].size(), 44u);
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(Sequence, RecomputationGivesTheSameBits) {
  const Result kept = run(kIds, kTargets, {{0, 7, 0, 1}}, false);
  expect_equal(run(kIds, kTargets, {{0, 7, 0, 1}}, true), kept, 0.0);
}

TEST(Sequence, ThreadCountsGiveTheSameBits) {
  const Result one = run(kIds, kTargets, {{0, 7, 0, 1}}, false, 1);
  for (const int threads : {2, 3})
    expect_equal(run(kIds, kTargets, {{0, 7, 0, 1}}, false, threads), one, 0.0);
}

}  // namespace
}  // namespace ashlar::nn
