// Every distinct product of a recipe on its layouts, each timed alone, beside the peak of the
// registers and, if one is given, a peer library.
//
// The layouts are dry-run (train/dry_rank.h), rank by rank, so that no product is forgotten and
// none is timed twice.  Products of experts have as many rows as all of them receive together, in
// even parts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ashlar/bench/machine/part.h"
#include "ashlar/bench/one_product.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/kernel_call.h"

namespace ashlar::bench {

struct Layout {
  std::string keys;  // "parallel.tp=2 parallel.zero=1"; "": the recipe's own
  Recipe recipe;     // with them
};

// A product, or the Newton-Schulz iteration of matrices of one shape.
struct RecipeProduct {
  train::KernelCall call;
  std::optional<ProductSpec> product;  // nullopt: Newton-Schulz
  int64_t calls = 0;                   // in a step of all ranks, over the layouts
  std::vector<size_t> layouts;         // that have it
  // "linear_forward BF16 G 1 N 512 K 256", without the rows
  std::string subject() const;
};

// Products with the most flop come first.  `ranks` ranks share each layout; every rank of a small
// world runs, and of a large one those whose place in the mesh differs.
// Errors   kConfig: a layout that so many ranks cannot run.
std::vector<RecipeProduct> list_products(std::span<const Layout> layouts, DType compute, int ranks,
                                         Threads& threads);

struct RecipeProductOptions {
  std::vector<Layout> layouts;   // at least one
  std::optional<DType> compute;  // nullopt: the recipe's
  int world = 0;                 // ranks of the layouts; 0: those that measure
  std::string only;              // rows whose subject holds it
  std::string peer;              // path of a library of oneDNN, with one rank
  bool sweeps = true;            // product_sweeps.h afterwards
};
// The type of the products, on which all ranks agree; kConfig if it is fp64.
DType compute_of(const Rig& rig, const RecipeProductOptions& options);
Findings measure_recipe_products(const Rig& rig, const RecipeProductOptions& options);

}  // namespace ashlar::bench
