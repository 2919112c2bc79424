// Parameters made by hand, their values as doubles, and restoring a state from its pieces.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/rng.h"
#include "ashlar/kernels/context.h"
#include "ashlar/tensor/logical.h"
#include "tests/support/values.h"

namespace ashlar::optim {

using testing_support::get;
using testing_support::set;
using testing_support::values_of;

inline std::string bits_of(const Tensor& t) {
  return {reinterpret_cast<const char*>(t.data), size_t(t.bytes())};
}

struct Machine {
  explicit Machine(int num_threads = 2, Device device = Device::kCpu)
      : allocator(device), threads(num_threads) {}

  Tensor zeros(DType dtype, const Shape& shape) {
    return tensors.emplace_back(make_tensor(allocator, dtype, shape, Tag::kWeights)).tensor;
  }
  // A parameter with a gradient, both uniform in +-1: functions of its name.
  Parameter parameter(const std::string& name, DType dtype, const Shape& shape, OptimizerKind kind,
                      bool decay, int64_t num_matrices = 1, int64_t halves = 1) {
    Parameter p{.logical = {name, dtype, shape, Role::kParameter},
                .boxes = {Box::whole(shape)},
                .begin = 0,
                .end = shape.numel(),
                .value = zeros(dtype, shape),
                .gradient = zeros(dtype, shape),
                .kind = kind,
                .decay = decay,
                .num_matrices = num_matrices,
                .halves = halves};
    fill(p.value, name, 0);
    fill(p.gradient, name, 1);
    return p;
  }
  static void fill(const Tensor& t, const std::string& name, uint64_t seed) {
    const Rng rng(seed, name);
    for (int64_t i = 0; i < t.numel(); ++i) set(t, i, 2.0 * rng.uniform(uint64_t(i)) - 1.0);
  }

  Allocator allocator;
  Threads threads;
  Arena workspace{allocator, 16 << 20, Tag::kWorkspace};
  kernels::Context ctx{.device = allocator.device(), .threads = &threads, .workspace = &workspace};
  std::list<OwnedTensor> tensors;
};

// Every piece of `to` takes the bytes of the piece of its name, as from a checkpoint.
inline void restore(const std::vector<Piece>& from, const std::vector<Piece>& to) {
  ASSERT_EQ(from.size(), to.size());
  for (const Piece& piece : to) {
    bool found = false;
    for (const Piece& other : from) {
      if (other.logical.name != piece.logical.name) continue;
      ASSERT_FALSE(found) << piece.logical.name << " is there twice";
      ASSERT_EQ(other.data.bytes(), piece.data.bytes());
      std::memcpy(piece.data.data, other.data.data, size_t(piece.data.bytes()));
      found = true;
    }
    ASSERT_TRUE(found) << piece.logical.name;
  }
}

}  // namespace ashlar::optim
