// The families of Hugging Face models, each of which reads and writes its config.json.  A family is
// a row of the table in hf/config.cpp and a file of its own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "ashlar/models/hf/config.h"
#include "ashlar/models/hf/fields.h"

namespace ashlar::models {

struct HfFamily {
  std::string_view model_type, architecture;  // as config.json states them
  // Whether a config.json of this family can state all of the model.
  bool (*states)(const ModelSpec&);
  // The model that config.json states.  hf/members.h judges the keys that it does not ask for.
  HfConfig (*read)(const HfFields&);
  // Adds the family's own keys to those that every config.json has.
  void (*write)(const ModelSpec&, HfLayout, Json&);
  HfNames names{};  // empty: files have the native names
};

extern const HfFamily kHfZaya;                                   // family_zaya.cpp
extern const HfFamily kHfLlama, kHfMistral, kHfQwen2, kHfQwen3;  // family_dense.cpp
extern const HfFamily kHfMixtral, kHfQwen3Moe;                   // family_moe.cpp
extern const HfFamily kHfMiniMax, kHfQwen3Next;                  // family_linear.cpp

}  // namespace ashlar::models
