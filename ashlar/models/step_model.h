// The extra files of a step that describe its model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::models {

inline constexpr const char* kConfigFile = "config.json";  // native Hugging Face form, for others
inline constexpr const char* kModelFile = "model.json";    // the whole ModelSpec, for Ashlar
inline constexpr const char* kTokenizerFile = "tokenizer.model";

// Adds the description of its model to the request: model.json, config.json where a Hugging Face
// architecture has such a model, and the head's name where the head is the embedding.
void describe_model(const ModelSpec& model, checkpoint::SaveRequest& request);

// The model of a step.  Steps of Ashlar 0.1.0 and before have the sizes in config.json alone; their
// model.json, if there is one, has three choices that no config.json states.
// Errors   kCorrupt, naming the file in `directory`, for anything else.
ModelSpec parse_step_model(const std::optional<std::string>& config_json,
                           const std::optional<std::string>& model_json,
                           const std::string& directory);
// The same for an open step, called by all ranks that read it together.
ModelSpec model_of_step(const checkpoint::StepReader& step);
// The choices of a model that differ from what readers of its config.json assume, since no
// config.json states them; as recipes write them: "moe.skip_output=identity".
std::vector<std::string> unstated_options(const ModelSpec& model);

}  // namespace ashlar::models
