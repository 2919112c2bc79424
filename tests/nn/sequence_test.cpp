// Packing, splitting and padding change nothing: loss and every gradient stay those of whole
// documents.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "golden.h"

namespace ashlar::nn {
namespace {

using Gradients = std::map<std::string, std::vector<double>>;
using kernels::Sequence;

Gradients gradients_of(const Harness& h) {
  Gradients all;
  h.model.gradients().for_each(h.model.spec(), [&](const ParameterInfo& info, const Tensor& g) {
    auto& values = all[info.name];
    for (int64_t i = 0; i < g.numel(); ++i) values.push_back(Harness::get(g, i));
  });
  return all;
}

struct Result {
  double loss_sum;
  Gradients gradients;
};

// Sum of losses and its gradients.
Result run(const std::vector<int32_t>& ids, const std::vector<int32_t>& targets,
           std::vector<Segment> segments, Keep keep = Keep::kAll, int threads = 2) {
  Harness h(tiny_spec(), DType::kF64, int64_t(ids.size()), keep, 8, threads);
  h.fill_golden();
  h.tokens(ids, targets);
  h.sequence = Sequence(std::move(segments));
  h.run_backward(1.0);
  double sum = 0.0;
  for (int64_t t = 0; t < h.loss.tensor.numel(); ++t) sum += Harness::get(h.loss.tensor, t);
  return {sum, gradients_of(h)};
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
    Harness h(tiny_spec(), DType::kF32, 7);
    h.fill_golden();
    std::vector<int32_t> ids = kIds;
    ids[0] = first;
    ids[2] = first;
    h.tokens(ids, kTargets);
    h.sequence = Sequence({{0, 3, 0, 0}, {3, 4, 0, 1}});
    h.run_forward();
    OwnedTensor out = make_tensor(h.allocator, DType::kF32, {7, 11}, Tag::kWorkspace);
    head_logits(h.ctx, h.model, h.saved.final_TH, out.tensor);
    std::vector<double> second;
    for (int i = 33; i < 77; ++i) second.push_back(Harness::get(out.tensor, i));
    logits.push_back(second);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(Sequence, RecomputationGivesTheSameBits) {
  const Result kept = run(kIds, kTargets, {{0, 7, 0, 1}}, Keep::kAll);
  expect_equal(run(kIds, kTargets, {{0, 7, 0, 1}}, Keep::kBlockInput), kept, 0.0);
}

TEST(Sequence, ThreadCountsGiveTheSameBits) {
  const Result one = run(kIds, kTargets, {{0, 7, 0, 1}}, Keep::kAll, 1);
  for (const int threads : {2, 3})
    expect_equal(run(kIds, kTargets, {{0, 7, 0, 1}}, Keep::kAll, threads), one, 0.0);
}

}  // namespace
}  // namespace ashlar::nn
