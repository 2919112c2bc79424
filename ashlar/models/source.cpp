#include "ashlar/models/source.h"

#include <optional>

#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/models/base_model.h"
#include "ashlar/models/hf/model.h"
#include "ashlar/models/path.h"
#include "ashlar/models/step_model.h"
#include "ashlar/models/tensor_reader.h"
#include "ashlar/nn/weights.h"

namespace ashlar::models {
namespace {

// Checks that the step holds a whole model, or the part of it that was trained; the step itself is
// whole as it was committed.
void require_model(const checkpoint::StepReader& reader, const ModelSource& source) {
  for (const LogicalTensor& wanted : nn::logical_tensors(source.spec, DType::kF32)) {
    const checkpoint::IndexTensor* stored = reader.find(wanted.name);
    if (!stored && source.tuned) continue;
    ASHLAR_REQUIRE(stored, kCorrupt,
                   "{}: no tensor {}; expected all of the model that it describes",
                   reader.directory(), wanted.name);
    ASHLAR_REQUIRE(stored->logical.global_shape == wanted.global_shape, kCorrupt,
                   "{}: tensor {} is {}; expected {}, as the model that it describes has it",
                   reader.directory(), wanted.name, stored->logical.global_shape.to_string(),
                   wanted.global_shape.to_string());
  }
}

std::shared_ptr<const TunedFrom> find_base(FileSystem& files, const checkpoint::StepReader& reader,
                                           Log& log) {
  if (!reader.has_blob(kBaseModelFile)) return nullptr;
  const BaseModel saved =
      parse_base_model(reader.read_blob(kBaseModelFile),
                       join(reader.directory(), std::string("extra/") + kBaseModelFile));
  ASHLAR_REQUIRE(files.stat(saved.path, LinkPolicy::kFollow), kConfig,
                 "{} holds what was trained of {}, which is not there; bring it back to that path",
                 reader.directory(), saved.path);
  TunedFrom from{find_model(files, saved.path, log), saved.lora};
  require_same_base(saved, base_model_of(files, from.base, {}), reader.directory());
  return std::make_shared<const TunedFrom>(std::move(from));
}

ModelSource find_in_step(FileSystem& files, const checkpoint::StepReader& reader,
                         const std::string& path, Log& log) {
  ModelSource source{
      .path = path,
      .resolved = reader.directory(),
      .origin = fmt::format("step {} of run {}", reader.step(), reader.manifest().run_id),
      .hugging_face = false,
      .spec = {},
      .lease = reader.lease(),
      .reads = reader.reads()};
  source.spec = model_of_step(reader);
  source.tuned = find_base(files, reader, log);
  require_model(reader, source);
  return source;
}

}  // namespace

ModelSource find_model(FileSystem& files, const std::string& path, Log& log) {
  const std::string place = locate_model(files, path);
  if (files.stat(join(place, kConfigFile))) {
    const auto model = HfModel::open(files, place);
    for (const std::string& note : model.notes()) log.info("{}", note);
    for (const std::string& warning : model.warnings()) log.warn("{}", warning);
    return {.path = path,
            .resolved = place,
            .origin = fmt::format("Hugging Face, {} layout", name_of(model.layout())),
            .hugging_face = true,
            .spec = model.spec(),
            .lease = nullptr};
  }
  return find_in_step(files, checkpoint::open_checkpoint(files, place, log), path, log);
}

DescribedModel describe_source(FileSystem& files, const std::string& path) {
  const std::string place = locate_model(files, path);
  if (files.stat(join(place, kConfigFile)))
    return {read_hf_config(files, place).model, place, true};
  if (files.stat(join(place, checkpoint::kCommitName)))
    return {model_of_step(checkpoint::StepReader(files, place)), place};
  std::vector<checkpoint::StepRef> steps = checkpoint::committed_steps(files, place);
  for (;;) {  // all steps except the oldest may be damaged
    const std::string directory = steps.back().directory;
    steps.pop_back();
    try {
      return {model_of_step(checkpoint::StepReader(files, directory)), directory};
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt || steps.empty()) throw;
    }
  }
}

void read_weights(FileSystem& files, const ModelSource& source, std::span<const Piece> pieces,
                  checkpoint::LoadRanks* ranks) {
  if (source.tuned) return StoredTensors(files, source).read(pieces);
  if (source.hugging_face) {
    const auto model = HfModel::open(files, source.resolved);
    for (const Piece& piece : pieces) model.read(piece);
    return;
  }
  const checkpoint::StepReader reader(files, source.resolved, ranks);
  checkpoint::LoadOptions options;
  options.components = {checkpoint::Component::kModel};
  for (const DType from : {DType::kF64, DType::kF32, DType::kBF16})
    for (const DType to : {DType::kF64, DType::kF32, DType::kBF16})
      if (from != to) options.cast.emplace_back(from, to);
  reader.load(pieces, options);
}

std::map<std::string, std::string> read_tokenizer_files(FileSystem& files,
                                                        const ModelSource& source) {
  std::optional<checkpoint::StepReader> step;
  if (!source.hugging_face) step.emplace(files, source.resolved);
  std::map<std::string, std::string> found;
  const auto take = [&](const char* name) {
    const std::string path = join(source.resolved, name);
    const bool there = step ? step->has_blob(name) : files.stat(path).has_value();
    if (there)
      found[name] =
          step ? step->read_blob(name) : read_text(files, path, checkpoint::kMaxBlobBytes);
    return there;
  };
  if (take(kTokenizerFile) || !take("tokenizer.json")) return found;
  take("tokenizer_config.json");
  take("special_tokens_map.json");
  return found;
}

std::string tokenizer_place(const ModelSource& source) {
  return source.hugging_face ? source.resolved : join(source.resolved, "extra");
}

}  // namespace ashlar::models
