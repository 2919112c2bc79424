// Writes one committed step that holds a model and nothing of a run, slab by slab, for import and
// average.  `init.model`, eval, score, generate and export read it.
//
// Errors   kConfig if the root already holds steps or other files, or another process writes into
//          it; kStorage "step S is not saved: ..."; those of the reader.  The files written so far
//          are removed.
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
  DType dtype = DType::kF32;                         // or F64; balancing biases are at least F32
  std::vector<checkpoint::Blob> extra = {};          // beside what describes the model
  std::map<std::string, std::string> sections = {};  // of the manifest: name -> JSON object
};

struct ModelStepStats {
  std::string directory;
  int64_t tensors = 0, bytes = 0;
};

// Writes step 0.  Each worker (num_threads 0: kMaxWorkers) takes two chunks of 4 MiB, one that is
// filled and one that is written, and the reader's memory for it.
ModelStepStats write_model_step(FileSystem& files, const std::string& root, const ModelStep& model,
                                const TensorReader& reader, int num_threads, Log& log);

}  // namespace ashlar::models
