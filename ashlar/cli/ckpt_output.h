// Where verbs put a model that they make: a Hugging Face directory, or a new root.
#pragma once

#include <memory>
#include <string>

#include "ashlar/checkpoint/companions.h"
#include "ashlar/checkpoint/tensor_reader.h"
#include "ashlar/checkpoint/write_model_step.h"
#include "ashlar/cli/ckpt.h"

namespace ashlar::cli {

struct HfFlags {
  std::string layout = "native", dtype = "source";
  double max_file_gb = 5.0;
};
void add_hf_flags(CLI::App& verb, const std::shared_ptr<HfFlags>& flags);

// The model `source`, with the weights that the reader has, and with its companions.  Returns the
// type of most elements.
std::string_view write_hf(FileSystem& files, const std::string& out,
                          const checkpoint::ModelSource& source,
                          const checkpoint::TensorReader& reader, const HfFlags& flags, Log& log);
// F64 where a tensor of the model has it, else F32, which holds every other type.
DType step_type(const checkpoint::StoredTensors& model);
// The same as step 0 of a new root, in this type and with these extra files.
void write_root(FileSystem& files, const std::string& out, const checkpoint::ModelSource& source,
                DType dtype, const checkpoint::TensorReader& reader,
                const checkpoint::Companions& companions, std::vector<checkpoint::Blob> extra,
                Log& log);

}  // namespace ashlar::cli
