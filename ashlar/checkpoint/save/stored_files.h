// From the pieces of a component to its files: which boxes there are, which file holds which, and
// where.  All of it is a function of what pieces are, not of where their memory is or what step it
// is, so that it is made once and serves every save of the same pieces.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/save/save_plan.h"

namespace ashlar::checkpoint {

struct StoredFile {
  FilePlan plan;               // its header is to be stamped; its sources have no addresses
  std::vector<size_t> pieces;  // of each source: which piece of the component
};

struct StoredFiles {
  std::vector<StoredFile> files;
  std::vector<IndexTensor> tensors;  // in the order of the pieces; boxes count `files` from 0
};

StoredFiles plan_files(Component component, std::span<const Piece> pieces,
                       const std::string& run_id, int writer_rank);

// The file as it is written in a step: with a new id, and sources that are the memory of the
// pieces, which of a loader's tensors is copied at once.
FilePlan stamped(const StoredFile& file, std::span<std::byte* const> memory, int64_t step,
                 const Id& attempt);

}  // namespace ashlar::checkpoint
