#include "ashlar/models/source.h"

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/models/hf/model.h"
#include "ashlar/models/path.h"
#include "ashlar/models/step_model.h"
#include "ashlar/nn/weights.h"

namespace ashlar::models {
namespace {

// Checks that the step holds a whole model; the step itself is whole as it was committed.
void require_model(const checkpoint::StepReader& reader, const ModelSource& source) {
  for (const LogicalTensor& wanted : nn::logical_tensors(source.spec, DType::kF32)) {
    const checkpoint::IndexTensor* stored = reader.find(wanted.name);
    ASHLAR_REQUIRE(stored, kCorrupt,
                   "{}: no tensor {}; expected all of the model that it describes",
                   reader.directory(), wanted.name);
    ASHLAR_REQUIRE(stored->logical.global_shape == wanted.global_shape, kCorrupt,
                   "{}: tensor {} is {}; expected {}, as the model that it describes has it",
                   reader.directory(), wanted.name, stored->logical.global_shape.to_string(),
                   wanted.global_shape.to_string());
  }
}

ModelSource find_in_step(const checkpoint::StepReader& reader, const std::string& path) {
  ModelSource source{
      .path = path,
      .resolved = reader.directory(),
      .origin = fmt::format("step {} of run {}", reader.step(), reader.manifest().run_id),
      .hugging_face = false,
      .spec = {},
      .lease = reader.lease(),
      .reads = reader.reads()};
  source.spec = model_of_step(reader);
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
  return find_in_step(checkpoint::open_checkpoint(files, place, log), path);
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
  if (source.hugging_face) {
    const auto model = HfModel::open(files, source.resolved);
    for (const Piece& piece : pieces) model.read(piece);
    return;
  }
  const checkpoint::StepReader reader(files, source.resolved, ranks);
  checkpoint::LoadOptions options;
  options.components = {checkpoint::Component::kModel};
  for (const DType from : {DType::kF64, DType::kF32, DType::kBF16})
    for (const DType to : {DType::kF64, DType::kF32})
      if (from != to) options.cast.emplace_back(from, to);
  reader.load(pieces, options);
}

std::optional<std::string> read_tokenizer_file(FileSystem& files, const ModelSource& source) {
  if (!source.hugging_face) {
    const checkpoint::StepReader reader(files, source.resolved);
    if (!reader.has_blob(kTokenizerFile)) return std::nullopt;
    return reader.read_blob(kTokenizerFile);
  }
  const std::string path = tokenizer_path(source);
  if (!files.stat(path)) return std::nullopt;
  return read_text(files, path);
}

std::string tokenizer_path(const ModelSource& source) {
  return join(source.resolved, std::string(source.hugging_face ? "" : "extra/") + kTokenizerFile);
}

}  // namespace ashlar::models
