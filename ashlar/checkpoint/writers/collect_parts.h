// The leader's last steps before it joins the parts of all writers, on a SaveTree.
#pragma once

#include <optional>

#include "ashlar/checkpoint/writers/save_tree.h"
#include "ashlar/checkpoint/writers/writer_part.h"

namespace ashlar::checkpoint {

// The parts of all writers but the leader, with their boxes, once they are all there; nullopt
// before.  Requests boxes that `known` lacks; later calls wait for them.
// Errors  kCorrupt if there is not one part of each writer, or if one contradicts itself.
std::optional<AllParts> collect_parts(SaveTree& tree, KnownBoxes& known, const Id& attempt,
                                      int num_writers, double now);

}  // namespace ashlar::checkpoint
