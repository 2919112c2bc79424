// What one writer of a save will write: every file's header and byte sources, the index and the
// manifest.  A pure function of the request (file ids apart); nothing is read from the tensors yet.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/index.h"
#include "ashlar/checkpoint/manifest.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::checkpoint {

// A file under extra/: name as is_plain_name allows.
struct Blob {
  std::string name;
  std::string bytes;
  bool json = false;
};

struct SaveRequest {
  int64_t step = 0;
  // Names this try to save the step: the same for all its writers, never used before (random_id).
  // Zero: drawn here, if there is one writer.
  Id attempt{};
  // Boxes of logical tensors; those of all writers together tile every tensor they name.  Optimizer
  // states are named optim.<state>.<parameter>.  Model and optimizer bytes must stay as they are
  // until before_update() returns; loader tensors and everything below are copied inside save(),
  // and only writer 0 has any.
  std::span<const Piece> model, optim, loader;
  // The tensors that model and optim of all writers together must be, no more and no less; writer 0
  // tells.  If it is empty, a tensor that nobody has goes unseen until a strict load.
  std::span<const LogicalTensor> whole;
  std::vector<Blob> extra;                      // trainer.json, recipe, tokenizer, ...
  std::map<std::string, std::string> sections;  // of the manifest: name -> JSON object
  std::map<std::string, std::string> aliases;   // tied name -> the tensor that is stored
  // Brings to disk what must be there before the step exists; writer 0's.  It is called on a thread
  // of the checkpointer's when all data are written; what it throws fails the save.
  std::function<void()> before_commit;
};

struct FilePlan {
  IndexFile file;    // chunk_crcs are filled as chunks are hashed
  std::string head;  // header, or the whole file where the bytes were copied
  struct Source {
    const std::byte* data;
    int64_t bytes;
  };
  std::vector<Source> sources;  // follow the head in this order
};

struct SavePlan {
  int64_t step = 0;
  int writer = 1, num_writers = 1;  // from 1, as in names of files
  Id attempt{};
  std::string run_id;
  std::vector<FilePlan> files;
  Index index;  // without files: join_files() adds them when their checksums are known
  Manifest manifest;
  std::vector<LogicalTensor> whole;        // as the request has it
  int64_t bytes = 0, bytes_to_expect = 0;  // of this writer's files; of all writers', if it is told
};

// Writer `writer` of num_writers, counted from 1.
// Errors  kCorrupt if the boxes of a single writer do not tile a tensor (names tensor and element),
//         kConfig if two extra files share a name.
SavePlan make_save_plan(const SaveRequest& request, const std::string& run_id, const Id& attempt,
                        int writer, int num_writers);

// Adds the files, with their checksums, to the index.  After the last chunk was written.
void join_files(SavePlan& plan);
// The index has all boxes: kCorrupt unless they tile every tensor (names tensor and element).
void check_cover(const SavePlan& plan);
// The index has all files and boxes: sorts boxes, adds parents and aliases, fills the manifest.
// kCorrupt unless the tensors are those that make the state whole.
void complete(SavePlan& plan);

// Copies bytes [offset, offset + out.size()) of the planned file.
void fill_from_plan(const FilePlan& plan, int64_t offset, std::span<std::byte> out);

}  // namespace ashlar::checkpoint
