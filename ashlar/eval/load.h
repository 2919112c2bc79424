// A model to use, from wherever --model points: a Hugging Face directory, a checkpoint root (its
// newest good step) or one step.  Weights, shape and, where it is there, the tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "ashlar/checkpoint/model_options.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/nn/model.h"

namespace ashlar::eval {

struct ModelSource {
  std::string path;      // as the user gave it
  std::string resolved;  // step or directory that is read
  bool hugging_face = false;
  ModelSpec spec;
  DType stored = DType::kF32;  // of the weights on disk
};

// kConfig if path is none of the three.
ModelSource find_model(FileSystem& files, const std::string& path, Log& log);
// Fills the pieces (whole tensors by native name), converting types.
void read_weights(FileSystem& files, const ModelSource& source, std::span<const Piece> pieces);
// The bytes of tokenizer.model beside the weights, of a step with its checksum checked; nullopt if there
// is none.
std::optional<std::string> read_tokenizer_file(FileSystem& files, const ModelSource& source);
// The tokenizer beside the weights; kConfig, naming where it was looked for, if there is none.
std::unique_ptr<data::Tokenizer> read_tokenizer(FileSystem& files, const ModelSource& source);

// Everything that a subcommand needs to run a model forward.
class Runtime {
 public:
  // max_positions: longest document; max_call: most tokens of one forward call; num_threads 0: one
  // per CPU.
  Runtime(FileSystem& files, const ModelSource& source, DType compute, int64_t max_positions,
          int64_t max_call, int num_threads);
  Allocator allocator;
  Threads threads;

 private:
  Arena workspace_;

 public:
  kernels::Context ctx;
  nn::Model model;
};

// Workspace that one forward pass over num_tokens takes, counted on the meta device.
int64_t forward_workspace_bytes(const ModelSpec& spec, DType compute, int64_t num_tokens);

// "auto" -> bf16 where this CPU multiplies it; kConfig for an unknown name.
DType parse_precision(const std::string& name);

}  // namespace ashlar::eval
