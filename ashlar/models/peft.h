// Writes the adapters of a step as the directory that PEFT loads beside their base model:
//
//   adapter_config.json          rank, alpha, the layers that have adapters
//   adapter_model.safetensors    base_model.model.LAYER.lora_A.weight and lora_B.weight, F32
//
// Source   the files that PEFT 0.21 (huggingface/peft) writes and reads.
// Errors   kConfig if the target exists, if the step has no adapters or trained other tensors too,
//          or if the model's files have other tensors than the layers (docs/finetune.md).
#pragma once

#include <cstdint>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/models/source.h"

namespace ashlar::models {

struct PeftStats {
  int64_t layers = 0, parameters = 0;
};
PeftStats write_peft_adapter(FileSystem& files, const std::string& directory,
                             const ModelSource& source);

}  // namespace ashlar::models
