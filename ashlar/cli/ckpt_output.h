// Where verbs put a model that they make: a Hugging Face directory, or a new root.
#pragma once

#include <memory>
#include <string>

#include "ashlar/checkpoint/tensor_reader.h"
#include "ashlar/checkpoint/write_model_step.h"
#include "ashlar/cli/ckpt.h"

namespace ashlar::cli {

struct HfFlags {
  std::string layout = "native", dtype = "bf16";
  double max_file_gb = 5.0;
};
void add_hf_flags(CLI::App& verb, const std::shared_ptr<HfFlags>& flags);

// The model `source`, with the weights that the reader has, and with the tokenizer beside it.
void write_hf(FileSystem& files, const std::string& out, const checkpoint::ModelSource& source,
              const checkpoint::TensorReader& reader, const HfFlags& flags, Log& log);
// The same as step 0 of a new root, with these extra files and sections of the manifest.
void write_root(FileSystem& files, const std::string& out, const checkpoint::ModelSource& source,
                const checkpoint::TensorReader& reader, std::vector<checkpoint::Blob> extra,
                std::map<std::string, std::string> sections, Log& log);

}  // namespace ashlar::cli
