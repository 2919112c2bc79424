#include "ashlar/eval/load.h"

#include <algorithm>

#include "ashlar/checkpoint/hf_model.h"
#include "ashlar/checkpoint/recovery.h"
#include "ashlar/nn/loss.h"

namespace ashlar::eval {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";

DType stored_dtype(std::span<const LogicalTensor> tensors) {
  for (const LogicalTensor& t : tensors)
    if (t.name == kEmbedding) return t.dtype;
  return DType::kF32;
}

ModelSource find_in_step(const checkpoint::StepReader& reader, const std::string& path) {
  ModelSource source{
      .path = path, .resolved = reader.directory(), .hugging_face = false, .spec = {}};
  source.spec = checkpoint::parse_hf_config(reader.read_blob(checkpoint::kConfigFile),
                                            join(reader.directory(), "extra/config.json"))
                    .model;
  if (reader.has_blob(checkpoint::kModelOptionsFile))
    checkpoint::read_model_options(reader.read_blob(checkpoint::kModelOptionsFile),
                                   join(reader.directory(), "extra/model.json"), source.spec);
  const checkpoint::IndexTensor* embedding = reader.find(kEmbedding);
  ASHLAR_REQUIRE(embedding, kCorrupt, "{}: no tensor {}; this step holds no model",
                 reader.directory(), kEmbedding);
  source.stored = embedding->logical.dtype;
  return source;
}

}  // namespace

ModelSource find_model(FileSystem& files, const std::string& path, Log& log) {
  if (files.stat(join(path, "config.json"))) {
    const auto model = checkpoint::HfModel::open(files, path);
    return {.path = path,
            .resolved = path,
            .hugging_face = true,
            .spec = model.spec(),
            .stored = stored_dtype(model.tensors())};
  }
  ASHLAR_REQUIRE(
      checkpoint::is_checkpoint(files, path), kConfig,
      "{}: expected a Hugging Face directory (with config.json), a checkpoint root or one step "
      "of it",
      path);
  return find_in_step(checkpoint::open_checkpoint(files, path, log), path);
}

void read_weights(FileSystem& files, const ModelSource& source, std::span<const Piece> pieces) {
  if (source.hugging_face) {
    const auto model = checkpoint::HfModel::open(files, source.resolved);
    for (const Piece& piece : pieces) model.read(piece);
    return;
  }
  const checkpoint::StepReader reader(files, source.resolved);
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
    if (!reader.has_blob(checkpoint::kTokenizerFile)) return std::nullopt;
    return reader.read_blob(checkpoint::kTokenizerFile);
  }
  const std::string path = join(source.resolved, checkpoint::kTokenizerFile);
  if (!files.stat(path)) return std::nullopt;
  return read_text(files, path);
}

std::unique_ptr<data::Tokenizer> read_tokenizer(FileSystem& files, const ModelSource& source) {
  const auto bytes = read_tokenizer_file(files, source);
  ASHLAR_REQUIRE(bytes, kConfig, "{}: no {} there, so text cannot be read or written; use --ids",
                 source.path, checkpoint::kTokenizerFile);
  return data::parse_tokenizer(
      *bytes, join(source.resolved,
                   std::string(source.hugging_face ? "" : "extra/") + checkpoint::kTokenizerFile));
}

int64_t forward_workspace_bytes(const ModelSpec& spec, DType compute, int64_t num_tokens) {
  Allocator allocator(Device::kMeta);
  Threads threads(1);
  Arena workspace(Device::kMeta), saved_arena(Device::kMeta);
  const kernels::Context ctx{.device = Device::kMeta, .threads = &threads, .workspace = &workspace};
  nn::Model model(ctx, allocator, spec, compute, num_tokens, false);
  const nn::Saved saved =
      nn::Saved::make(saved_arena, spec, model.types(), num_tokens, 1, nn::Keep::kNothing);
  const OwnedTensor ids = make_tensor(allocator, DType::kI32, {num_tokens}, Tag::kInput);
  const OwnedTensor loss = make_tensor(allocator, model.types().stream, {num_tokens}, Tag::kInput);
  const kernels::Sequence sequence = kernels::Sequence::rows(1, num_tokens);
  nn::LocalExchange exchange;
  forward(ctx, model.call(exchange, sequence, ids.tensor), saved);
  head_loss(ctx, model, saved.final_TH, ids.tensor, loss.tensor);
  return workspace.peak_bytes();
}

Runtime::Runtime(FileSystem& files, const ModelSource& source, DType compute, int64_t max_positions,
                 int64_t max_call, int num_threads)
    : allocator(Device::kCpu),
      threads(num_threads),
      workspace_(allocator, forward_workspace_bytes(source.spec, compute, max_call),
                 Tag::kWorkspace),
      ctx{.threads = &threads, .workspace = &workspace_},
      model(ctx, allocator, source.spec, compute, max_positions, false) {
  read_weights(files, source, model.pieces());
  model.pack(ctx);
}

DType parse_precision(const std::string& name) {
  if (name == "fp64") return DType::kF64;
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  ASHLAR_REQUIRE(name == "auto", kConfig, "--dtype is {}; expected auto, bf16, fp32 or fp64", name);
  return nn::auto_compute();
}

}  // namespace ashlar::eval
