#include "ashlar/eval/load.h"

#include <algorithm>

#include "ashlar/core/rounding.h"
#include "ashlar/core/text.h"
#include "ashlar/eval/generate.h"
#include "ashlar/eval/perplexity.h"
#include "ashlar/eval/score.h"
#include "ashlar/kernels/int8.h"
#include "ashlar/models/step_model.h"
#include "ashlar/nn/init.h"
#include "ashlar/nn/precision.h"
#include "ashlar/spec/recipe.h"

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

// Runs the largest calls on meta.
void run_calls(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
               const Calls& calls) {
  const int64_t T = calls.max_call;
  if (calls.cached)
    return Decoder(ctx, allocator, model, calls.max_positions, T, calls.num_places).count();
  if (calls.all_logits) {
    score(ctx, allocator, model, std::vector<int32_t>(size_t(T), 0));
    return;
  }
  std::vector<Segment> documents;
  for (int64_t row = 0; row < T; row += calls.max_positions)
    documents.push_back({row, std::min(calls.max_positions, T - row), 0, row});
  TokenLosses(allocator, model, T).run(ctx, {.ids = {}, .targets = {}, .segments = documents}, {});
}

}  // namespace

Footprint footprint(const ModelSpec& spec, DType compute, const Calls& calls, int num_threads,
                    const kernels::ComputeDevice& on) {
  Allocator allocator(Device::kMeta, INT64_MAX, on.align());
  Threads threads(num_threads);  // kernels with scratch of each thread take it on meta too
  Arena workspace(Device::kMeta);
  const kernels::Context ctx{.device = Device::kMeta,
                             .ops = on.ops,
                             .threads = &threads,
                             .workspace = &workspace,
                             .spec = on.spec};
  nn::Model model(ctx, allocator, spec, compute, calls.max_positions, {.training = false});
  if (calls.int8_weights) round_weights(ctx, model);
  run_calls(ctx, allocator, model, calls);
  Footprint counted{workspace.peak_bytes(), allocator.counts()};
  // The workspace is there all the time, and the rest until the last call ends.
  const int64_t bytes = round_up(counted.workspace_bytes, on.align());
  counted.memory.tags[size_t(Tag::kWorkspace)].peak_bytes += bytes;
  counted.memory.total.peak_bytes += bytes;
  for (MemoryCount& count : counted.memory.tags) count.current_bytes = count.peak_bytes;
  counted.memory.total.current_bytes = counted.memory.total.peak_bytes;
  return counted;
}

void check(const ComputeFlags& flags) {
  ASHLAR_REQUIRE(std::ranges::count(kTrainDeviceNames, flags.device) == 1, kConfig,
                 "--device is {}; expected auto, cpu or gpu", flags.device);
  nn::parse_precision(flags.dtype);
}

Computing choose_computing(const ComputeFlags& flags, const ModelSpec& spec, const Calls& calls,
                           Log& log) {
  const bool is_open = flags.dtype == "auto";
  const DType on_cpu = nn::parse_precision(flags.dtype);
  if (flags.device == "cpu") return {{}, on_cpu};
  const DType on_gpu = is_open ? kernels::gpu::kAutoCompute : on_cpu;
  std::optional<DeviceSpec> gpu = kernels::gpu::choose_gpu(
      {.option = "--device",
       .choose_cpu = "--device cpu",
       .asked = flags.device == "gpu",
       .problem = on_gpu == DType::kF64 ? "--dtype is fp64, which GPUs do not compute here" : ""},
      [&](const DeviceSpec& found) {
        footprint(spec, on_gpu, calls, 1, kernels::ComputeDevice::gpu(found));
      },
      log);
  return {gpu, gpu ? on_gpu : on_cpu};
}

bool parse_int8_weights(const std::string& weights, DType compute) {
  ASHLAR_REQUIRE(weights == "full" || weights == "int8", kConfig,
                 "--weights is {}; expected full or int8", weights);
  ASHLAR_REQUIRE(weights == "full" || compute != DType::kF64, kConfig,
                 "--weights is int8 with --dtype fp64; expected auto, bf16 or fp32 with it");
  return weights == "int8";
}

namespace {

Footprint accepted_footprint(const ModelSource& source, DType compute, const Calls& calls,
                             int num_threads, const std::optional<DeviceSpec>& gpu) {
  const std::string what = fmt::format("{}: the model with room for {} tokens", source.path,
                                       format_thousands(calls.max_positions));
  Footprint needed = footprint(source.spec, compute, calls, num_threads,
                               gpu ? kernels::ComputeDevice::gpu(*gpu) : kernels::ComputeDevice{});
  if (gpu) {
    kernels::gpu::require_room(needed.memory, *gpu, what,
                               "ask for fewer tokens, or choose --device cpu");
    return needed;
  }
  const int64_t bytes = needed.memory.total.peak_bytes, there = machine_memory_bytes();
  ASHLAR_REQUIRE(bytes <= there, kMemory,
                 "{} needs {}; this machine has {} of memory; ask for fewer tokens, or take a "
                 "larger machine",
                 what, format_bytes(bytes), format_bytes(there));
  return needed;
}

}  // namespace

Runtime::Runtime(FileSystem& files, const ModelSource& source, DType compute, const Calls& calls,
                 int num_threads, const std::optional<DeviceSpec>& gpu_spec)
    : threads(num_threads),
      gpu(gpu_spec),
      planned_(accepted_footprint(source, compute, calls, threads.size(), gpu)),
      gpu_memory_(gpu ? std::make_unique<kernels::gpu::GpuMemory>(planned_.memory.total.peak_bytes)
                      : nullptr),
      device_(gpu ? kernels::ComputeDevice::gpu(*gpu, &gpu_memory_->stream())
                  : kernels::ComputeDevice{}),
      host_(Device::kCpu),
      allocator(gpu ? gpu_memory_->device() : host_),
      workspace_(allocator, planned_.workspace_bytes, Tag::kWorkspace),
      ctx{.device = allocator.device(),
          .ops = device_.ops,
          .threads = &threads,
          .workspace = &workspace_,
          .spec = device_.spec,
          .stream = device_.stream},
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
