// Tensors that files of any family may hold beside a model's parameters, because older programs
// saved what they compute by themselves; and names with the prefix of a wrapper.
//
// Source   docs/hugging-face.md has the list.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ashlar/models/hf/files.h"

namespace ashlar::models {

// Whether a tensor of this name holds no parameters: frequencies and tables of RoPE, causal masks,
// numbers of positions.
bool is_stray_name(std::string_view name);
// The same by name and shape, which tells a mask from a bias.
bool is_stray(const checkpoint::TensorEntry& entry);
// Removes these tensors from the list; returns their names.
std::vector<std::string> remove_strays(HfFiles& files);

// kData, naming such a tensor, where names do not begin with "model." but with the prefix of a
// wrapper ("module.", "_orig_mod.", ...), or with none.
void require_known_prefix(const HfFiles& files, const std::string& directory,
                          const std::string& family);

}  // namespace ashlar::models
