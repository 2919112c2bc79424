// The model that a step builds on: a run that freezes tensors saves what it trains, and names the
// model that has the others.
//
// Format  base_model.json under extra/ of a step (docs/formats/checkpoint.md).
// Errors  kCorrupt for a file that is none; kConfig where the model is another one now.
#pragma once

#include <cstdint>
#include <string>

#include "ashlar/models/source.h"
#include "ashlar/spec/tune_spec.h"

namespace ashlar::models {

inline constexpr const char* kBaseModelFile = "base_model.json";

struct BaseModel {
  std::string path;          // as ModelSource::resolved
  uint64_t fingerprint = 0;  // model_fingerprint
  LoraSpec lora{};           // rank 0: no adapters; else rank, alpha and rslora
};

std::string to_json(const BaseModel& base);
BaseModel parse_base_model(const std::string& json, const std::string& place);
BaseModel base_model_of(FileSystem& files, const ModelSource& source, const TuneSpec& tune);

// kConfig unless `found` is the base that `step`, for messages, was made with.
void require_same_base(const BaseModel& saved, const BaseModel& found, const std::string& step);

}  // namespace ashlar::models
