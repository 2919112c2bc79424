// A trainer on the CPU or on the GPU behind this program, with batches of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/comm/self/self.h"
#include "ashlar/models/tensor_reader.h"
#include "ashlar/tensor/host_bytes.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train::testing_support {

using Overrides = std::vector<std::string>;

inline std::string nano(const std::string& family) {
  return ASHLAR_FIXTURES "/../../recipes/" + family + "-nano.toml";
}

// The nano of a family, with two blocks, of odd sizes where there is a choice.
inline Recipe tiny(const std::string& family, const Overrides& of_family,
                   const Overrides& overrides) {
  Overrides all = {"model.vocab_size=331",      "model.hidden_size=64",
                   "model.num_hidden_layers=2", "model.num_attention_heads=4",
                   "model.head_dim=16",         "model.num_key_value_heads=2",
                   "data.sequence_length=45",   "train.micro_batch=2",
                   "train.global_batch=4",      "train.threads=1",
                   "train.steps=100",           "optim.warmup_steps=2"};
  all.insert(all.end(), of_family.begin(), of_family.end());
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe(nano(family), all);
}
inline Recipe tiny_llama(const Overrides& overrides = {}) {
  return tiny("llama", {"model.intermediate_size=88"}, overrides);
}
inline Recipe tiny_zaya1(const Overrides& overrides = {}) {
  return tiny(
      "zaya1",
      {"model.num_experts=5", "model.moe_intermediate_size=40", "model.router_hidden_size=24"},
      overrides);
}
// With a shared expert and the gate of attention's output.
inline Recipe tiny_moe(const Overrides& overrides = {}) {
  return tiny("moe",
              {"model.num_experts=5", "model.moe_intermediate_size=40",
               "model.shared_expert_intermediate_size=24", "model.shared_expert_gate=true"},
              overrides);
}

// Rows of ids with a pattern to learn; each row holds two documents.
struct Batch {
  Batch(const Recipe& recipe, uint32_t seed) {
    const int64_t rows = recipe.train.micro_batch, length = recipe.data.sequence_length;
    for (int64_t i = 0; i < rows * length; ++i) {
      seed = seed * 1664525u + 1013904223u;
      ids.push_back(int32_t((seed >> 8) % uint32_t(recipe.model.vocab_size / 4)));
    }
    targets = ids;
    std::rotate(targets.begin(), targets.begin() + 1, targets.end());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t cut = 1 + int64_t(seed % uint32_t(length - 1));
      targets[size_t(row * length + cut - 1)] = -1;
      segments.push_back({row * length, cut, 0, 2 * row});
      segments.push_back({row * length + cut, length - cut, 0, 2 * row + 1});
    }
  }
  MicroBatch view() const { return {ids, targets, segments}; }

  std::vector<int32_t> ids, targets;
  std::vector<Segment> segments;
};

inline std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> values(size_t(tensor.numel()));
  copy_to_host(tensor, 0, std::as_writable_bytes(std::span(values)));
  return values;
}
using Tensors = std::map<std::string, std::vector<float>>;

// Model and optimizer of a step, by name.
inline Tensors stored_state(FileSystem& files, const std::string& step) {
  const models::StoredTensors stored(checkpoint::StepReader(files, step));
  Tensors all;
  for (const models::StoredTensor& tensor : stored.tensors()) {
    if (tensor.component == checkpoint::Component::kLoader) continue;
    const Shape& shape = tensor.logical.global_shape;
    std::vector<float>& values = all[tensor.logical.name];
    values.resize(size_t(shape.numel()));
    const Tensor to{reinterpret_cast<std::byte*>(values.data()), DType::kF32, Device::kCpu, shape};
    const Piece piece{tensor.logical, Box::whole(shape), to};
    stored.read(std::span(&piece, 1));
  }
  return all;
}

enum class On { kCpu, kGpu };

class TestedTrainer {
 public:
  TestedTrainer(const Recipe& recipe, DType compute, On on)
      : recipe_(recipe),
        spec_(on == On::kGpu ? std::optional(kernels::gpu::find_gpu()) : std::nullopt),
        plan(plan_run(recipe, compute, 1, 0, 0, device())),
        memory_(spec_ ? std::make_unique<GpuMemory>(plan.memory.total.peak_bytes) : nullptr),
        host_(Device::kCpu),
        world_(host_),
        threads_(int(recipe.train.threads)),
        trainer_(recipe, compute, allocator(), threads_, world_.group(), plan.step_memory, nullptr,
                 nullptr, device()) {
    trainer_.initialize();
  }

  // Forward, backward and the numbers of a step, of batches that its number chooses.
  StepStats measure(int64_t step) {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < trainer_.model().micro_batches_per_step(); ++i)
      batches.emplace_back(recipe_, uint32_t(100 * step + i));
    std::vector<MicroBatch> views;
    for (const Batch& batch : batches) views.push_back(batch.view());
    return measure(step, views);
  }
  StepStats measure(int64_t step, std::span<const MicroBatch> batches) {
    trainer_.run(step, batches);
    trainer_.reduce();
    return trainer_.measure();
  }
  StepStats step(int64_t number) {
    const StepStats stats = measure(number);
    trainer_.apply(stats);
    return stats;
  }
  double evaluate() {
    const LossSum sum = trainer_.evaluate(Batch(recipe_, 7).view());
    return sum.sum / sum.count;
  }
  Tensors gradients() const {
    return tensors([](const Parameter& p) { return p.gradient; });
  }
  Tensors values() const {
    return tensors([](const Parameter& p) { return p.value; });
  }
  Allocator& allocator() { return memory_ ? memory_->device() : host_; }
  GpuMemory& gpu_memory() { return *memory_; }
  Trainer& trainer() { return trainer_; }

 private:
  template <typename Of>
  Tensors tensors(Of of) const {
    Tensors all;
    for (const Parameter& p : trainer_.model().parameters()) all[p.logical.name] = floats_of(of(p));
    return all;
  }
  ComputeDevice device() const {
    if (!spec_) return {};
    return ComputeDevice::gpu(*spec_, memory_ ? &memory_->stream() : nullptr);
  }

  const Recipe recipe_;
  const std::optional<DeviceSpec> spec_;

 public:
  const RunPlan plan;

 private:
  std::unique_ptr<GpuMemory> memory_;
  Allocator host_;
  comm::SelfWorld world_;
  Threads threads_;
  Trainer trainer_;
};

// The norm of the difference over that of `want`.
inline double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double squares = 0, whole = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += std::pow(double(got[i]) - double(want[i]), 2);
    whole += std::pow(double(want[i]), 2);
  }
  return std::sqrt(squares / std::max(whole, 1e-30));
}

inline void expect_near(const Tensors& got, const Tensors& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    ASSERT_EQ(got.at(name).size(), values.size()) << name;
    EXPECT_LE(distance(got.at(name), values), tolerance) << name;
  }
}

inline void expect_same_bits(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want)
    EXPECT_EQ(std::memcmp(got.at(name).data(), values.data(), values.size() * sizeof(float)), 0)
        << name;
}

}  // namespace ashlar::train::testing_support
