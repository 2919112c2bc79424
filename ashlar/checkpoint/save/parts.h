// The files by which the writers of one step report to their leader in the attempt's directory, if
// there is no control channel (save_channel.h):
//
//   part-00002.bin     in the format of index.bin: the files of writer number 2 and their boxes.
//                      All of these files are synced before this name appears.
//   part-00002.error   the reason, as text, why writer number 2 failed
//
// Both are written aside, synced and renamed, so that a file with this name is whole.  The leader
// removes them before it commits.
//
// Errors  kStorage; the leader's errors name writers by their numbers (writer_number).
#pragma once

#include <string>
#include <vector>

#include "ashlar/checkpoint/save/save_plan.h"
#include "ashlar/checkpoint/writers/writer_part.h"
#include "ashlar/core/files.h"

namespace ashlar::checkpoint {

// The ranks of the writers whose parts are not there yet, in order.  kStorage "writer 2 of 3: TEXT"
// if one of them failed.
std::vector<int> missing_writers(FileSystem& files, const std::string& directory,
                                 const SavePlan& plan);

// Joins all parts into the index of the leader's plan, whose own files are joined already.
// kCorrupt if a part is damaged, of another attempt, or contradicts another one; kStorage if one of
// its files cannot be seen from here with its size.
void merge_parts(FileSystem& files, const std::string& directory, SavePlan& plan);
// The same with parts that came over the control channel: each writer has checked the sizes of its
// own files.
void merge_parts(std::vector<WriterPart> parts, SavePlan& plan);
void remove_parts(FileSystem& files, const std::string& directory, const SavePlan& plan);

}  // namespace ashlar::checkpoint
