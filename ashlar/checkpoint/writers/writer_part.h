// What a writer tells the leader over the control links when its files are synced.
//
// The part is an index.bin of the writer's files, with the boxes in them where the leader does not
// have them yet.  The boxes of a writer are the same from save to save, so that they are named by a
// hash: what they are, and where in their files behind the headers, whose lengths may change.  The
// leader keeps the boxes that it was told last, by writer.  Parts of a subtree travel as one
// message: their entries one after another, and the sum of their cover hashes (cover.h).
//
// Errors   kComm: bytes that are no part.  kCorrupt: a part that is at odds with itself.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/format/cover.h"
#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/writers/phases.h"

namespace ashlar::checkpoint {

// Of the writer of its rank.
struct WriterPart : RankTimes {
  Id layout{};             // layout_hash of its index
  bool has_boxes = false;  // else index has no tensors
  Index index;
};

// The parts of all writers but the leader, in their order, each with its boxes.
struct AllParts {
  std::vector<WriterPart> parts;
  CoverHash cover;  // of all their boxes, as they say
};

// Names the boxes of an index and their places: equal from save to save if nothing but the data
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
  // The ranks whose boxes are needed: the part has none, and others are known or none at all.
  std::vector<int> lacking(std::span<const WriterPart> parts) const;
  // Gives every part its boxes, and keeps those that are new.  None may be lacking.
  void complete(std::vector<WriterPart>& parts);

 private:
  struct Boxes {
    Id layout;
    std::vector<IndexTensor> tensors;  // byte offsets from the beginning of the data
  };
  std::map<int, Boxes> of_rank_;
};

}  // namespace ashlar::checkpoint
