// Weights to read, from the path that a user names (models/path.h): a Hugging Face directory, one
// step, or the newest good step of a checkpoint root.
//
// Errors   find_model: those of locate_model; kData of HfModel::open; kCorrupt for a step that is
//          damaged, or lacks a tensor of the model that it describes; kConfig where the model that
//          a step builds on is gone or another one.
//          The others: kData of HfModel; kCorrupt of StepReader, which checks every chunk that it
//          reads.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "ashlar/checkpoint/load/load_ranks.h"
#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/models/hf/names.h"
#include "ashlar/spec/model_spec.h"
#include "ashlar/spec/tune_spec.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::models {

struct TunedFrom;

struct ModelSource {
  std::string path;      // as the user gave it
  std::string resolved;  // the step or directory that is read
  std::string origin;    // "step 365 of run 1f3a...", "Hugging Face, native layout"
  bool hugging_face = false;
  ModelSpec spec;
  // Keeps the step from being removed; its file system must outlive this.
  std::shared_ptr<const void> lease = nullptr;
  checkpoint::Reads reads = checkpoint::Reads::kCached;  // how a step is read
  // Set for a step that holds only what was trained; reading such a source gives the whole model.
  std::shared_ptr<const TunedFrom> tuned = nullptr;
};
// The model that a step builds on (base_model.h), and the adapters that the step adds to it.
struct TunedFrom {
  ModelSource base;
  LoraSpec lora{};
};

// Reads every byte of a root's newest step, to know that the step is good.
ModelSource find_model(FileSystem& files, const std::string& path, Log& log);
// The model by its description alone, config.json of a Hugging Face directory or model.json of a
// step; tensors are not read.  A root stands for its newest step that can be opened.
struct DescribedModel {
  ModelSpec spec;
  std::string path;  // directory or step
  bool hugging_face = false;
};
// Errors   those of locate_model; kData for a config.json; kCorrupt for a step, or for all of a
// root.
DescribedModel describe_source(FileSystem& files, const std::string& path);
// Fills the pieces (any boxes of tensors by native name), converting types.  They must name every
// tensor of the model: an empty box stands for one that is not wanted here.  ranks: the ranks that
// read a step together (step_reader.h); each reads a Hugging Face directory, and a step that builds
// on another model, by itself.
void read_weights(FileSystem& files, const ModelSource& source, std::span<const Piece> pieces,
                  checkpoint::LoadRanks* ranks = nullptr);
// The files beside the weights that say how text becomes ids, by name: tokenizer.model or, if there
// is none, tokenizer.json with tokenizer_config.json and special_tokens_map.json; none of them if
// both are missing.  A step's are compared with their checksums.
std::map<std::string, std::string> read_tokenizer_files(FileSystem& files,
                                                        const ModelSource& source);
// Their directory, for messages.
std::string tokenizer_place(const ModelSource& source);

}  // namespace ashlar::models
