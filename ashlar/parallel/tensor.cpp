#include "ashlar/parallel/tensor.h"

#include <algorithm>
#include <array>

#include "ashlar/core/error.h"

namespace ashlar::parallel {
namespace {

struct Slice {
  int64_t begin, end;
  int64_t length() const { return end - begin; }
  Slice shifted(int64_t by) const { return {begin + by, end + by}; }
  Slice within(Slice other) const {
    const int64_t from = std::clamp(begin, other.begin, other.end);
    return {from, std::clamp(end, from, other.end)};
  }
};

Slice even(int64_t count, TensorPlace at) {
  ASHLAR_ASSERT(count % at.size == 0);
  return {count / at.size * at.rank, count / at.size * (at.rank + 1)};
}

// The channels of a rank's heads, and who else has those of its keys.
struct Heads {
  Slice q, k;  // k: of keys and of the flat values
  int copy, num_copies;
  Heads(const ModelSpec& whole, TensorPlace at) {
    const int64_t K = whole.num_key_value_heads, D = whole.head_dim;
    ASHLAR_ASSERT(K % at.size == 0 || at.size % K == 0);
    const Slice heads = even(whole.num_attention_heads, at);
    q = {heads.begin * D, heads.end * D};
    num_copies = int(std::max<int64_t>(1, at.size / K));
    copy = at.rank % num_copies;
    const int64_t width = std::max<int64_t>(1, K / at.size) * D;
    k = {at.rank / num_copies * width, (at.rank / num_copies + 1) * width};
  }
};

Box cut(const Shape& shape, int dim, Slice range) {
  Box box = Box::whole(shape);
  box.offset[dim] = range.begin;
  box.length[dim] = range.length();
  return box;
}

using Placements = std::vector<Placement>;

// A range of one dim, the same on `num_copies` ranks.
Placements along(Shape global, int dim, int64_t extent, Slice range, int copy, int num_copies) {
  global[dim] = extent;
  return {{global, {cut(global, dim, range)}, copy, num_copies}};
}

// Channels of queries, then of keys.
Placements convolution(const ModelSpec& whole, const Heads& heads, Shape global) {
  global[0] = whole.conv_channels();
  const Box q = cut(global, 0, heads.q), k = cut(global, 0, heads.k.shifted(whole.q_dim()));
  if (heads.num_copies == 1) return {{global, {q, k}}};
  return {{global, {q}}, {global, {k}, heads.copy, heads.num_copies}};
}

// Of each expert its rows of gate, then of up.
Placements gate_up(const ModelSpec& whole, TensorPlace at, Shape global) {
  const int64_t F = whole.moe_intermediate_size;
  const Slice rows = even(F, at);
  global[1] = 2 * F;
  std::vector<Box> boxes;
  for (int64_t e = 0; e < global[0]; ++e)
    for (const Slice range : {rows, rows.shifted(F)}) {
      Box& box = boxes.emplace_back(cut(global, 1, range));
      box.offset[0] = e;
      box.length[0] = 1;
    }
  return {{global, std::move(boxes)}};
}

Placements place(const ModelSpec& whole, TensorPlace at, std::string_view name,
                 const Shape& local) {
  const Heads heads(whole, at);
  const auto is = [&](std::string_view tail) { return name.ends_with(tail); };
  const auto keys = [&](int64_t extent, Slice range) {
    return along(local, 0, extent, range, heads.copy, heads.num_copies);
  };
  const int64_t half = whole.kv_dim() / 2, D = whole.head_dim;
  if (is("qkv_proj.q_proj.weight")) return along(local, 0, whole.q_dim(), heads.q, 0, 1);
  if (is("qkv_proj.k_proj.weight")) return keys(whole.kv_dim(), heads.k);
  if (is("qkv_proj.v_proj_current.weight")) return keys(half, heads.k.within({0, half}));
  if (is("qkv_proj.v_proj_delayed.weight"))
    return keys(half, heads.k.within({half, whole.kv_dim()}).shifted(-half));
  if (name.find("qkv_proj.conv_qk_") != name.npos) return convolution(whole, heads, local);
  if (is("qk_norm.temp"))
    return keys(whole.num_key_value_heads, {heads.k.begin / D, heads.k.end / D});
  if (is("self_attn.o_proj.weight")) return along(local, 1, whole.q_dim(), heads.q, 0, 1);
  if (is("experts.gate_up_proj")) return gate_up(whole, at, local);
  if (is("experts.down_proj")) {
    const int64_t F = whole.moe_intermediate_size;
    return along(local, 2, F, even(F, at), 0, 1);
  }
  return {{local, {Box::whole(local)}, at.rank, at.size}};
}

}  // namespace

ModelSpec local_spec(const ModelSpec& whole, TensorPlace at) {
  ASHLAR_ASSERT(0 <= at.rank && at.rank < at.size);
  if (at.size == 1) return whole;
  const Heads heads(whole, at);
  const Slice delayed = heads.k.within({whole.kv_dim() / 2, whole.kv_dim()});
  ModelSpec local = whole;
  local.num_attention_heads = heads.q.length() / whole.head_dim;
  local.num_key_value_heads = heads.k.length() / whole.head_dim;
  local.moe_intermediate_size = even(whole.moe_intermediate_size, at).length();
  local.share = {.group = whole.groups(), .delayed_values = delayed.length()};
  if (at.rank > 0) local.skip_output = SkipOutput::kZero;
  return local;
}

int num_key_sharers(const ModelSpec& local) {
  return local.share.group > 0 ? int(local.share.group / local.groups()) : 1;
}

std::vector<Placement> placements(const ModelSpec& whole, TensorPlace at, std::string_view name,
                                  const Shape& local) {
  if (at.size == 1) return {{local, {Box::whole(local)}}};
  Placements list = place(whole, at, name, local);
  int64_t numel = 0;
  for (const Placement& p : list) numel += p.numel();
  ASHLAR_ASSERT(numel == local.numel());
  return list;
}

bool partial_over_tp(std::string_view name) {
  constexpr std::array<std::string_view, 7> parts = {
      "embed_tokens.",           "input_hidden_states_",      "model.norm.",
      "input_layernorm.",        "post_attention_layernorm.", "post_attention_residual_scale.",
      "post_mlp_residual_scale."};
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return name.find(part) != name.npos; });
}

}  // namespace ashlar::parallel
