// What one save will write: every file's header and byte sources, the index and the manifest.
// A pure function of the request (file ids apart); nothing is read from the tensors yet.
#pragma once

#include <cstdint>
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
  // Boxes of logical tensors; together they tile every tensor they name.  Optimizer states are
  // named optim.<state>.<parameter>.  Model and optimizer bytes must stay as they are until
  // before_update() returns; loader tensors and everything below are copied inside save().
  std::span<const Piece> model, optim, loader;
  std::vector<Blob> extra;                      // trainer.json, recipe, tokenizer, ...
  std::map<std::string, std::string> sections;  // of the manifest: name -> JSON object
  std::map<std::string, std::string> aliases;   // tied name -> the tensor that is stored
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
  Id attempt{};
  std::string run_id;
  std::vector<FilePlan> files;
  Index index;  // without files: they are joined when their checksums are known
  Manifest manifest;
  int64_t bytes = 0;  // of all files
};

// Errors  kCorrupt if boxes do not tile a tensor (names tensor and element), kConfig if two extra
//         files share a name.
SavePlan make_save_plan(const SaveRequest& request, const std::string& run_id, const Id& attempt);

// Copies bytes [offset, offset + out.size()) of the planned file.
void fill_from_plan(const FilePlan& plan, int64_t offset, std::span<std::byte> out);

}  // namespace ashlar::checkpoint
