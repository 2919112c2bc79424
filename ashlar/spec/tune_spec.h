// The part of a model that a run trains: all of it, all but what is frozen, or low-rank adapters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar {

// Low-rank adapters of linear layers: y = x W^T + scale (x A^T) B^T, where W is frozen.
//
// Source   LoRA: arXiv:2106.09685; rsLoRA: arXiv:2312.03732.  Words are those of PEFT.
struct LoraSpec {
  int64_t rank = 0;  // 0: no adapters
  double alpha = 16.0;
  bool rslora = false;  // divides alpha by the root of the rank instead of the rank
  // The layers that get adapters: groups (attention, mlp, experts) and names of layers (q_proj,
  // experts.down_proj).
  std::vector<std::string> targets{"attention", "mlp"};
  // Patterns of tensors that are trained whole beside the adapters.
  std::vector<std::string> modules_to_save{};

  double scale() const;
  friend bool operator==(const LoraSpec&, const LoraSpec&) = default;
};

struct TuneSpec {
  std::vector<std::string> freeze{};  // patterns of tensors that are not trained
  LoraSpec lora{};

  bool has_adapters() const { return lora.rank > 0; }
  bool trains_all() const { return freeze.empty() && !has_adapters(); }
  // Whether a tensor of the model, which is no adapter, stays as it is.
  bool freezes(std::string_view tensor) const;
  // Whether an adapter belongs to the linear layer of this weight
  // ("model.layers.3.self_attn.q_proj.weight") or to this stack of experts
  // ("model.layers.3.mlp.experts.down_proj").
  bool adapts(std::string_view weight) const;
  friend bool operator==(const TuneSpec&, const TuneSpec&) = default;
};

// Whether the pattern stands for the whole name; * stands for any characters, also none.
bool matches_pattern(std::string_view pattern, std::string_view name);

// The names of the two tensors of an adapter, as PEFT has them: ".weight", which a stack lacks,
// becomes ".lora_A.weight".
std::string lora_a_name(std::string_view weight);
std::string lora_b_name(std::string_view weight);

}  // namespace ashlar
