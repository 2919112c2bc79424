#include "ashlar/models/peft.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/core/json.h"
#include "ashlar/core/output.h"
#include "ashlar/models/hf/names.h"
#include "ashlar/models/tuned.h"
#include "ashlar/nn/weights.h"

namespace ashlar::models {
namespace {

constexpr std::string_view kPeftPrefix = "base_model.model.";

// "model.layers.3.self_attn.q_proj" of its weight.
std::string layer_of(const std::string& weight) {
  return weight.substr(0, weight.rfind('.'));
}

void require_like_files(const ModelSpec& spec, const TunedTensors& tuned) {
  const std::vector<LogicalTensor> natives = nn::logical_tensors(spec);
  std::set<std::string> names;
  for (const FileTensor& tensor :
       file_tensors(natives, spec.blocks, HfLayout::kNative, names_of(spec)))
    names.insert(tensor.name);
  for (const auto& [weight, adapter] : tuned.adapters())
    ASHLAR_REQUIRE(names.contains(weight), kConfig,
                   "{} has an adapter, but the model's files have it as a part of another tensor, "
                   "for which PEFT has no such adapter; export the merged model",
                   weight);
}

// PEFT adapts every linear layer whose name is one of these or ends with one.  Experts have layers
// of the same names without adapters, so that a model with experts needs whole names.
std::vector<std::string> target_modules(const ModelSpec& spec, const TunedTensors& tuned) {
  const bool has_experts = std::ranges::any_of(spec.blocks, [](const BlockSpec& block) {
    return std::holds_alternative<MoeSpec>(block.feed_forward);
  });
  std::set<std::string> names;
  for (const auto& [weight, adapter] : tuned.adapters()) {
    const std::string layer = layer_of(weight);
    names.insert(has_experts ? layer : layer.substr(layer.rfind('.') + 1));
  }
  return {names.begin(), names.end()};
}

std::string adapter_config(const ModelSource& source, const TunedTensors& tuned) {
  const LoraSpec& lora = source.tuned->lora;
  return Ordered{{"peft_type", "LORA"},
                 {"task_type", "CAUSAL_LM"},
                 {"base_model_name_or_path", source.tuned->base.resolved},
                 {"r", lora.rank},
                 {"lora_alpha", lora.alpha},
                 {"use_rslora", lora.rslora},
                 {"lora_dropout", 0.0},
                 {"bias", "none"},
                 {"fan_in_fan_out", false},
                 {"inference_mode", true},
                 {"target_modules", target_modules(source.spec, tuned)}}
             .dump(2) +
         "\n";
}

void write_tensors(File& file, const TunedTensors& tuned) {
  std::vector<checkpoint::TensorSpec> specs;
  std::vector<const std::vector<double>*> values;
  const auto add = [&](std::string_view weight, const char* half, const std::vector<double>& data,
                       int64_t rows, int64_t cols) {
    const std::string name =
        std::string(kPeftPrefix) + layer_of(std::string(weight)) + half + ".weight";
    specs.push_back({name, DType::kF32, {rows, cols}});
    values.push_back(&data);
  };
  for (const auto& [weight, adapter] : tuned.adapters()) {
    add(weight, ".lora_A", adapter.a, adapter.rank, adapter.cols);
    add(weight, ".lora_B", adapter.b, adapter.rows, adapter.rank);
  }
  const checkpoint::SafetensorsPlan plan =
      checkpoint::plan_safetensors(specs, {{"format", "pt"}}, checkpoint::HeaderStyle::kPlain);
  file.write_at(std::as_bytes(std::span(plan.header)), 0);
  for (size_t n = 0; n < specs.size(); ++n) {
    const std::vector<float> rounded(values[n]->begin(), values[n]->end());
    file.write_at(std::as_bytes(std::span(rounded)), plan.data_begin + plan.entries[n].begin);
  }
}

}  // namespace

PeftStats write_peft_adapter(FileSystem& files, const std::string& directory,
                             const ModelSource& source) {
  ASHLAR_REQUIRE(source.tuned && source.tuned->lora.rank > 0, kConfig,
                 "{} has no adapters; --adapter takes a step of a run with lora.rank",
                 source.resolved);
  const StoredTensors stored(files, source);
  const TunedTensors& tuned = *stored.tuned();
  const std::string other = tuned.trained_whole();
  ASHLAR_REQUIRE(other.empty(), kConfig,
                 "{} was trained whole beside the adapters (lora.modules_to_save), which the "
                 "adapter's files do not hold; export the merged model",
                 other);
  require_like_files(source.spec, tuned);
  Outputs outputs(files, {directory}, {});
  const std::string place = outputs.make_directory(directory);
  const auto write = [&](const char* name, auto fill) {
    const auto file = files.create(join(place, name));
    fill(*file);
    file->sync();
    file->close();
  };
  write("adapter_model.safetensors", [&](File& file) { write_tensors(file, tuned); });
  write("adapter_config.json", [&](File& file) {
    const std::string text = adapter_config(source, tuned);
    file.write_at(std::as_bytes(std::span(text)), 0);
  });
  outputs.publish();
  PeftStats stats;
  for (const auto& [weight, adapter] : tuned.adapters()) {
    ++stats.layers;
    stats.parameters += int64_t(adapter.a.size() + adapter.b.size());
  }
  return stats;
}

}  // namespace ashlar::models
