// qk.h: 32 lanes have a key head of a token, with the queries and the values that belong to it.
// ashlar/kernels/cpu/qk.cpp explains the gradients.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/head_lanes.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

constexpr int kQkThreads = 128, kQkGroups = kQkThreads / kLanes;

// Key head j of a token.
struct KeyGroup {
  int64_t token, key;
};
ASHLAR_DEVICE int64_t queries_of_key(const Qk& s) {
  return s.num_queries / s.num_keys;
}
ASHLAR_DEVICE int64_t channels_of(const Qk& s) {
  return (s.num_queries + s.num_keys) * s.head_dim;
}
// The first element of a token in qkv.
ASHLAR_DEVICE int64_t row_of_qkv(const Qk& s, int64_t token) {
  return token * (channels_of(s) + s.num_keys * s.head_dim);
}
// Number h of a token's heads, queries and then keys, in qkv.
ASHLAR_DEVICE HeadElements load_z(const Qk& s, int64_t token, int64_t head) {
  return load_head(s, s.qkv, row_of_qkv(s, token) + head * s.head_dim);
}
ASHLAR_DEVICE void add_to(HeadElements& sum, const HeadElements& more) {
#pragma unroll
  for (int i = 0; i < kHeadSlots; ++i) sum.at[i] = add(sum.at[i], more.at[i]);
}

// Sums over the queries of a key: of all ranks where they are given, else of those that are here.
ASHLAR_DEVICE HeadElements load_sum(const Qk& s, const float* sums, const KeyGroup& group) {
  const Elements from{(void*)sums, ElementType::kF32};
  return load_head(s, from, (group.token * s.num_keys + group.key) * s.head_dim);
}
ASHLAR_DEVICE HeadElements query_sum(const Qk& s, const KeyGroup& group) {
  if (s.q_sum) return load_sum(s, s.q_sum, group);
  HeadElements sum;
  const int64_t queries = queries_of_key(s), first = group.key * queries;
  for (int64_t h = first; h < first + queries; ++h) add_to(sum, load_z(s, group.token, h));
  return sum;
}

// A head before its norm: y + b1 + (z + share others) / 2.
ASHLAR_DEVICE HeadElements mixed(const Qk& s, int64_t token, int64_t head, const HeadElements& z,
                                 const HeadElements& others, float share) {
  const int64_t channel = head * s.head_dim, at = token * channels_of(s) + channel;
  HeadElements x;
  for_elements(s, [&](int slot, int i) {
    const float conv = add(load_element(s.y, at + i), s.b1[channel + i]);
    x.at[slot] = fma(0.5f, fma(share, others.at[slot], z.at[slot]), conv);
  });
  return x;
}

ASHLAR_DEVICE float root_of_head(const Qk& s) {
  return sqrt(float(s.head_dim));
}
ASHLAR_DEVICE float head_sum(const HeadElements& a, const HeadElements& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeadSlots; ++i) sum = fma(a.at[i], b.at[i], sum);
  return lane_sum(sum);
}

// Stores the hat of a head: number `row` of those of `hat`.
ASHLAR_DEVICE void store_hat(const QkForward& x, int64_t token, HeadElements& h, float tau,
                             const Elements& hat, float* norms, int64_t row) {
  const Qk& s = x.qk;
  const float norm = sqrt(add(head_sum(h, h), x.eps));
  if (thread_index() % kLanes == 0) norms[row] = norm;
  const float scale = mul(tau, div(root_of_head(s), norm));
#pragma unroll
  for (int i = 0; i < kHeadSlots; ++i) h.at[i] = mul(scale, h.at[i]);
  rotate(s, h, token, 1.0f);
  store_head(s, h, hat, row * s.head_dim);
}

// The values of a key head: the last num_delayed columns of a token's values come from the token
// before.
ASHLAR_DEVICE void store_values(const QkForward& x, const KeyGroup& group) {
  const Qk& s = x.qk;
  const int64_t width = s.num_keys * s.head_dim, current = width - s.num_delayed;
  const int64_t from = row_of_qkv(s, group.token) + channels_of(s);
  const int64_t before = from - channels_of(s) - width;
  const int32_t link = s.links[group.token];
  for (int64_t i = thread_index() % kLanes; i < s.head_dim; i += kLanes) {
    const int64_t column = group.key * s.head_dim + i;
    float v = 0;
    if (column < current)
      v = load_element(s.qkv, from + column);
    else if (link == kRowBefore)
      v = load_element(s.qkv, before + column);
    else if (link >= 0)
      v = x.halo_vd[link / 2 * s.num_delayed + column - current];
    store_element(v, x.v, group.token * width + column);
  }
}

