// What the benchmark of checkpoints stands beside: the disk itself, and a plain synchronous save.
//
// Raw     one file a writer of so many bytes, by calls of 4 MiB, four at once, that pass by the
//         system's memory; with the same durability as the save.
// Plain   the customary synchronous checkpoint, competently written: the plans of all ranks meet at
//         rank 0, which gives what several ranks hold, tensor by tensor, to the rank with the least
//         so far; each rank copies its tensors into memory of the host, then writes one file of
//         them, one tensor after another, and rank 0 a list of all.  Training stands still
//         throughout.  A load reads each stored tensor that it needs any part of, whole, and copies
//         that part; each rank does so for itself.
#pragma once

#include <string>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::bench {

// A file system on which nothing is waited for until it is on disk.
std::unique_ptr<FileSystem> without_sync(FileSystem& files);

// Takes the pages of all files below a directory out of memory, as far as they are on disk.
void drop_cached(const std::string& directory);

// Of this rank.  The directory is there and empty.
void raw_write(FileSystem& files, const std::string& directory, int rank, int64_t bytes);
void raw_read(FileSystem& files, const std::string& directory, int rank, int64_t bytes);

// Every rank calls these; pieces: all that the rank holds, copies too.
void plain_save(FileSystem& files, const std::string& directory, comm::Group& ranks,
                const std::vector<Piece>& pieces);
void plain_load(FileSystem& files, const std::string& directory, const std::vector<Piece>& pieces);

}  // namespace ashlar::bench
