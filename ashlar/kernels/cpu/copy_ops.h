// The ops of kernels/copy.h on the CPU.  Callers have checked shapes and types.
#pragma once

#include "ashlar/kernels/copy.h"

namespace ashlar::kernels::cpu {

void copy(const Context&, const Matrix& from, const Matrix& to);
void add(const Context&, const Matrix& from, const Matrix& to);
void fill(const Context&, const Matrix& to, double value);
void copy_rows(const Context&, std::span<const RowPair> rows, const Matrix& from, const Matrix& to);
void copy_from_runs(const Context&, const BoxRange&, const Tensor& runs, const Tensor& packed);
void copy_to_runs(const Context&, const BoxRange&, const Tensor& packed, const Tensor& runs);
void upload(const Context&, std::span<const int32_t> from, const Tensor& to);

}  // namespace ashlar::kernels::cpu
