// The files of a component, planned from its pieces: which boxes there are, and which file holds
// which box, and where.  The plan does not depend on the memory of the pieces or on the step, so
// that it is made once and serves every save of the same pieces.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/save/save_plan.h"

namespace ashlar::checkpoint {

struct StoredFile {
  FilePlan plan;               // its header is to be stamped; its sources have no addresses
  std::vector<size_t> pieces;  // for each source, the number of its piece
};

struct StoredFiles {
  std::vector<StoredFile> files;
  std::vector<IndexTensor> tensors;  // in the order of the pieces; boxes count `files` from 0
};

StoredFiles plan_files(Component component, std::span<const Piece> pieces,
                       const std::string& run_id, int writer_rank);

// The file as it is written in a step: with a new id, and the memory of the pieces as sources.  The
// memory of a loader's tensors is copied at once.
FilePlan stamped(const StoredFile& file, std::span<std::byte* const> memory, int64_t step,
                 const Id& attempt);

}  // namespace ashlar::checkpoint
