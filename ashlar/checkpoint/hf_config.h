// config.json of a Hugging Face ZAYA1 model <-> ZayaSpec, in the three forms that were published.
//
//   kLegacy2025  one entry per sub-layer, even = attention, odd = experts; per-layer lists
//   kLegacy2026  sub-layers too, but scalar fields
//   kNative      one layer = one block; layer_types; transformers >= 5.13
//
// Source   docs/formats/model.md: every field of each form, the aliases and the rules.
// Errors   Reading: kData, "FILE: KEY is VALUE; expected ...".  Writing: kConfig.
// Limits   What no file states (skip_output, head_fp32, qk_norm_eps) keeps ZayaSpec's default.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "ashlar/spec/zaya_spec.h"
#include "ashlar/tensor/dtype.h"

namespace ashlar::checkpoint {

enum class HfForm : uint8_t { kLegacy2025, kLegacy2026, kNative };
enum class HfLayout : uint8_t { kNative, kLegacy };  // of tensor names and of the written config

std::string_view name_of(HfForm form);      // "legacy 2025", "legacy 2026", "native"
std::string_view name_of(HfLayout layout);  // "native", "legacy"

struct HfConfig {
  HfForm form = HfForm::kNative;
  ZayaSpec model;
  std::map<std::string, std::string> keys;  // native name of a size -> the key that stated it

  // The key of the file that stated the size whose native name is given.
  const std::string& key_of(const std::string& native_name) const { return keys.at(native_name); }
};

// `source` names the file in messages.
HfConfig parse_hf_config(std::string_view text, const std::string& source);

// The text of config.json: the native form, or the legacy form of 2026.  `dtype`: of the weights.
std::string to_hf_config(const ZayaSpec& spec, DType dtype, HfLayout layout);
std::string to_hf_generation_config(const ZayaSpec& spec);

}  // namespace ashlar::checkpoint
