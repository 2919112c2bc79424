#include "ashlar/spec/tune_spec.h"

#include <algorithm>
#include <cmath>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

constexpr std::string_view kExperts = "experts";

// Without ".weight", which the stacks of experts lack.
std::string_view layer_of_weight(std::string_view weight) {
  if (weight.ends_with(kWeightSuffix)) weight.remove_suffix(kWeightSuffix.size());
  return weight;
}

std::string adapter_name(std::string_view weight, std::string_view matrix) {
  return std::string(layer_of_weight(weight)).append(matrix);
}

bool any_matches(const std::vector<std::string>& patterns, std::string_view name) {
  return std::ranges::any_of(
      patterns, [&](const std::string& pattern) { return matches_pattern(pattern, name); });
}

bool is_target(std::string_view target, std::string_view weight) {
  if (target == "attention") return weight.find(".self_attn.") != std::string_view::npos;
  const std::string_view layer = layer_of_weight(weight);
  if (weight.find(".experts.") != std::string_view::npos) {
    const bool names_experts = target.find(kExperts) != std::string_view::npos;
    if (target == kExperts || !names_experts) return target == kExperts;
  }
  const bool of_mlp = layer.find(".mlp.") != std::string_view::npos &&
                      layer.find(".mlp.gate.") == std::string_view::npos;
  if (target == "mlp")
    return of_mlp && (layer.ends_with(".gate_proj") || layer.ends_with(".up_proj") ||
                      layer.ends_with(".down_proj"));
  return layer == target || layer.ends_with("." + std::string(target));
}

}  // namespace

double LoraSpec::scale() const {
  return alpha / (rslora ? std::sqrt(double(rank)) : double(rank));
}

bool TuneSpec::freezes(std::string_view tensor) const {
  if (has_adapters()) return !any_matches(lora.modules_to_save, tensor);
  return any_matches(freeze, tensor);
}

bool TuneSpec::adapts(std::string_view weight) const {
  if (!has_adapters() || !freezes(weight)) return false;
  return std::ranges::any_of(lora.targets,
                             [&](const std::string& target) { return is_target(target, weight); });
}

bool matches_pattern(std::string_view pattern, std::string_view name) {
  // Compares from the left; after a mismatch the last * takes one character more.
  size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1, n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string lora_a_name(std::string_view weight) {
  return adapter_name(weight, ".lora_A.weight");
}

std::string lora_b_name(std::string_view weight) {
  return adapter_name(weight, ".lora_B.weight");
}

}  // namespace ashlar
