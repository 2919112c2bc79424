#include "ashlar/eval/load.h"

#include <algorithm>

#include "ashlar/core/text.h"
#include "ashlar/eval/generate.h"
#include "ashlar/kernels/int8.h"
#include "ashlar/models/step_model.h"
#include "ashlar/nn/init.h"
#include "ashlar/nn/loss.h"

namespace ashlar::eval {

std::unique_ptr<data::Tokenizer> find_tokenizer(FileSystem& files, const ModelSource& source) {
  return data::tokenizer_among(models::read_tokenizer_files(files, source),
                               models::tokenizer_place(source));
}

std::unique_ptr<data::Tokenizer> find_readable_tokenizer(FileSystem& files,
                                                         const ModelSource& source, Log& log) {
  return data::readable_tokenizer_among(models::read_tokenizer_files(files, source),
                                        models::tokenizer_place(source), log);
}

std::unique_ptr<data::Tokenizer> read_tokenizer(FileSystem& files, const ModelSource& source) {
  auto tokenizer = find_tokenizer(files, source);
  ASHLAR_REQUIRE(tokenizer, kConfig,
                 "{}: neither tokenizer.model nor tokenizer.json there, so text cannot be read or "
                 "written; use --ids",
                 source.path);
  return tokenizer;
}

data::TextFiles read_text_files(const models::Companions& companions, const ModelSource& source,
                                const data::Tokenizer* tokenizer) {
  return data::read_text_files(companions.files, tokenizer, models::place_of_companions(source),
                               companions.bos_id);
}

std::vector<int32_t> encode_text(std::string_view text, const data::Tokenizer& tokenizer,
                                 const data::TextFiles& files) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (files.adds_bos) ids.insert(ids.begin(), files.bos_id);
  if (ids.empty()) ids.push_back(data::first_id(tokenizer));
  return ids;
}

void check_ids(std::span<const int32_t> ids, const ModelSource& source) {
  for (const int32_t id : ids)
    ASHLAR_REQUIRE(id >= 0 && id < source.spec.vocab_size, kData,
                   "token id {} is outside the vocabulary of {}; expected 0 to {}", id, source.path,
                   source.spec.vocab_size - 1);
}

namespace {

void round_weights(const kernels::Context& ctx, nn::Model& model) {
  for (const nn::Stored& stored : model.weights().tensors) {
    if (!stored.is_operand()) continue;
    const bool in_fp32 = stored.block < 0 && model.spec().head_fp32;
    round_to_int8(ctx, in_fp32 ? model.types().wide : model.types().compute,
                  stored.weight->operand);
  }
}

}  // namespace

Footprint footprint(const ModelSpec& spec, DType compute, const Calls& calls, int num_threads) {
  Allocator allocator(Device::kMeta);
  Threads threads(num_threads);  // kernels with scratch of each thread take it on meta too
  Arena workspace(Device::kMeta), saved_arena(Device::kMeta);
  const kernels::Context ctx{.device = Device::kMeta, .threads = &threads, .workspace = &workspace};
  nn::Model model(ctx, allocator, spec, compute, calls.max_positions, {.training = false});
  if (calls.int8_weights) round_weights(ctx, model);
  const int64_t T = calls.max_call;
  if (calls.cached) {
    Decoder decoder(ctx, allocator, model, calls.max_positions, T, calls.num_places);
    decoder.count();
  } else {
    const nn::Saved saved =
        nn::Saved::make(saved_arena, model.weights(), model.types(), T, 1, nn::Keep::kNothing);
    const OwnedTensor ids = make_tensor(allocator, DType::kI32, {T}, Tag::kInput);
    const OwnedTensor loss = make_tensor(allocator, model.types().wide, {T}, Tag::kInput);
    std::vector<Segment> documents;
    for (int64_t row = 0; row < T; row += calls.max_positions)
      documents.push_back({row, std::min(calls.max_positions, T - row), 0, row});
    nn::LocalExchange exchange;
    const kernels::Sequence sequence(std::move(documents));
    forward(ctx, model.call(exchange.exchanges(), sequence, ids.tensor), saved);
    head_loss(ctx, model, saved.final_TH, ids.tensor, loss.tensor);
  }
  return {workspace.peak_bytes(),
          allocator.counts().total.peak_bytes + saved_arena.peak_bytes() + workspace.peak_bytes()};
}

bool parse_int8_weights(const std::string& weights, DType compute) {
  ASHLAR_REQUIRE(weights == "full" || weights == "int8", kConfig,
                 "--weights is {}; expected full or int8", weights);
  ASHLAR_REQUIRE(weights == "full" || compute != DType::kF64, kConfig,
                 "--weights is int8 with --dtype fp64; expected auto, bf16 or fp32 with it");
  return weights == "int8";
}

namespace {

int64_t checked_workspace_bytes(const ModelSource& source, DType compute, const Calls& calls,
                                int num_threads) {
  const Footprint needed = footprint(source.spec, compute, calls, num_threads);
  const int64_t there = machine_memory_bytes();
  ASHLAR_REQUIRE(needed.total_bytes <= there, kMemory,
                 "{}: the model with room for {} tokens needs {}; this machine has {} of memory; "
                 "ask for fewer tokens, or take a larger machine",
                 source.path, format_thousands(calls.max_positions),
                 format_bytes(needed.total_bytes), format_bytes(there));
  return needed.workspace_bytes;
}

}  // namespace

Runtime::Runtime(FileSystem& files, const ModelSource& source, DType compute, const Calls& calls,
                 int num_threads)
    : allocator(Device::kCpu),
      threads(num_threads),
      workspace_(allocator, checked_workspace_bytes(source, compute, calls, threads.size()),
                 Tag::kWorkspace),
      ctx{.threads = &threads, .workspace = &workspace_},
      model(ctx, allocator, source.spec, compute, calls.max_positions,
            {.training = false, .first_tokens = calls.first_tokens}) {
  const std::vector<Piece> weights = model.pieces();
  models::read_weights(files, source, weights);
  nn::require_finite(ctx, weights, source.spec, source.resolved, [&] {
    const auto tokenizer = find_tokenizer(files, source);
    return tokenizer ? int64_t(tokenizer->vocab_size()) : 0;
  });
  model.pack(ctx);
  if (calls.int8_weights) round_weights(ctx, model);
}

void warn_past_positions(const ModelSource& source, int64_t num_tokens, Log& log) {
  const int64_t positions = source.spec.max_positions;
  if (num_tokens <= positions) return;
  log.warn("{} is meant for {} tokens (max_position_embeddings) and is given up to {}", source.path,
           format_thousands(positions), format_thousands(num_tokens));
}

}  // namespace ashlar::eval
