// A model to use, from wherever --model points (models/source.h): with its tokenizer,
// where it is there, and with what it takes to run it forward.
#pragma once

#include <memory>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/data/text_files.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/models/companions.h"
#include "ashlar/models/source.h"
#include "ashlar/nn/model.h"

namespace ashlar::eval {

using models::ModelSource;

// models::find_model of ZAYA1.
ModelSource find_model(FileSystem& files, const std::string& path, Log& log);
// The tokenizer beside the weights; null if there is none.
std::unique_ptr<data::Tokenizer> find_tokenizer(FileSystem& files, const ModelSource& source);
// The same; kConfig, naming where it was looked for, if there is none.
std::unique_ptr<data::Tokenizer> read_tokenizer(FileSystem& files, const ModelSource& source);
// How texts of the model begin, and what else the files beside its weights say of them.
data::TextFiles read_text_files(const models::Companions& companions, const ModelSource& source,
                                const data::Tokenizer* tokenizer);
// The ids of a text that the model is to read: the text's own, behind the one that begins texts
// where the model has it so.  Added tokens in the text are characters.
std::vector<int32_t> encode_text(std::string_view text, const data::Tokenizer& tokenizer,
                                 const data::TextFiles& files);
// kData for an id outside the model's vocabulary.
void check_ids(std::span<const int32_t> ids, const ModelSource& source);

// The longest sequence, whatever the model: keeps every product of sizes inside an int64_t.
inline constexpr int64_t kMaxTokens = int64_t{1} << 30;

// How a model is called, as far as memory depends on it.
struct Calls {
  int64_t max_positions = 0;  // longest document
  int64_t max_call = 0;       // most tokens of one forward call
  bool cached = false;        // the calls continue one document through a DecodeCache
  int64_t first_tokens = 0;   // of that document, at hand before others follow one by one; 0: all
};

// Memory of a model that runs forward, counted on the meta device.
struct Footprint {
  int64_t workspace_bytes = 0;  // of the largest call
  int64_t total_bytes = 0;      // with weights, tables, caches, activations
};
Footprint footprint(const ModelSpec& spec, DType compute, const Calls& calls, int num_threads = 1);

// Everything that a subcommand needs to run a model forward.
//
// Errors  kMemory where the footprint passes the memory of the machine, before any is taken;
//         kNumeric for a weight that is not finite, naming the first; those of read_weights.
class Runtime {
 public:
  // num_threads 0: one per CPU.
  Runtime(FileSystem& files, const ModelSource& source, DType compute, const Calls& calls,
          int num_threads);
  Allocator allocator;
  Threads threads;

 private:
  Arena workspace_;

 public:
  kernels::Context ctx;
  nn::Model model;
};

// Says that a document of so many tokens is longer than the model is meant for, if it is.
void warn_past_positions(const ModelSource& source, int64_t num_tokens, Log& log);

}  // namespace ashlar::eval
