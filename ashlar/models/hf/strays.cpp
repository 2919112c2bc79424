#include "ashlar/models/hf/strays.h"

#include <algorithm>
#include <array>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/models/hf/names.h"

namespace ashlar::models {
namespace {

// The last two parts of "a.b.c.d": c and d.
struct LastParts {
  std::string_view module, name;
  explicit LastParts(std::string_view full) {
    const size_t dot = full.rfind('.');
    name = full.substr(dot == std::string_view::npos ? 0 : dot + 1);
    if (dot == std::string_view::npos) return;
    module = full.substr(0, dot);
    module = module.substr(module.rfind('.') + 1);  // npos + 1 is 0
  }
};

bool is_attention(std::string_view module) {
  return module == "self_attn" || module == "attn" || module == "attention";
}

bool is_of_rope(const LastParts& parts) {
  return parts.module == "rotary_emb" && (parts.name.ends_with("inv_freq") ||
                                          parts.name == "cos_cached" || parts.name == "sin_cached");
}

// [1, 1, tokens, tokens]; a bias has one dim.
bool is_mask_shape(const std::vector<int64_t>& shape) {
  return shape.size() == 4 && shape[0] == 1 && shape[1] == 1 && shape[2] == shape[3];
}

}  // namespace

bool is_stray_name(std::string_view name) {
  const LastParts parts(name);
  return is_of_rope(parts) || parts.name == "position_ids" || parts.name == "causal_mask" ||
         (is_attention(parts.module) && (parts.name == "bias" || parts.name == "masked_bias"));
}

bool is_stray(const checkpoint::TensorEntry& entry) {
  if (!is_stray_name(entry.name)) return false;
  return LastParts(entry.name).name != "bias" || is_mask_shape(entry.shape);
}

std::vector<std::string> remove_strays(HfFiles& files) {
  std::vector<std::string> names;
  std::erase_if(files.stored, [&](const auto& stored) {
    const checkpoint::TensorEntry& entry = stored.second.entry;
    if (is_stray(entry)) names.push_back(entry.name);
    return is_stray(entry);
  });
  return names;
}

void require_known_prefix(const HfFiles& files, const std::string& directory,
                          const std::string& family) {
  constexpr std::string_view kPrefix = "model.";
  // Tensors that every model has, by what follows the prefix.
  constexpr std::array<std::string_view, 2> kAnchors{"embed_tokens.weight",
                                                     "layers.0.input_layernorm.weight"};
  for (const std::string_view anchor : kAnchors) {
    if (files.stored.contains(fmt::format("{}{}", kPrefix, anchor))) return;
    const auto found = std::ranges::find_if(files.stored, [&](const auto& stored) {
      const std::string& name = stored.first;
      return name.ends_with(anchor) &&
             (name.size() == anchor.size() || name[name.size() - anchor.size() - 1] == '.');
    });
    if (found == files.stored.end()) continue;
    const std::string prefix = found->first.substr(0, found->first.size() - anchor.size());
    ASHLAR_FAIL(
        kData,
        "{}: the names of tensors begin with {}: {} is there; expected {}{}, as in the "
        "files of a {}: save the model without its wrapper, or rename the tensors",
        directory,
        prefix.empty() ? std::string("no prefix") : fmt::format("\"{}\"", printable(prefix)),
        printable(found->first), kPrefix, anchor, family);
  }
}

}  // namespace ashlar::models
