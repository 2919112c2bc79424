// config.json of a Hugging Face model <-> ModelSpec.  hf/family.h has the families; ZAYA1's was
// published in three forms:
//
//   kLegacy2025  one entry per sub-layer, even = attention, odd = experts; per-layer lists
//   kLegacy2026  sub-layers too, but scalar fields
//   kNative      one layer = one block; layer_types; transformers >= 5.13.  All other families
//
// Source   docs/hugging-face.md: every field of each form, the aliases and the rules.
// Errors   Reading: kData, "FILE: KEY is VALUE; expected ...".  Writing: kConfig.
// Limits   skip_output, head_fp32 and qk_norm_eps, which no file states, keep their defaults.
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

// The names of a mixture's tensors, after "model.layers.N.", in files that store every expert
// apart; {} stands for the expert's number.
struct HfExpertNames {
  std::string_view router;          // the router's matrix
  std::string_view gate, up, down;  // the matrices of each expert
};

// A tensor of a mixer in a family's files, named after "model.layers.N.": a native tensor under
// another name, or several whose rows are interleaved by head: the rows of head 0 of each of them,
// in their order, then those of head 1.  The heads are those of queries, in linear mixers those of
// keys.
struct HfMixerTensor {
  std::string_view mixer;  // the kind of mixer that has it
  std::string_view name;
  std::array<std::string_view, 4> natives;  // their names, likewise; "": no more
};

// A tensor of a linear mixer that files hold beside the weights, though it follows from the config.
// It is written for programs that expect it, and ignored on reading.
struct HfBuffer {
  std::string_view name;  // after "model.layers.N."
  Shape (*shape)(const LinearSpec&);
  void (*fill)(const LinearSpec&, std::span<float> values);
};

// How the files of a family name a model's tensors.
struct HfNames {
  const HfExpertNames* experts = nullptr;      // null: natively, in stacks
  std::span<const HfMixerTensor> mixers = {};  // all others have their native names
  std::span<const HfBuffer> buffers = {};
  std::string_view passed = {};  // tensors whose names begin so are ignored; "": none
  bool native() const { return !experts && mixers.empty(); }
};

// A size of the model, or of the first block of a kind, that one dim of a tensor shows.
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
  std::vector<std::string> notes;  // a line for each thing that is ignored, to be shown once
  // Keys of the file that are not followed and are not known to be harmless (hf/members.h).
  std::vector<std::string> not_followed{};

  // The key of the file that stated the size whose native name is given.
  const std::string& key_of(const std::string& native_name) const { return keys.at(native_name); }
};

// `source` names the file in messages.
HfConfig parse_hf_config(std::string_view text, const std::string& source);

// Whether some family's config.json can state the model.
bool has_hf_config(const ModelSpec& model);
// The names of its tensors in that family's files.
HfNames names_of(const ModelSpec& model);
// The text of config.json: the native form, or the legacy form of 2026.  `dtype`: of the weights.
// kConfig where no family states the model.
std::string to_hf_config(const ModelSpec& model, DType dtype, HfLayout layout);
std::string to_hf_generation_config(const ModelSpec& model);

}  // namespace ashlar::models
