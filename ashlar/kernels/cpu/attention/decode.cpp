#include <array>
#include <cmath>

#include "ashlar/kernels/cpu/attention/blocks.h"

namespace ashlar::kernels::cpu {
namespace {

constexpr int64_t kMaxQueryLength = 4;  // of a segment that is decoded
constexpr int64_t kMinKeysPerQuery = 8;
constexpr int64_t kHeads = 4;  // that share one reading of keys and values

struct DecodeScratch {
  alignas(64) std::array<float, kHeads * kBlock> scores;
  alignas(64) std::array<float, kHeads * kMaxHeadDim> q, out;
  std::array<float, kHeads> max, sum;
};

// Whole vectors.
int64_t out_stride(int64_t V) {
  return (V + 15) / 16 * 16;
}

// Continues the softmax of every head with `count` more scores.
void softmax(int64_t heads, int64_t count, const AttentionShape& shape, DecodeScratch& s) {
  BlockMask mask;
  for (int64_t i = 0; i < heads; ++i) {
    mask.begin[i] = 0;
    mask.end[i] = int32_t(count);
  }
  mask.columns[0] = int32_t((count + 15) / 16 * 16);
  softmax_block(mask, heads, float(shape.scale), s.scores.data(), s.max.data(), s.sum.data(),
                s.out.data(), out_stride(shape.V));
}

// Heads [h, h + heads) of one kv head for query row t.
template <typename T>
void decode_heads(const AttentionArgs& call, int64_t t, int64_t h, int64_t heads) {
  const int64_t N = call.shape.N, K = call.shape.K, D = call.shape.D, V = call.shape.V,
                j = h / (N / K);
  const T *q = call.q.as<T>() + (t * N + h) * D, *k = call.k.as<T>() + j * D,
          *v = call.v.as<T>() + j * V;
  DecodeScratch s;
  s.max.fill(kNoScore);
  s.sum.fill(0.0f);
  s.scores.fill(0.0f);
  s.out.fill(0.0f);
  for (int64_t i = 0; i < heads * D; ++i) s.q[i] = float(q[i]);
  const int64_t document = call.queries.segments()[call.queries.segment_T()[t]].document;
  for (const Segment& key : call.keys) {
    if (key.document != document) continue;
    const auto [begin, end] = visible_rows(key, call.queries.position_T()[t], call.shape.window);
    for (int64_t row = begin; row < end; row += kBlock) {
      const int64_t count = std::min(kBlock, end - row);
      row_scores(heads, D, s.q.data(), k + row * K * D, K * D, count, s.scores.data());
      softmax(heads, count, call.shape, s);
      row_weighted_sum(heads, V, s.scores.data(), v + row * K * V, K * V, count, s.out.data(),
                       out_stride(V));
    }
  }
  for (int64_t i = 0; i < heads; ++i) {
    const float sum = checked_sum(call, t, s.sum[i]), factor = sum == 0 ? 0.0f : 1.0f / sum;
    scale_to(&s.out[i * out_stride(V)], factor, V, call.out.as<T>() + (t * N + h + i) * V);
    call.lse_TN.as<float>()[t * N + h + i] = s.max[i] + std::log(sum);
  }
}

}  // namespace

bool decodes_each(const AttentionArgs& call) {
  return int64_t(call.queries.segments().size()) == call.queries.num_tokens();
}

// A token that is a segment of its own takes this path whatever else is in the call, so that its
// bits do not depend on that.
bool is_decode(const AttentionArgs& call) {
  if (decodes_each(call)) return true;
  for (const Segment& query : call.queries.segments())
    if (query.length > kMaxQueryLength) return false;
  return num_key_rows(call) >= kMinKeysPerQuery * call.queries.num_tokens();
}

void attention_decode(const AttentionArgs& call) {
  const int64_t K = call.shape.K, group = call.shape.N / K;
  call.ctx.threads->run(call.queries.num_tokens() * K, [&](int64_t task, int) {
    for (int64_t g = 0; g < group; g += kHeads) {
      const int64_t h = task % K * group + g, heads = std::min(kHeads, group - g);
      if (call.q.dtype == DType::kBF16)
        decode_heads<bf16>(call, task / K, h, heads);
      else
        decode_heads<float>(call, task / K, h, heads);
    }
  });
}

}  // namespace ashlar::kernels::cpu
