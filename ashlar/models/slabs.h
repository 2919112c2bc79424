// Cuts large tensors and packs small ones into slabs, which several threads read and work on.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/core/function_ref.h"
#include "ashlar/core/log.h"
#include "ashlar/models/tensor_reader.h"

namespace ashlar::models {

inline constexpr int64_t kSlabElements = 1 << 20;  // the most of one slab: 4 MiB of F32
inline constexpr int kMaxWorkers = 8;              // slabs at a time, each with memory of its own

// Elements [first, first + count) of the row-major whole of tensor number `tensor` of a list.
struct TensorRange {
  size_t tensor;
  int64_t first, count;
};
using Slab = std::vector<TensorRange>;

// The ranges as slabs, in the reader's order; a large one is cut where the file's chunks end.
// Empty ranges are left out.
std::vector<Slab> cut_into_slabs(std::span<const LogicalTensor> tensors,
                                 std::span<const TensorRange> ranges, const TensorReader& reader);
int64_t num_elements(const Slab& slab);

// Adds the boxes that make up the range, with their elements one after another in data, which has
// their type.
void add_pieces(const LogicalTensor& logical, const TensorRange& range, const Tensor& data,
                std::vector<Piece>& pieces);

// The number of threads that work on slabs, at most kMaxWorkers.  0 gives that many, even on few
// CPUs, because a thread waits for the disk most of the time.
int num_workers(int num_threads);

// Runs body(slab, worker) for all slabs: worker below num_workers().  Progress counts elements.
void for_each_slab(std::span<const Slab> slabs, int num_threads, Log* log, const std::string& label,
                   function_ref<void(const Slab& slab, int worker)> body);

}  // namespace ashlar::models
