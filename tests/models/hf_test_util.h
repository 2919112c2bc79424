// Models with random or given values, for the Hugging Face tests.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/models/hf/model.h"
#include "ashlar/nn/weights.h"
#include "ashlar/spec/model_keys.h"
#include "tests/support/whole_tensors.h"

namespace ashlar::models {

using testing_support::Values;

inline std::string test_data(const std::string& name) {
  return std::string(ASHLAR_FIXTURES) + "/" + name;
}

inline Values read_all(const HfModel& model, DType dtype) {
  Values values;
  for (const LogicalTensor& logical : model.tensors()) {
    values.add(logical, Box::whole(logical.global_shape), dtype);
    model.read(values.pieces.back());
  }
  return values;
}

// Normal values, rounded to `dtype`.
inline Values random_values(const ModelSpec& spec, DType dtype, uint64_t seed = 1) {
  Values values;
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal(0.0, 0.5);
  for (const LogicalTensor& logical : nn::logical_tensors(spec, dtype)) {
    values.add(logical, Box::whole(logical.global_shape), dtype);
    const Tensor& data = values.pieces.back().data;
    for (int64_t i = 0; i < data.numel(); ++i) {
      if (dtype == DType::kF64) data.as<double>()[i] = normal(rng);
      if (dtype == DType::kF32) data.as<float>()[i] = float(normal(rng));
      if (dtype == DType::kBF16) data.as<bf16>()[i] = bf16(float(normal(rng)));
    }
  }
  return values;
}

// Sizes that all differ, three blocks, one of them sliding.
inline Values random_values(const ModelKeys& spec, DType dtype, uint64_t seed = 1) {
  return random_values(model_of(spec), dtype, seed);
}

inline ModelKeys odd_spec() {
  ModelKeys spec;
  spec.vocab_size = 11;
  spec.hidden_size = 8;
  spec.num_hidden_layers = 3;
  spec.num_attention_heads = 4;
  spec.num_key_value_heads = 2;
  spec.head_dim = 4;
  spec.num_experts = 3;
  spec.moe_intermediate_size = 5;
  spec.router_hidden_size = 6;
  spec.rope_theta_sliding = 100;
  spec.sliding_window = 3;
  spec.layer_types = {LayerType::kHybrid, LayerType::kHybridSliding, LayerType::kHybrid};
  return spec;
}

}  // namespace ashlar::models
