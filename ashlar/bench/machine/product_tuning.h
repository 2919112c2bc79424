// Chooses forms of products (kernels/product_forms.h) by their times: those that are faster than
// the rules of the kernels by a margin, in a second comparison.
#pragma once

#include <optional>
#include <vector>

#include "ashlar/bench/machine/recipe_products.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/kernels/product_forms.h"
#include "ashlar/machine/product_choices.h"

namespace ashlar::bench {

struct TunedForm {
  kernels::ProductForm form;  // the rules': nothing was faster
  // Medians of the second comparison; of the rules alone where the first left nothing to compare.
  double rule_us = 0, form_us = 0;
  bool wrong_bits = false;  // the fastest form computed something else: it is not taken
};

// Compares forms with the rules, one after the other in turns, so that a machine that changes its
// speed changes both.  A form is taken only if, measured once more, it wins three of four
// comparisons, and neither its median time over that of the rules nor the median of all ratios is
// above kTuningGain.  A table then costs at most what the noise of the second comparison hides.
//
// time_us(form): of one call, or the fastest of a few.  same_bits(form): as the rules'.
inline constexpr double kTuningGain = 0.97;
TunedForm choose_form(const kernels::ProductKey& key,
                      function_ref<double(const kernels::ProductForm&)> time_us,
                      function_ref<bool(const kernels::ProductForm&)> same_bits);

// Measures forms of every product of the recipe.  Adds a choice for each product that it tried,
// even where the rules won, so that an older entry of the product goes.  For one rank.
Findings tune_products(const Rig& rig, const RecipeProductOptions& options,
                       std::vector<machine::ProductChoice>& choices);

// Replaces older choices by newer ones of the same products, and drops choices of the rules.
std::vector<machine::ProductChoice> merged(std::vector<machine::ProductChoice> older,
                                           const std::vector<machine::ProductChoice>& newer);

}  // namespace ashlar::bench
