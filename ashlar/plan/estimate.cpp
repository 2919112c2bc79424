#include "ashlar/plan/estimate.h"

#include <fmt/format.h>

#include <chrono>

#include "ashlar/core/text.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/read_recipe.h"
#include "ashlar/train/training_flop.h"

namespace ashlar::plan {
namespace {

double flop_of(const machine::Profile& profile, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto* found = profile.find(key)) return 1e12 * found->value;
  return 0;
}

// A device multiplies bf16 whatever the processor that plans; on CPUs "auto" is this machine's.
bool is_bf16(Precision precision, bool on_devices) {
  if (precision == Precision::kAuto && on_devices) return true;
  return nn::resolve_precision(precision) == DType::kBF16;
}

Recipe recipe_of(FileSystem& files, const std::string& path, std::vector<std::string> overrides,
                 const std::string& layout) {
  for (const std::string& key : split(layout, ' '))
    if (!key.empty()) overrides.push_back(key);
  return train::read_recipe(files, path, overrides);
}

}  // namespace

Estimate estimate(FileSystem& files, const std::string& path, const MachineFile& machine,
                  const EstimateOptions& options) {
  std::vector<std::string> layouts = options.layouts;
  if (layouts.empty()) layouts.push_back("");
  Estimate estimate;
  estimate.num_ranks = options.num_ranks;
  std::vector<Recipe> recipes;
  for (const std::string& layout : layouts) {
    recipes.push_back(with_bucket_bytes(recipe_of(files, path, options.overrides, layout),
                                        options.num_ranks, machine, options.ranks_per_node));
    EstimatedLayout& row = estimate.layouts.emplace_back();
    row.keys = layout;
    row.parallel = resolve_parallel(recipes.back(), options.num_ranks);
  }
  const machine::Profile& profile = machine.profile;
  const bool on_devices = profile.find("device.peak_bf16") || profile.find("device.memory");
  estimate.recipe = recipes[0].name.empty() ? recipes[0].source : recipes[0].name;
  estimate.bf16 = is_bf16(recipes[0].train.precision, on_devices);
  const sizing::MachineRates rates(profile, machine.kernels, options.num_ranks, estimate.bf16,
                                   options.ranks_per_node);
  estimate.ranks_per_node = rates.ranks_per_node();
  estimate.device_memory = rates.device_memory();
  estimate.rests_on = rates.used();
  estimate.peak_flop = flop_of(profile, {estimate.bf16 ? "device.peak_bf16" : "device.peak_fp32"});
  estimate.sustained_flop =
      estimate.bf16 ? flop_of(profile, {"compute.sustained_bf16", "compute.achievable_bf16"})
                    : flop_of(profile, {"compute.sustained_fp32", "compute.achievable_fp32"});
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < recipes.size(); ++i) {
    EstimatedLayout& row = estimate.layouts[i];
    const sizing::StepShape shape = sizing::step_shape(recipes[i], row.parallel, estimate.bf16);
    row.time = sizing::step_time(shape, rates);
    row.memory = sizing::step_memory(shape);
    row.tokens = shape.tokens();
    row.training_flop = train::training_flop(recipes[i]);
    row.fits = estimate.device_memory <= 0 || row.memory.total <= estimate.device_memory;
  }
  estimate.elapsed_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return estimate;
}

}  // namespace ashlar::plan
