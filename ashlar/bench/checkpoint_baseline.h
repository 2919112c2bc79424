// The baselines of the checkpoint benchmark: the disk itself, and a plain synchronous save.
//
// Raw     one file a writer, by calls of 4 MiB, four at once, that bypass the page cache; with the
//         same durability as the save.
// Plain   the usual synchronous checkpoint, competently written.  Rank 0 collects the plans of all
//         ranks and assigns each tensor that several ranks hold to the rank with the least so far.
//         Each rank copies its tensors into host memory, then writes them into one file, one tensor
//         after another, and rank 0 writes a list of all.  Training is stopped throughout.  A load
//         reads each stored tensor of which it needs a part, whole, and copies that part; each rank
//         does so for itself.
#pragma once

#include <string>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::bench {

// A file system whose sync() returns at once.
std::unique_ptr<FileSystem> without_sync(FileSystem& files);

// Drops the cached pages of all files below a directory, as far as they are on disk.
void drop_cached(const std::string& directory);

// This rank's part.  The directory exists and is empty.
void raw_write(FileSystem& files, const std::string& directory, int rank, int64_t bytes);
void raw_read(FileSystem& files, const std::string& directory, int rank, int64_t bytes);

// Every rank calls these.  pieces: all that the rank holds, including copies.
void plain_save(FileSystem& files, const std::string& directory, comm::Group& ranks,
                const std::vector<Piece>& pieces);
void plain_load(FileSystem& files, const std::string& directory, const std::vector<Piece>& pieces);

}  // namespace ashlar::bench
