// config.json of a Hugging Face model <-> ModelSpec.  hf_family.h has the families; ZAYA1's was
// published in three forms:
//
//   kLegacy2025  one entry per sub-layer, even = attention, odd = experts; per-layer lists
//   kLegacy2026  sub-layers too, but scalar fields
//   kNative      one layer = one block; layer_types; transformers >= 5.13.  All other families
//
// Source   docs/hugging-face.md: every field of each form, the aliases and the rules.
// Errors   Reading: kData, "FILE: KEY is VALUE; expected ...".  Writing: kConfig.
// Limits   What no file states (skip_output, head_fp32, qk_norm_eps) keeps its default.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/spec/model_spec.h"
#include "ashlar/tensor/dtype.h"
#include "ashlar/tensor/shape.h"

namespace ashlar::models {

enum class HfForm : uint8_t { kLegacy2025, kLegacy2026, kNative };
enum class HfLayout : uint8_t { kNative, kLegacy };  // of tensor names and of the written config

std::string_view name_of(HfForm form);      // "legacy 2025", "legacy 2026", "native"
std::string_view name_of(HfLayout layout);  // "native", "legacy"

// How files that store every expert apart name the tensors of a mixture, after "model.layers.N.";
// {} stands for the expert's number.
struct HfExpertNames {
  std::string_view router;          // of the router's matrix
  std::string_view gate, up, down;  // of each expert
};

// A tensor of a mixer as a family's files have it, named after "model.layers.N.": a native tensor
// under another name, or several, whose rows lie head by head: those of head 0 of each of them, in
// their order, then those of head 1.  Heads: of queries, in linear mixers of keys.
struct HfMixerTensor {
  std::string_view mixer;  // kind of the mixers that have it
  std::string_view name;
  std::array<std::string_view, 4> natives;  // named likewise; "": no more
};

// A tensor that files have beside the weights, of linear mixers: what programs compute once from
// the config.  Written for those that expect it, read past.
struct HfBuffer {
  std::string_view name;  // after "model.layers.N."
  Shape (*shape)(const LinearSpec&);
  void (*fill)(const LinearSpec&, std::span<float> values);
};

// How the files of a family name what the model has.
struct HfNames {
  const HfExpertNames* experts = nullptr;      // null: natively, in stacks
  std::span<const HfMixerTensor> mixers = {};  // all others have their native names
  std::span<const HfBuffer> buffers = {};
  std::string_view passed = {};  // names that begin so are read past; "": none
  bool native() const { return !experts && mixers.empty(); }
};

// A size that one dim of a tensor shows: of the model, or of the first block of its kind.
struct HfSize {
  std::string tensor;  // native name
  size_t dim;
  std::string what;  // the keys that state it: "num_attention_heads * head_dim"
  int64_t value;
};

struct HfConfig {
  std::string family;  // "ZayaForCausalLM"
  HfForm form = HfForm::kNative;
  ModelSpec model;
  std::map<std::string, std::string> keys;  // native name of a size -> the key that stated it
  std::vector<HfSize> sizes;
  HfNames names{};                 // of the family
  std::vector<std::string> notes;  // what is passed over, a line each: to be said once
  // Keys of the file that are not followed and that are not known to be harmless (hf_members.h).
  std::vector<std::string> not_followed{};

  // The key of the file that stated the size whose native name is given.
  const std::string& key_of(const std::string& native_name) const { return keys.at(native_name); }
};

// `source` names the file in messages.
HfConfig parse_hf_config(std::string_view text, const std::string& source);

// Whether some family's config.json can state the model.
bool has_hf_config(const ModelSpec& model);
// As that family's files name its tensors.
HfNames names_of(const ModelSpec& model);
// The text of config.json: the native form, or the legacy form of 2026.  `dtype`: of the weights.
// kConfig where no family states the model.
std::string to_hf_config(const ModelSpec& model, DType dtype, HfLayout layout);
std::string to_hf_generation_config(const ModelSpec& model);

}  // namespace ashlar::models
