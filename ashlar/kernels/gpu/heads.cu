// rope.h: 32 lanes have a head.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/head_lanes.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

constexpr int kHeadThreads = 256, kHeadGroups = kHeadThreads / kLanes;

// A query, a key or a value of a token.
struct Head {
  enum Kind { kQuery, kKey, kValue } kind;
  int64_t token;
  int64_t row;     // of its kind's heads
  int64_t in_qkv;  // its first element there
};
ASHLAR_DEVICE int64_t heads_of_token(const Heads& s) {
  return s.num_queries + 2 * s.num_keys;
}
ASHLAR_DEVICE Head head_of(const Heads& s, int64_t token, int64_t number) {
  Head head{Head::kQuery, token, token * s.num_queries + number,
            token * s.row_width + number * s.head_dim};
  if (number < s.num_queries) return head;
  const bool key = number < s.num_queries + s.num_keys;
  head.kind = key ? Head::kKey : Head::kValue;
  head.row = token * s.num_keys + number - s.num_queries - (key ? 0 : s.num_keys);
  return head;
}
ASHLAR_DEVICE Elements tensor_of(const Head& head, Elements q, Elements k, Elements v) {
  return head.kind == Head::kQuery ? q : head.kind == Head::kKey ? k : v;
}
ASHLAR_DEVICE const float* norm_of(const Heads& s, const Head& head) {
  return head.kind == Head::kQuery ? s.q_norm : head.kind == Head::kKey ? s.k_norm : nullptr;
}

ASHLAR_DEVICE void normalize(const HeadsForward& x, const Head& head, const float* w,
                             HeadElements& h) {
  const Heads& s = x.heads;
  float squares = 0;
#pragma unroll
  for (int slot = 0; slot < kHeadSlots; ++slot) squares = fma(h.at[slot], h.at[slot], squares);
  const float mean = div(lane_sum(squares), float(s.head_dim));
  const float rstd = div(1.0f, sqrt(add(mean, x.eps)));
  if (thread_index() % kLanes == 0)
    (head.kind == Head::kKey ? x.rstd_k : x.rstd_q)[head.row] = rstd;
  for_elements(s, [&](int slot, int i) {
    h.at[slot] = mul(add(s.weight_offset, w[i]), mul(h.at[slot], rstd));
  });
}

ASHLAR_KERNEL(kHeadThreads) heads_forward_kernel(HeadsForward x) {
  const Heads& s = x.heads;
  const int64_t number = int64_t(block_index()) * kHeadGroups + thread_index() / kLanes;
  const int64_t per_token = heads_of_token(s), token = number / per_token;
  if (token >= s.num_tokens) return;
  const Head head = head_of(s, token, number - token * per_token);
  HeadElements h = load_head(s, s.qkv, head.in_qkv);
  if (const float* w = norm_of(s, head)) normalize(x, head, w, h);
  if (head.kind != Head::kValue) rotate(s, h, token, 1.0f);
  store_head(s, h, tensor_of(head, x.qhat, x.khat, x.v), head.row * s.head_dim);
}

// Passes g, the gradient of a normed head, on to the head, and adds to that of the weights.
ASHLAR_DEVICE void normalize_back(const HeadsBackward& x, const Head& head, const float* w,
                                  HeadElements& g, HeadElements& dw) {
  const Heads& s = x.heads;
  const float rstd = (head.kind == Head::kKey ? x.rstd_k : x.rstd_q)[head.row];
  HeadElements h = load_head(s, s.qkv, head.in_qkv);
  float dot = 0;
  for_elements(s, [&](int slot, int i) {
    h.at[slot] = mul(h.at[slot], rstd);
    dw.at[slot] = fma(g.at[slot], h.at[slot], dw.at[slot]);
    g.at[slot] = mul(g.at[slot], add(s.weight_offset, w[i]));
    dot = fma(g.at[slot], h.at[slot], dot);
  });
  const float mean = div(lane_sum(dot), float(s.head_dim));
#pragma unroll
  for (int slot = 0; slot < kHeadSlots; ++slot)
    g.at[slot] = mul(rstd, fma(-h.at[slot], mean, g.at[slot]));
}

// Stores the block's sums of dq_norm and dk_norm: over its groups of lanes, in order.
ASHLAR_DEVICE void store_sums(const HeadsBackward& x, const HeadElements& dq,
                              const HeadElements& dk) {
  const Heads& s = x.heads;
  const int64_t blocks = (s.num_tokens + kTokensOfHeadPartial - 1) / kTokensOfHeadPartial;
  auto* room = (float*)shared_memory();  // [kHeadGroups, 2, head_dim]
  float* own = room + thread_index() / kLanes * 2 * s.head_dim;
  for_elements(s, [&](int slot, int i) {
    own[i] = dq.at[slot];
    own[s.head_dim + i] = dk.at[slot];
  });
  sync_block();
  for (int64_t i = thread_index(); i < 2 * s.head_dim; i += kHeadThreads) {
    float sum = 0;
    for (int group = 0; group < kHeadGroups; ++group)
      sum = add(sum, room[group * 2 * s.head_dim + i]);
    const int64_t key = i >= s.head_dim;
    x.partials[(key * blocks + block_index()) * s.head_dim + i - key * s.head_dim] = sum;
  }
}

ASHLAR_KERNEL(kHeadThreads) heads_backward_kernel(HeadsBackward x) {
  const Heads& s = x.heads;
  const int64_t first = int64_t(block_index()) * kTokensOfHeadPartial;
  const int64_t left = s.num_tokens - first;
  const int tokens = left < kTokensOfHeadPartial ? int(left) : kTokensOfHeadPartial;
  const int per_token = int(heads_of_token(s));
  HeadElements dq, dk;
  for (int i = thread_index() / kLanes; i < tokens * per_token; i += kHeadGroups) {
    const Head head = head_of(s, first + i / per_token, i % per_token);
    HeadElements g = load_head(s, tensor_of(head, x.dqhat, x.dkhat, x.dv), head.row * s.head_dim);
    if (head.kind != Head::kValue) rotate(s, g, head.token, -1.0f);
    if (head.kind == Head::kQuery && s.q_norm) normalize_back(x, head, s.q_norm, g, dq);
    if (head.kind == Head::kKey && s.k_norm) normalize_back(x, head, s.k_norm, g, dk);
    store_head(s, g, x.dqkv, head.in_qkv);
  }
  if (x.partials) store_sums(x, dq, dk);
}

}  // namespace

std::string launch(const HeadsForward& x) {
  const Heads& s = x.heads;
  const int64_t heads = s.num_tokens * (s.num_queries + 2 * s.num_keys);
  return run(heads_forward_kernel, {(heads + kHeadGroups - 1) / kHeadGroups, kHeadThreads, 0}, x);
}

std::string launch(const HeadsBackward& x) {
  const Heads& s = x.heads;
  const int64_t blocks = (s.num_tokens + kTokensOfHeadPartial - 1) / kTokensOfHeadPartial;
  const int64_t room = x.partials ? kHeadGroups * 2 * s.head_dim * int64_t(sizeof(float)) : 0;
  return run(heads_backward_kernel, {blocks, kHeadThreads, int(room)}, x);
}

}  // namespace ashlar::device
