// Copying, adding, scaling and setting elements of any meaning: halos, caches, shards, token ids.
// Code outside of kernels/ moves memory of tensors only through these (scripts/check_memory.sh),
// so that a dry run counts the bytes moved and another device can move them.
//
// Shapes   matrices of equal rows and cols; tensors of equal numel, whatever their shapes.
// Types    copy, copy_rows: both of one type, or each F64, F32 or BF16 (to nearest even).
//          add: both F64, F32 or I64, or F32 to BF16 (the sum is rounded).  fill: 0 in every type,
//          else F64 or F32.  scale: F64, F32 or BF16 (the product is rounded).
//          copy_from_runs, copy_to_runs: both of one type.  upload, download: I32, for download
//          I64 too; numbers: F32 or F64.
// Limits   from and to share no element; no two pairs of copy_rows write one row.
// Cost     reads and writes each element once (add reads `to` too); add, scale: 1 flop an element.
// Threads  tasks of 256 KiB; results do not depend on the number of threads.
#pragma once

#include <span>

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels {

void copy(const Context&, const Matrix& from, const Matrix& to);
void copy(const Context&, const Tensor& from, const Tensor& to);
void add(const Context&, const Matrix& from, const Matrix& to);  // to += from
void add(const Context&, const Tensor& from, const Tensor& to);
void scale(const Context&, const Tensor& x, double factor);  // x *= factor
void fill(const Context&, const Matrix& to, double value);
void fill(const Context&, const Tensor& to, double value);

struct RowPair {
  int64_t from, to;  // rows
};
// Copies row by row.  cols are equal; rows of `to` that are in no pair keep their contents.
void copy_rows(const Context&, std::span<const RowPair> rows, const Matrix& from, const Matrix& to);

// Elements [begin, begin + length) of a box of a tensor, counted row-major in the box.  In memory
// that holds the tensor's row-major elements from number `first` on, they lie in runs.
struct BoxRange {
  const Shape& tensor;
  const Box& box;
  int64_t begin, length, first;
};
// Copy between that memory and one in which the elements lie one after another.
void copy_from_runs(const Context&, const BoxRange&, const Tensor& runs, const Tensor& packed);
void copy_to_runs(const Context&, const BoxRange&, const Tensor& packed, const Tensor& runs);

// Copies a list of the host, which is read before the call returns.
void upload(const Context&, std::span<const int32_t> from, const Tensor& to);
void upload(const Context&, std::span<const double> from, const Tensor& to);
// Into a list of the host, which has the elements when the call returns: it waits for what computes
// them.  On meta the list stays as it is, and may be of any length.
void download(const Context&, const Tensor& from, std::span<int32_t> to);
void download(const Context&, const Tensor& from, std::span<int64_t> to);
void download(const Context&, const Tensor& from, std::span<double> to);
// Several downloads that wait together.
struct Download {
  Tensor from;
  std::span<double> reals = {};    // where it goes: one of the two
  std::span<int64_t> counts = {};  // of I64
};
void download(const Context&, std::span<const Download> list);

}  // namespace ashlar::kernels
