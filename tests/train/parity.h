// A layout of ranks gives what one rank gives, and takes what its dry run says: the table of
// layouts, and the check of one of them on ranks that exist already, whatever the engine.
#pragma once

#include <string>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

struct ParityCase {
  std::string name;
  int num_ranks = 1;
  std::vector<std::string> overrides;  // of the layout
  std::vector<std::string> model;      // of what is trained
  bool fast = false;                   // runs in the fast tests
};
const std::vector<ParityCase>& parity_cases();

// The tiny recipe with the keys of the case; layout: with those of its layout too.
Recipe parity_recipe(const ParityCase&, const std::string& precision, bool layout);

// Two steps in fp64 on ranks.size() ranks and on one: what differs on this rank by more than 1e-10
// relative to the largest value of its tensor (loss, gradient norm, gradients, weights); "" if
// nothing does.  Also how the traffic of the second step differs from the dry run; and its memory
// and workspace, where an allocator has `counted` all that this rank alone took.
std::string check_parity(const ParityCase&, comm::Group& ranks, Allocator* counted = nullptr);
// On one rank without the layout.
std::vector<double> train_losses(const ParityCase&, const std::string& precision, int64_t steps,
                                 comm::Group& ranks);
// Largest difference of a loss over 50 steps in fp32; sums in another order are a cause of up to
// kLossTolerance.
inline constexpr double kLossTolerance = 1e-4;
double largest_loss_difference(const ParityCase&, comm::Group& ranks);

}  // namespace ashlar::train
