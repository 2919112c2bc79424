// Attention over ranks equals that of one rank, by every way of exchange, where values have a head
// size of their own.
#include "ashlar/parallel/cp_keys.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/rng.h"

namespace ashlar::parallel {
namespace {

constexpr int64_t kQueryHeads = 4, kKeyHeads = 2, kKeySize = 3, kValueSize = 5;
constexpr int64_t kKeyRows = 2, kKeyLength = 24, kKeyTokens = kKeyRows * kKeyLength;

// The tensors of one attention; rows are tokens.
struct KeyTensors {
  Allocator allocator{Device::kCpu};
  std::vector<OwnedTensor> memory;
  kernels::Attention call;
  kernels::AttentionGradients gradients;

  explicit KeyTensors(int64_t tokens) {
    const auto take = [&](int64_t cols) {
      memory.push_back(make_tensor(allocator, DType::kF64, {tokens, cols}, Tag::kInput));
      return memory.back().tensor;
    };
    const kernels::AttentionShape shape{kQueryHeads, kKeyHeads, kKeySize, kValueSize, 0, 0.6};
    const int64_t q = kQueryHeads * kKeySize, k = kKeyHeads * kKeySize;
    const int64_t v = kKeyHeads * kValueSize, out = kQueryHeads * kValueSize;
    call = {shape, take(q), take(k), take(v), take(out), take(kQueryHeads)};
    gradients = {take(out), take(q), take(k), take(v)};
  }
  // Inputs of the tokens that stand at rows whole_row(0), whole_row(1), ... of the batch.
  template <typename WholeRow>
  void fill(WholeRow whole_row) {
    const Rng rng(3, "attention");
    uint64_t salt = 0;
    for (const Tensor* x : {&call.q, &call.k, &call.v, &gradients.dout}) {
      ++salt;
      for (int64_t i = 0; i < x->shape[0]; ++i)
        for (int64_t c = 0; c < x->shape[1]; ++c)
          x->as<double>()[i * x->shape[1] + c] =
              2 * rng.uniform((salt << 32) + uint64_t(whole_row(i) * x->shape[1] + c)) - 1;
    }
  }
};

void expect_rank(comm::Group& ranks, CpExchange kind, const CpSplit& split,
                 const std::vector<Segment>& whole, const KeyTensors& want) {
  Allocator allocator(Device::kCpu);
  Threads threads(1);
  Arena workspace(allocator, 1 << 20, Tag::kWorkspace);
  const kernels::Context ctx{.threads = &threads, .workspace = &workspace};
  const nn::Types types = nn::Types::of(DType::kF64);
  const nn::ExchangeNeeds needs{.query_cols = kQueryHeads * kKeySize,
                                .key_cols = kKeyHeads * kKeySize,
                                .value_cols = kKeyHeads * kValueSize,
                                .head_dim = kKeySize};
  CpParts parts(size_t(ranks.size()));
  for (int rank = 0; rank < ranks.size(); ++rank)
    take_local_segments(split, rank, whole, parts[size_t(rank)]);
  const auto keys = CpKeys::make(kind, ranks, split, parts, needs, types, allocator);
  keys->assign();
  const kernels::Sequence sequence(parts[size_t(ranks.rank())]);
  const nn::Exchanges exchanges{};
  const nn::Pass pass{.types = types,
                      .sequence = sequence,
                      .exchanges = exchanges,
                      .mode = nn::Mode::kForward,
                      .block = 0,
                      .slot = 0,
                      .rope = {}};
  KeyTensors x(split.local_tokens());
  const auto whole_of = [&](int64_t i) { return whole_row(split, ranks.rank(), i); };
  x.fill(whole_of);
  const auto expect_equal = [&](const char* what, const Tensor& got, const Tensor& all) {
    const int64_t cols = got.shape[1];
    for (int64_t i = 0; i < got.shape[0]; ++i)
      for (int64_t c = 0; c < cols; ++c)
        ASSERT_NEAR(got.as<double>()[i * cols + c], all.as<double>()[whole_of(i) * cols + c], 1e-12)
            << what << " of token " << whole_of(i);
  };
  keys->post_keys(ctx, pass, x.call);
  keys->attend(ctx, pass, x.call);
  expect_equal("out", x.call.out, want.call.out);
  keys->post_backward(ctx, pass, x.call);
  keys->attend_backward(ctx, pass, x.call, x.gradients);
  keys->finish_key_gradients(ctx, pass, x.gradients);
  expect_equal("dq", x.gradients.dq, want.gradients.dq);
  expect_equal("dk", x.gradients.dk, want.gradients.dk);
  expect_equal("dv", x.gradients.dv, want.gradients.dv);
}

TEST(CpKeys, CarryValuesOfAnotherHeadSize) {
  const std::vector<Segment> whole = {{0, 24, 0, 0}, {24, 7, 0, 1}, {31, 17, 0, 2}};
  KeyTensors want(kKeyTokens);
  want.fill([](int64_t row) { return row; });
  Threads threads(1);
  const kernels::Context ctx{.threads = &threads};
  const kernels::Sequence sequence(whole);
  attention_forward(ctx, sequence, whole, want.call);
  attention_backward(ctx, sequence, whole, want.call, want.gradients);
  for (const CpExchange kind : {CpExchange::kAllGather, CpExchange::kRing, CpExchange::kAllToAll})
    for (const CpLayout layout : {CpLayout::kContiguous, CpLayout::kZigzag})
      for (const int n : {2, 4}) {  // by heads, 4 ranks share the key heads
        const CpSplit split{layout, n, kKeyRows, kKeyLength};
        Allocator allocator(Device::kCpu);
        comm::run_ranks(n, {}, allocator,
                        [&](comm::Group& ranks) { expect_rank(ranks, kind, split, whole, want); });
      }
}

}  // namespace
}  // namespace ashlar::parallel
