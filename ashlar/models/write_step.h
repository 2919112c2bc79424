// One committed step that holds a model and nothing of a run, written slab by slab: what import
// and average make.  `init.model`, eval, score, generate and export read it.
//
// Errors   kConfig if the root holds steps or files of others already, or another process writes
//          into it; kStorage "step S is not saved: ..."; those of the reader.  What was written is
//          removed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ashlar/checkpoint/save/save_plan.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/models/tensor_reader.h"

namespace ashlar::models {

struct ModelStep {
  ModelSpec spec;
  DType dtype = DType::kF32;                         // or F64; balancing biases are never less
  std::vector<checkpoint::Blob> extra = {};          // beside what describes the model
  std::map<std::string, std::string> sections = {};  // of the manifest: name -> JSON object
};

struct ModelStepStats {
  std::string directory;
  int64_t tensors = 0, bytes = 0;
};

// Step 0.  In memory are two chunks of 4 MiB for each worker (num_threads 0: kMaxWorkers),
// one that is filled and one that is written, with what the reader takes for it.
ModelStepStats write_model_step(FileSystem& files, const std::string& root, const ModelStep& model,
                                const TensorReader& reader, int num_threads, Log& log);

}  // namespace ashlar::models