ASHLAR_KERNEL(kQkThreads) qk_forward_kernel(QkForward x) {
  const Qk& s = x.qk;
  const int64_t number = int64_t(block_index()) * kQkGroups + thread_index() / kLanes;
  const int64_t token = number / s.num_keys;
  if (token >= s.num_tokens) return;
  const KeyGroup group{token, number - token * s.num_keys};
  const int64_t queries = queries_of_key(s), first = group.key * queries;
  const HeadElements key = load_z(s, token, s.num_queries + group.key);
  for (int64_t h = first; h < first + queries; ++h) {
    HeadElements query = mixed(s, token, h, load_z(s, token, h), key, 1.0f);
    store_hat(x, token, query, 1.0f, x.qhat, x.n_q, token * s.num_queries + h);
  }
  HeadElements mean =
      mixed(s, token, s.num_queries + group.key, key, query_sum(s, group), s.query_share);
  store_hat(x, token, mean, s.tau[group.key], x.khat, x.n_k, number);
  store_values(x, group);
}

// The gradient of a head before its norm, `h`, and <g, h> / n, where g is the gradient of its hat,
// turned back.
struct HeadGradient {
  HeadElements dx;
  float along;
};
ASHLAR_DEVICE HeadGradient head_gradient(const Qk& s, int64_t token, const HeadElements& h,
                                         float tau, const float* dhat, const float* norms,
                                         int64_t row) {
  HeadGradient g{.dx = load_head(s, Elements{(void*)dhat, ElementType::kF32}, row * s.head_dim),
                 .along = 0};
  rotate(s, g.dx, token, -1.0f);
  const float norm = norms[row];
  g.along = div(head_sum(g.dx, h), norm);
  const float scale = mul(tau, div(root_of_head(s), norm)), back = div(g.along, norm);
#pragma unroll
  for (int i = 0; i < kHeadSlots; ++i) g.dx.at[i] = mul(scale, fma(-h.at[i], back, g.dx.at[i]));
  return g;
}

// Stores dX of a head as dy and adds it to its sum over tokens, `db1`.
ASHLAR_DEVICE void store_dy(const QkBackward& x, int64_t token, int64_t head,
                            const HeadElements& dx, float* db1) {
  const Qk& s = x.qk;
  store_head(s, dx, x.dy, token * channels_of(s) + head * s.head_dim);
  for_elements(s, [&](int slot, int i) { db1[i] = add(db1[i], dx.at[slot]); });
}
// Stores dz of a head: half of its dX and `share` of what its partners in the mean have.
ASHLAR_DEVICE void store_dz(const QkBackward& x, int64_t token, int64_t head, HeadElements dx,
                            const HeadElements& others, float share) {
  const Qk& s = x.qk;
#pragma unroll
  for (int i = 0; i < kHeadSlots; ++i) dx.at[i] = fma(share, others.at[i], mul(0.5f, dx.at[i]));
  store_head(s, dx, x.dqkv, row_of_qkv(s, token) + head * s.head_dim);
}

// The next token has the delayed values of this one, and a segment's first token those of a halo.
ASHLAR_DEVICE void store_value_gradients(const QkBackward& x, const KeyGroup& group) {
  const Qk& s = x.qk;
  const int64_t width = s.num_keys * s.head_dim, current = width - s.num_delayed;
  const int64_t to = row_of_qkv(s, group.token) + channels_of(s), from = group.token * width;
  const int32_t link = s.links[group.token];
  const bool goes_on = group.token + 1 < s.num_tokens && s.links[group.token + 1] == kRowBefore;
  for (int64_t i = thread_index() % kLanes; i < s.head_dim; i += kLanes) {
    const int64_t column = group.key * s.head_dim + i;
    float dv = 0;
    if (column < current)
      dv = x.dv[from + column];
    else if (goes_on)
      dv = x.dv[from + width + column];
    store_element(dv, x.dqkv, to + column);
    if (column >= current && link >= 0)
      x.dhalo_vd[link / 2 * s.num_delayed + column - current] = x.dv[from + column];
  }
}

