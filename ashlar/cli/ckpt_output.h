// The output of verbs that make a model: a Hugging Face directory, or a new root.
#pragma once

#include <memory>
#include <string>

#include "ashlar/cli/ckpt.h"
#include "ashlar/models/companions.h"
#include "ashlar/models/tensor_reader.h"
#include "ashlar/models/write_step.h"

namespace ashlar::cli {

struct HfFlags {
  std::string layout = "native", dtype = "source";
  double max_file_gb = 5.0;
};
void add_hf_flags(CLI::App& verb, const std::shared_ptr<HfFlags>& flags);

// Writes the model `source` with the reader's weights and with its companions.  Returns the type of
// most elements.
std::string_view write_hf(FileSystem& files, const std::string& out,
                          const models::ModelSource& source, const models::TensorReader& reader,
                          const HfFlags& flags, Log& log);
// F64 if a tensor of the model has it, else F32, which holds every other type.
DType step_type(const models::StoredTensors& model);
// Writes the same as step 0 of a new root, in this type and with these extra files.
void write_root(FileSystem& files, const std::string& out, const models::ModelSource& source,
                DType dtype, const models::TensorReader& reader,
                const models::Companions& companions, std::vector<checkpoint::Blob> extra,
                Log& log);

}  // namespace ashlar::cli
