// Loads the model that --model names (models/source.h), with its tokenizer if there is one, and
// with everything that running it forward needs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/data/text_files.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/models/companions.h"
#include "ashlar/models/source.h"
#include "ashlar/nn/model.h"

namespace ashlar::eval {

using models::find_model;
using models::ModelSource;

// The tokenizer beside the weights, tokenizer.model or else tokenizer.json; null if there is none.
std::unique_ptr<data::Tokenizer> find_tokenizer(FileSystem& files, const ModelSource& source);
// The same, for work that needs no text (readable_tokenizer_among).
std::unique_ptr<data::Tokenizer> find_readable_tokenizer(FileSystem& files,
                                                         const ModelSource& source, Log& log);
// The one beside the weights; kConfig if there is none.
std::unique_ptr<data::Tokenizer> read_tokenizer(FileSystem& files, const ModelSource& source);
// How the model's texts begin, and the other settings of texts in the files beside its weights.
data::TextFiles read_text_files(const models::Companions& companions, const ModelSource& source,
                                const data::Tokenizer* tokenizer);
// The ids of a text that the model reads: those of the text, after the id that begins the model's
// texts, if there is one.  Names of added tokens in the text are ids if the tokenizer reads them
// so, else plain characters.
std::vector<int32_t> encode_text(std::string_view text, const data::Tokenizer& tokenizer,
                                 const data::TextFiles& files);
// kData for an id outside the model's vocabulary.
void check_ids(std::span<const int32_t> ids, const ModelSource& source);

// The longest sequence of any model, which keeps every product of sizes inside an int64_t.
inline constexpr int64_t kMaxTokens = int64_t{1} << 30;

// The calls of a model, as far as its memory depends on them.
struct Calls {
  int64_t max_positions = 0;  // longest document
  int64_t max_call = 0;       // the most tokens of one forward call
  bool cached = false;        // the calls continue documents through a Decoder
  int64_t num_places = 1;     // number of them at a time
  int64_t first_tokens = 0;   // tokens of it that come before others follow one by one; 0: all
  bool int8_weights = false;  // products read weights of 8 bits (kernels/int8.h)
  bool all_logits = false;    // not cached: score() keeps the logits of all tokens
};

// The memory of a model that runs forward, counted on the meta device.
struct Footprint {
  int64_t workspace_bytes = 0;  // of the largest call
  MemoryCounts memory;          // with weights, tables, caches, activations and that workspace
};
// on: the device that computes.  kDevice if a GPU lacks functions that the calls need.
Footprint footprint(const ModelSpec& spec, DType compute, const Calls& calls, int num_threads = 1,
                    const kernels::ComputeDevice& on = {});

// The flags that choose what computes a model.
struct ComputeFlags {
  std::string device = "auto", dtype = "auto";
  int threads = 0;  // 0: one per CPU
};
struct Computing {
  std::optional<DeviceSpec> gpu;  // absent: the CPU
  DType compute = DType::kF32;    // of products
};
// kConfig for a word that is not known.
void check(const ComputeFlags& flags);
// Chooses device and type on this machine, for these calls of a model.
// log: told which device, if the flags leave it open and there is a GPU.
// Errors  kConfig for fp64 on a GPU; kDevice for a GPU that is not there or lacks functions.
Computing choose_computing(const ComputeFlags& flags, const ModelSpec& spec, const Calls& calls,
                           Log& log);

// kConfig for a word other than "full", false, and "int8", true; for int8 with products in fp64.
bool parse_int8_weights(const std::string& weights, DType compute);

// Everything that a subcommand needs to run a model forward.
//
// Memory  of the host, or one range of the GPU's that holds the footprint and no more.
// Errors  kMemory, before any is taken, if the footprint exceeds the memory of the machine or the
//         GPU; kNumeric, naming the first, for a weight that is not finite; those of read_weights.
class Runtime {
 public:
  // num_threads 0: one per CPU.  gpu absent: the CPU computes.
  Runtime(FileSystem& files, const ModelSource& source, DType compute, const Calls& calls,
          int num_threads, const std::optional<DeviceSpec>& gpu = {});
  Runtime(FileSystem& files, const ModelSource& source, const Computing& computing,
          const Calls& calls, int num_threads)
      : Runtime(files, source, computing.compute, calls, num_threads, computing.gpu) {}
  // Computes on what choose_computing() chooses, and has its errors too.
  Runtime(FileSystem& files, const ModelSource& source, const ComputeFlags& flags,
          const Calls& calls, Log& log)
      : Runtime(files, source, choose_computing(flags, source.spec, calls, log), calls,
                flags.threads) {}
  Threads threads;
  const std::optional<DeviceSpec> gpu;

 private:
  const Footprint planned_;
  std::unique_ptr<kernels::gpu::GpuMemory> gpu_memory_;  // null: the CPU computes
  const kernels::ComputeDevice device_;
  Allocator host_;

 public:
  Allocator& allocator;  // of the device

 private:
  Arena workspace_;

 public:
  kernels::Context ctx;
  nn::Model model;
};

// Warns if a document of num_tokens is longer than the model is meant for.
void warn_past_positions(const ModelSource& source, int64_t num_tokens, Log& log);

}  // namespace ashlar::eval
