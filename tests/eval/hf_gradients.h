// Gradients by the names that transformers has for tensors.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include "ashlar/models/hf/names.h"
#include "ashlar/nn/weights.h"
#include "ashlar/spec/model_keys.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::eval {

// A difference, in parts of the number of transformers.
inline double relative(double found, double wanted) {
  return std::abs(found - wanted) / std::abs(wanted);
}

// Sums of squares; a tensor of transformers is one native tensor or has rows of several.  Experts
// are stacked, as it holds them in memory.
inline std::map<std::string, double> squares_by_name(
    const ModelSpec& spec, const parallel::testing_support::Whole& gradients) {
  models::HfNames names = models::names_of(spec);
  names.experts = nullptr;
  const std::vector<LogicalTensor> natives = nn::logical_tensors(spec);
  std::map<std::string, double> sums;
  for (const auto& tensor :
       models::file_tensors(natives, spec.blocks, models::HfLayout::kNative, names))
    for (const models::FileRows& rows : tensor.rows)
      if (natives[rows.native].role == Role::kParameter)
        for (const double g : gradients.at(natives[rows.native].name)) sums[tensor.name] += g * g;
  return sums;
}

}  // namespace ashlar::eval