// Gradients of one key head of a token.  Adds to db1, rows of the key's queries and of the key
// itself; returns the token's share of dtau.
ASHLAR_DEVICE float store_gradients(const QkBackward& x, const KeyGroup& group, float* db1) {
  const Qk& s = x.qk;
  const int64_t token = group.token, queries = queries_of_key(s), first = group.key * queries;
  const int64_t key_head = s.num_queries + group.key;
  const HeadElements key = load_z(s, token, key_head);
  const HeadGradient dkey =
      head_gradient(s, token, mixed(s, token, key_head, key, query_sum(s, group), s.query_share),
                    s.tau[group.key], x.dkhat, x.n_k, token * s.num_keys + group.key);
  store_dy(x, token, key_head, dkey.dx, db1 + queries * s.head_dim);
  HeadElements sum;
  for (int64_t h = first; h < first + queries; ++h) {
    const HeadElements query = mixed(s, token, h, load_z(s, token, h), key, 1.0f);
    const HeadGradient dquery =
        head_gradient(s, token, query, 1.0f, x.dqhat, x.n_q, token * s.num_queries + h);
    store_dy(x, token, h, dquery.dx, db1 + (h - first) * s.head_dim);
    store_dz(x, token, h, dquery.dx, dkey.dx, mul(0.5f, s.query_share));
    add_to(sum, dquery.dx);
  }
  if (x.dq_sum) sum = load_sum(s, x.dq_sum, group);
  store_dz(x, token, key_head, dkey.dx, sum, 0.5f);
  store_value_gradients(x, group);
  return mul(root_of_head(s), dkey.along);
}

// Elements of a key's queries and of the key.
ASHLAR_BOTH int64_t group_width(const Qk& s) {
  return (s.num_queries / s.num_keys + 1) * s.head_dim;
}

// A block has a key head of kPartialRows tokens.  Each of its groups of lanes sums over some of the
// tokens, in a room of shared memory of its own: the group's db1, then its dtau.
ASHLAR_KERNEL(kQkThreads) qk_backward_kernel(QkBackward x) {
  const Qk& s = x.qk;
  const int64_t partial = block_index() / s.num_keys, key = block_index() - partial * s.num_keys;
  const int groups = block_size() / kLanes, lane = thread_index() % kLanes;
  const int width = int(group_width(s)), room_size = width + 1;
  auto* rooms = (float*)shared_memory();
  float* own = rooms + thread_index() / kLanes * room_size;
  for (int i = lane; i < width; i += kLanes) own[i] = 0;
  sync_lanes();
  const int64_t first = partial * kPartialRows;
  const int64_t end = first + kPartialRows < s.num_tokens ? first + kPartialRows : s.num_tokens;
  float dtau = 0;
  for (int64_t token = first + thread_index() / kLanes; token < end; token += groups)
    dtau = add(dtau, store_gradients(x, {token, key}, own));
  if (lane == 0) own[width] = dtau;
  sync_block();
  const int64_t queries_width = width - s.head_dim;
  for (int i = thread_index(); i < room_size; i += block_size()) {
    float sum = 0;
    for (int group = 0; group < groups; ++group) sum = add(sum, rooms[group * room_size + i]);
    const int64_t channel = i < queries_width
                                ? key * queries_width + i
                                : (s.num_queries + key) * s.head_dim + i - queries_width;
    if (i < width)
      x.db1_partials[partial * channels_of(s) + channel] = sum;
    else
      x.dtau_partials[partial * s.num_keys + key] = sum;
  }
}

}  // namespace

std::string launch(const QkForward& x) {
  const int64_t keys = x.qk.num_tokens * x.qk.num_keys;
  return run(qk_forward_kernel, {(keys + kQkGroups - 1) / kQkGroups, kQkThreads, 0}, x);
}

std::string launch(const QkBackward& x) {
  const Qk& s = x.qk;
  constexpr int64_t kSharedBytes = (kMaxGroupWidth + 1) * int64_t(sizeof(float));
  const int64_t room_bytes = (group_width(s) + 1) * int64_t(sizeof(float));
  const int64_t fitting = kSharedBytes / room_bytes;
  const int groups = fitting < kQkGroups ? int(fitting) : kQkGroups;
  const int64_t blocks = (s.num_tokens + kPartialRows - 1) / kPartialRows * s.num_keys;
  return run(qk_backward_kernel, {blocks, groups * kLanes, int(groups * room_bytes)}, x);
}

}  // namespace ashlar::device
