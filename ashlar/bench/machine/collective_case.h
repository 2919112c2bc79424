// One collective of one type and size on this rank: its tensors, the call, and the check.
#pragma once

#include <vector>

#include "ashlar/bench/machine/collective_data.h"
#include "ashlar/comm/group.h"
#include "ashlar/machine/laws.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::bench {

class CollectiveCase {
 public:
  static bool exists(machine::CollectiveOp op, bool in_place);
  static bool has_root(machine::CollectiveOp op);

  // bytes: of the whole array, from which equal parts of the ranks are rounded down to 16 bytes.
  // offset: elements by which the tensors begin behind aligned memory.
  CollectiveCase(Allocator& allocator, comm::Group& group, machine::CollectiveOp op, DType dtype,
                 int64_t bytes, bool in_place, int root, int64_t offset = 0);

  void fill(uint64_t seed);       // inputs; outputs get other data
  void run() { start().wait(); }  // calls the operation and waits for it
  comm::Work start();
  int64_t num_wrong(uint64_t seed) const;  // of this rank's elements, after one run of the fill

  machine::CollectiveOp op() const { return op_; }
  comm::Group& group() const { return group_; }
  int64_t bytes() const { return bytes_; }  // S, which may be less than asked for
  int64_t count() const { return count_; }  // elements that a rank gives

 private:
  // Parts of all_to_all from rank `from` to rank `to`, and where they begin within the sender's.
  int64_t part_of(int from, int to) const;
  int64_t begin_of(int from, int to) const;
  Tensor slot(const Tensor& whole, int64_t rank) const;  // its part, of count_ elements

  comm::Group& group_;
  const machine::CollectiveOp op_;
  const bool in_place_;
  const int root_;
  int64_t bytes_ = 0, count_ = 0;
  OwnedTensor owned_in_, owned_out_;
  Tensor in_, out_;
  std::vector<int64_t> send_counts_, receive_counts_;
  std::vector<comm::Transfer> sends_, receives_;
};

}  // namespace ashlar::bench
