// A writer's part: what it reports to the leader over the control links when its files are synced.
//
// The part is an index.bin of the writer's files, with the boxes in them if the leader does not
// have them yet.  A writer's boxes are the same from save to save.  A hash identifies them: it
// covers the boxes and their offsets in the files behind the headers, whose lengths may change.
// The leader keeps the last boxes of every writer.  Parts of a subtree travel as one message: their
// entries one after another, and the sum of their cover hashes (cover.h).
//
// Errors   kComm: the bytes are no part.  kCorrupt: a part contradicts itself.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/format/cover.h"
#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/writers/phases.h"

namespace ashlar::checkpoint {

// The part of the writer with this rank.
struct WriterPart : RankTimes {
  Id layout{};             // layout_hash of its index
  bool has_boxes = false;  // else index has no tensors
  Index index;
};

// The parts of all writers but the leader, in the order of ranks, each with its boxes.
struct AllParts {
  std::vector<WriterPart> parts;
  CoverHash cover;  // of all their boxes, as the writers computed it
};

// Identifies the boxes of an index and where they are: equal from save to save if only the data
// changed.
Id layout_hash(const Index& index);
// The sum of the cover hashes of all boxes, with the generators of the index's attempt.
CoverHash cover_of(const Index& index);
uint64_t cover_seed(const Id& attempt);

std::vector<std::byte> encode(const WriterPart& part, bool with_boxes);
std::vector<WriterPart> decode_parts(std::span<const std::byte> entries);

// The boxes that the leader knows, by rank.
class KnownBoxes {
 public:
  // The ranks whose boxes are needed: the part has none, and the known ones are not the same.
  std::vector<int> lacking(std::span<const WriterPart> parts) const;
  // Gives every part its boxes, and keeps those that are new.  lacking() must be empty.
  void complete(std::vector<WriterPart>& parts);

 private:
  struct Boxes {
    Id layout;
    std::vector<IndexTensor> tensors;  // byte offsets from the beginning of the data
  };
  std::map<int, Boxes> of_rank_;
};

}  // namespace ashlar::checkpoint
