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

// The names of the tensors of the model's files.
std::set<std::string> names_in_files(const ModelSpec& spec) {
  const std::vector<LogicalTensor> natives = nn::logical_tensors(spec);
  std::set<std::string> names;
  for (const FileTensor& tensor :
       file_tensors(natives, spec.blocks, HfLayout::kNative, names_of(spec)))
    names.insert(tensor.name);
  return names;
}

void require_like_files(const std::set<std::string>& names, const TunedTensors& tuned) {
  for (const auto& [weight, adapter] : tuned.adapters())
    ASHLAR_REQUIRE(
        names.contains(weight) && !adapter.stack, kConfig,
        "{} has an adapter, but {}, for which PEFT has no such adapter; export the merged model",
        weight,
        adapter.stack ? "is a stack of experts"
                      : "the model's files have it as a part of another tensor");
}

std::string last_part(const std::string& layer) {
  return layer.substr(layer.rfind('.') + 1);
}

// PEFT adapts every layer whose name is one of these or ends with one: a last part stands for all
// layers that have it, if all of them have adapters.
std::vector<std::string> target_modules(const std::set<std::string>& names_in_files,
                                        const TunedTensors& tuned) {
  std::set<std::string> partly, targets;
  for (const std::string& name : names_in_files)
    if (!tuned.adapters().contains(name)) partly.insert(last_part(layer_of(name)));
  for (const auto& [weight, adapter] : tuned.adapters()) {
    const std::string layer = layer_of(weight), last = last_part(layer);
    targets.insert(partly.contains(last) ? layer : last);
  }
  return {targets.begin(), targets.end()};
}

std::string adapter_config(const ModelSource& source, const std::set<std::string>& names,
                           const TunedTensors& tuned) {
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
                 {"target_modules", target_modules(names, tuned)}}
             .dump(2) +
         "\n";
}

void write_tensors(File& file, const TunedTensors& tuned) {
  std::vector<checkpoint::TensorSpec> specs;
  std::vector<std::vector<double>> values;
  const auto add = [&](const std::string& weight, const char* half, std::vector<double> data,
                       int64_t rows, int64_t cols) {
    const std::string name = std::string(kPeftPrefix) + layer_of(weight) + half + ".weight";
    specs.push_back({name, DType::kF32, {rows, cols}});
    values.push_back(std::move(data));
  };
  for (const auto& [weight, adapter] : tuned.adapters()) {
    AdapterValues of_layer = tuned.values_of(weight);
    add(weight, ".lora_A", std::move(of_layer.a), adapter.rank, adapter.cols);
    add(weight, ".lora_B", std::move(of_layer.b), adapter.rows, adapter.rank);
  }
  const checkpoint::SafetensorsPlan plan =
      checkpoint::plan_safetensors(specs, {{"format", "pt"}}, checkpoint::HeaderStyle::kPlain);
  file.write_at(std::as_bytes(std::span(plan.header)), 0);
  for (size_t n = 0; n < specs.size(); ++n) {
    const std::vector<float> rounded(values[n].begin(), values[n].end());
    file.write_at(std::as_bytes(std::span(rounded)), plan.data_begin + plan.entries[n].begin);
  }
}

}  // namespace

PeftStats write_peft_adapter(FileSystem& files, const std::string& directory,
                             const ModelSource& source) {
  ASHLAR_REQUIRE(source.tuned && source.tuned->lora.rank > 0, kConfig,
                 "{} has no adapters; --adapter takes a step of a run with lora.rank",
                 source.resolved);
  ASHLAR_REQUIRE(source.tuned->base.hugging_face, kConfig,
                 "{} builds on {}, which is no Hugging Face directory, so that PEFT cannot load it "
                 "beside the adapters; export the merged model",
                 source.resolved, source.tuned->base.resolved);
  const StoredTensors stored(files, source);
  const TunedTensors& tuned = *stored.tuned();
  const std::string other = tuned.trained_whole();
  ASHLAR_REQUIRE(other.empty(), kConfig,
                 "{} was trained whole beside the adapters (lora.modules_to_save), which the "
                 "adapter's files do not hold; export the merged model",
                 other);
  const std::set<std::string> names = names_in_files(source.spec);
  require_like_files(names, tuned);
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
    const std::string text = adapter_config(source, names, tuned);
    file.write_at(std::as_bytes(std::span(text)), 0);
  });
  outputs.publish();
  PeftStats stats;
  for (const auto& [weight, adapter] : tuned.adapters()) {
    ++stats.layers;
    stats.parameters += adapter.rank * (adapter.rows + adapter.cols);
  }
  return stats;
}

}  // namespace ashlar::models
