#include "ashlar/models/companions.h"

#include <algorithm>
#include <array>

#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/fields.h"
#include "ashlar/models/hf/files.h"
#include "ashlar/models/hf/model.h"
#include "ashlar/models/step_model.h"

namespace ashlar::models {
namespace {

constexpr std::array<std::string_view, 9> kTokenizerFiles = {"tokenizer.model",
                                                             "tokenizer.json",
                                                             "tokenizer_config.json",
                                                             "special_tokens_map.json",
                                                             "added_tokens.json",
                                                             "vocab.json",
                                                             "vocab.txt",
                                                             "merges.txt",
                                                             "tekken.json"};
constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};

DType parse_type(const Fields& fields, std::string_view name) {
  for (const DType type : kTypes)
    if (name == name_of(type)) return type;
  fields.fail("the type '{}' is none of BF16, F16, F32 and F64", name);
}

// {"dtype": "BF16", "other_dtypes": {"F32": ["model.layers.0.mlp.gate.weight"]}}
std::optional<ElementTypes> parse_types(const Fields& fields) {
  if (!fields.has("dtype")) return std::nullopt;
  ElementTypes types{.usual = parse_type(fields, fields.text("dtype"))};
  if (!fields.has("other_dtypes")) return types;
  const Fields others = fields.object("other_dtypes");
  for (const auto& item : fields.at("other_dtypes").items())
    for (const Json& name : others.array(item.key())) {
      if (!name.is_string()) fields.fail("other_dtypes holds {}; expected names", shown(name));
      types.others[name.get<std::string>()] = parse_type(fields, item.key());
    }
  return types;
}

void write_types(const ElementTypes& types, Ordered& json) {
  json["dtype"] = name_of(types.usual);
  for (const auto& [name, type] : types.others)
    json["other_dtypes"][std::string(name_of(type))].push_back(name);
}

Companions of_directory(FileSystem& files, const std::string& directory) {
  Companions companions;
  for (const std::string& name : files.list(directory)) {
    const std::string path = join(directory, name);
    if (goes_along(name) && is_plain_file(files, path))
      companions.files[name] = read_text(files, path, checkpoint::kMaxBlobBytes);
  }
  companions.types = types_of(HfModel::open(files, directory).tensors());
  return companions;
}

}  // namespace

ElementTypes types_of(std::span<const LogicalTensor> tensors) {
  std::map<DType, int64_t> counts;
  for (const LogicalTensor& tensor : tensors) counts[tensor.dtype] += tensor.global_shape.numel();
  ElementTypes types;
  int64_t most = 0;
  for (const auto& [type, count] : counts)
    if (count > most) most = count, types.usual = type;
  for (const LogicalTensor& tensor : tensors)
    if (tensor.dtype != types.usual) types.others[tensor.name] = tensor.dtype;
  return types;
}

bool is_of_tokenizer(std::string_view name) {
  return std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end() ||
         (checkpoint::is_plain_name(name) &&
          (name.starts_with("tokenizer.model.") || name.starts_with("chat_template.")));
}

bool goes_along(std::string_view name) {
  return name == kHfGenerationFile || is_of_tokenizer(name);
}

Companions companions_of(FileSystem& files, const ModelSource& source) {
  if (source.hugging_face) return of_directory(files, source.resolved);
  return companions_in(checkpoint::StepReader(files, source.resolved));
}

std::string place_of_companions(const ModelSource& source) {
  return source.hugging_face ? source.resolved : join(source.resolved, "extra");
}

Companions companions_in(const checkpoint::StepReader& step) {
  Companions companions;
  for (const checkpoint::IndexBlob& blob : step.index().blobs)
    if (goes_along(blob.name)) companions.files[blob.name] = step.read_blob(blob.name);
  const auto section = step.manifest().sections.find("hf");
  if (section == step.manifest().sections.end()) return companions;
  const std::string place = join(step.directory(), std::string(checkpoint::kManifestName) + ": hf");
  const Json json = parse_json(section->second, place, ErrorKind::kCorrupt);
  const Fields fields(json, place);
  companions.types = parse_types(fields);
  if (fields.has("bos_id")) companions.bos_id = int32_t(fields.integer("bos_id", -1, INT32_MAX));
  return companions;
}

std::vector<std::string> left_behind(FileSystem& files, const std::string& directory) {
  std::vector<std::string> names;
  for (const std::string& name : files.list(directory))
    if (!goes_along(name) && name != kHfConfigFile && name != kHfIndexFile &&
        !name.starts_with('.') && !name.ends_with(".safetensors"))
      names.push_back(name);
  return names;
}

void add_companions(const Companions& companions, const std::string& source,
                    std::vector<checkpoint::Blob>& extra,
                    std::map<std::string, std::string>& sections) {
  for (const auto& [name, content] : companions.files) extra.push_back({name, content, false});
  Ordered json = Ordered::object();
  if (!source.empty()) json["source"] = source;
  if (companions.types) write_types(*companions.types, json);
  if (companions.bos_id) json["bos_id"] = *companions.bos_id;
  if (!json.empty()) sections["hf"] = one_line(json);
}

}  // namespace ashlar::models
