// The states that the checkpoint benchmark saves: global tensors, and the parts that each rank
// holds before and after.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/tensor/logical.h"

namespace ashlar::bench {

// How ranks hold tensors.
enum class WorkloadCut : uint8_t {
  kRows,     // equal ranges of dim 0
  kColumns,  // equal ranges of the last dim
  kFlat,     // equal ranges of all elements of all tensors, laid end to end
  kCopies,   // every rank holds everything
  kGrid,     // rows over `tp` ranks, whose parts are cut flat over the others
};

struct CheckpointLayout {
  WorkloadCut cut = WorkloadCut::kRows;
  int ranks = 2, tp = 1;
  std::string text() const;  // "8 ranks, tp 2 x flat 4"
};

struct CheckpointWorkload {
  std::string name, what;
  std::vector<LogicalTensor> tensors;  // fp32
  CheckpointLayout saved, other;       // other: a second layout to load into
  int64_t bytes() const;               // of the tensors, each counted once
};

// All workloads, each of about `bytes` bytes.  A workload that makes sense with a single layout is
// saved by `ranks` ranks.
std::vector<CheckpointWorkload> checkpoint_workloads(int64_t bytes, int ranks);

// One rank's part of a state, in memory of its own.
class CheckpointState {
 public:
  CheckpointState(const CheckpointWorkload& workload, const CheckpointLayout& layout, int rank);
  std::vector<Piece> pieces(bool to_write) const;
  int64_t bytes() const { return int64_t(memory_.size() * sizeof(float)); }
  // Every element is a function of its tensor and its place in it, so that all layouts agree.
  void fill();
  void clear();
  int64_t wrong_elements() const;  // elements that differ from those of fill()

 private:
  template <typename F>
  void for_each_element(F&& body) const;
  struct Held {
    Parameter parameter;
    Tensor data;
  };
  std::vector<float> memory_;
  std::vector<Held> held_;
};

}  // namespace ashlar::bench
