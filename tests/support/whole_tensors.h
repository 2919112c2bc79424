// Tensors of a model in memory.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "ashlar/tensor/logical.h"

namespace ashlar::testing_support {

// Whole tensors with memory of their own.
struct Values {
  std::deque<std::vector<std::byte>> memory;
  std::vector<Piece> pieces;

  void add(const LogicalTensor& logical, const Box& box, DType dtype) {
    auto& bytes = memory.emplace_back(size_t(box.length.numel() * size_of(dtype)));
    pieces.push_back({logical, box, Tensor{bytes.data(), dtype, Device::kCpu, box.length}});
  }
  const std::vector<std::byte>& of(const std::string& name) const {
    for (size_t n = 0; n < pieces.size(); ++n)
      if (pieces[n].logical.name == name) return memory[n];
    std::abort();
  }
};

}  // namespace ashlar::testing_support
