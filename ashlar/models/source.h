// Weights to read, from wherever a user points (model_path.h): a Hugging Face directory, one step,
// or the newest good step of a checkpoint root.
//
// Errors   find_model: those of locate_model; kData of HfModel::open; kCorrupt of a step that is
//          damaged, or lacks a tensor of the model that it describes.
//          The others: kData of HfModel; kCorrupt of StepReader, which checks every chunk that it
//          reads.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ashlar/checkpoint/load/exchange.h"
#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/models/hf/names.h"
#include "ashlar/spec/model_spec.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::models {

struct ModelSource {
  std::string path;      // as the user gave it
  std::string resolved;  // step or directory that is read
  std::string origin;    // "step 365 of run 1f3a...", "Hugging Face, native layout"
  bool hugging_face = false;
  ModelSpec spec;
  // Keeps the step from being removed; the file system that it was found in outlives it.
  std::shared_ptr<const void> lease = nullptr;
  checkpoint::Reads reads = checkpoint::Reads::kCached;  // of a step, for a tool that reads it once
};

// Every byte of the step that a root stands for is read, to know that it is good.
ModelSource find_model(FileSystem& files, const std::string& path, Log& log);
// What describes that model, and nothing of its weights: config.json of a Hugging Face directory,
// or model.json of a step.  Of a root the newest step that can be opened; its tensors are not read.
struct DescribedModel {
  ModelSpec spec;
  std::string path;  // directory or step
  bool hugging_face = false;
};
// Errors   those of locate_model; kData of a config.json; kCorrupt of a step, or of all of a root.
DescribedModel describe_source(FileSystem& files, const std::string& path);
// Fills the pieces (any boxes of tensors by native name), converting types.  The names must be all
// of the model's: an empty box stands for a tensor that is not wanted here.  ranks: those that read
// a step together (step_reader.h); of a Hugging Face directory each reads alone.
void read_weights(FileSystem& files, const ModelSource& source, std::span<const Piece> pieces,
                  checkpoint::Exchange* ranks = nullptr);
// The bytes of tokenizer.model beside the weights, of a step with its checksum checked; nullopt if
// there is none.
std::optional<std::string> read_tokenizer_file(FileSystem& files, const ModelSource& source);
std::string tokenizer_path(const ModelSource& source);  // of that file, for messages

}  // namespace ashlar::models
