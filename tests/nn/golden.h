// The tiny model of tests/data/zaya1_tiny.json: its shape, its weights by formula, and one forward
// and backward pass over any segments and ids.
#pragma once

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ashlar/core/rng.h"
#include "ashlar/nn/loss.h"
#include "ashlar/nn/model.h"

namespace ashlar::nn {

inline nlohmann::json read_json(const std::string& name) {
  std::ifstream in(std::string(ASHLAR_TEST_DATA) + "/" + name);
  return nlohmann::json::parse(in);
}

inline ModelSpec tiny_spec() {
  ModelSpec s;
  s.vocab_size = 11, s.hidden_size = 8, s.num_hidden_layers = 3, s.num_attention_heads = 4;
  s.num_key_value_heads = 2, s.head_dim = 4, s.num_experts = 3, s.moe_intermediate_size = 5;
  s.router_hidden_size = 6, s.rope_theta = 1e4, s.rope_theta_sliding = 100, s.sliding_window = 3;
  s.layer_types = {LayerType::kHybrid, LayerType::kHybridSliding, LayerType::kHybrid};
  s.qk_norm_eps = 0.0;
  return s;
}

inline bool ends_with(const std::string& name, const char* tail) {
  return name.ends_with(tail);
}

// Element i of tensor `name`, as the golden file's generator makes it.
inline double golden_weight(const std::string& name, int64_t i, int64_t numel) {
  const double u = double(splitmix64(fnv1a64(name) + uint64_t(i)) >> 40) / 8388608.0 - 1.0;
  if (ends_with(name, "balancing_biases")) return i == numel - 1 ? -1.0 : 0.05 * u;
  if (ends_with(name, "_scale") || name.find("norm.weight") != std::string::npos ||
      name.find("layernorm") != std::string::npos)
    return 1.0 + 0.1 * u;
  if (ends_with(name, "temp")) return 1.5 + 0.5 * u;
  return (ends_with(name, "bias") ? 0.1 : 0.6) * u;
}

// One model on one thread pool, with room for `num_tokens`.
struct Harness {
  Harness(const ModelSpec& spec, DType compute, int64_t num_tokens, Keep keep = Keep::kAll,
          int64_t num_halos = 8, int num_threads = 2, bool reference = false)
      : threads(num_threads),
        workspace(allocator, 64 << 20, Tag::kWorkspace),
        ctx{.threads = &threads, .workspace = &workspace, .reference = reference},
        model(ctx, allocator, spec, compute, 64, true),
        saved_arena(arena_for(
            allocator, Tag::kSaved,
            [&](Arena& a) { Saved::make(a, spec, model.types(), num_tokens, num_halos, keep); })),
        saved(Saved::make(saved_arena, spec, model.types(), num_tokens, num_halos, keep)),
        ids(make_tensor(allocator, DType::kI32, {num_tokens}, Tag::kInput)),
        targets(make_tensor(allocator, DType::kI32, {num_tokens}, Tag::kInput)),
        loss(make_tensor(allocator, model.types().stream, {num_tokens}, Tag::kInput)),
        dfinal(make_tensor(allocator, saved.final_TH.dtype, saved.final_TH.shape, Tag::kWorkspace)),
        sequence(kernels::Sequence::rows(1, num_tokens)) {}

  void fill_golden() {
    model.weights().for_each(model.spec(), [&](const ParameterInfo& info, const Tensor& t) {
      for (int64_t i = 0; i < t.numel(); ++i) set(t, i, golden_weight(info.name, i, t.numel()));
    });
    model.pack(ctx);
  }
  static void set(const Tensor& t, int64_t i, double value) {
    t.dtype == DType::kF64 ? void(t.as<double>()[i] = value)
                           : void(t.as<float>()[i] = float(value));
  }
  static double get(const Tensor& t, int64_t i) {
    if (t.dtype == DType::kBF16) return t.as<bf16>()[i];
    return t.dtype == DType::kF64 ? t.as<double>()[i] : double(t.as<float>()[i]);
  }
  void tokens(const std::vector<int32_t>& in, const std::vector<int32_t>& out) {
    std::memcpy(ids.tensor.data, in.data(), in.size() * 4);
    std::memcpy(targets.tensor.data, out.data(), out.size() * 4);
  }
  ModelCall call() { return model.call(exchange, sequence, ids.tensor); }
  double run_forward() {
    forward(ctx, call(), saved);
    head_loss(ctx, model, saved.final_TH, targets.tensor, loss.tensor);
    return mean_loss();
  }
  double mean_loss() const {
    double sum = 0.0;
    int64_t count = 0;
    for (int64_t t = 0; t < loss.tensor.numel(); ++t)
      if (targets.tensor.as<int32_t>()[t] >= 0) sum += get(loss.tensor, t), ++count;
    return sum / double(count);
  }
  double run_backward(double scale) {
    model.gradients().for_each(model.spec(),
                               [](const ParameterInfo&, const Tensor& t) { fill_zero(t); });
    forward(ctx, call(), saved);
    head_loss_backward(ctx, model, saved.final_TH, targets.tensor, scale, loss.tensor,
                       dfinal.tensor, model.gradients().embed);
    backward(ctx, call(), saved, dfinal.tensor, model.gradients());
    return mean_loss();
  }

  Allocator allocator{Device::kCpu};
  Threads threads;
  Arena workspace;
  kernels::Context ctx;
  Model model;
  Arena saved_arena;
  Saved saved;
  OwnedTensor ids, targets, loss, dfinal;
  kernels::Sequence sequence;
  LocalExchange exchange;
};

}  // namespace ashlar::nn
