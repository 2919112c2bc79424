// Products of the small matrices of a tile, in the inner loops of gemm/ (float), or in plain loops
// (double, for tests of the algorithm).
//
// An operand is prepared in a slot, memory of its own, and is good until the slot is used again.  A
// product writes whole panels: rows of c must have room for its columns rounded up to kPad.
#pragma once

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/gemm/engine.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels::cpu {

inline constexpr int64_t kPad = 32;  // the widest panel, and what AMX pads sums to

inline int64_t padded(int64_t columns) {
  return round_up(columns, kPad);
}

template <typename Real>
Matrix view(const Real* data, int64_t rows, int64_t cols, int64_t stride) {
  return {reinterpret_cast<std::byte*>(const_cast<Real*>(data)), dtype_of<Real>, rows, cols,
          stride};
}

// The part of a product that is not needed or known to be zero, and is left out in whole tiles.
enum class Skip {
  kNothing,
  kAboveC,  // elements of c right of its diagonal: they may be left as they are
  kAboveA,  // elements of A right of its diagonal are 0
  kBelowA,  // elements of A left of its diagonal are 0
};

enum class Slot { kLeft, kRight, kSecondRight };
inline constexpr int64_t kNumSlots = 3;

template <typename Real>
class Products;

template <>
class Products<double> {
 public:
  struct Operand {
    const double* data;
    int64_t rows, cols, row_stride, col_stride;
  };
  using Left = Operand;
  using Right = Operand;
  static int64_t slot_bytes(const gemm::Engine*, int64_t) { return 0; }
  Products(const gemm::Engine*, std::byte*, int64_t) {}

  Left left(Slot, const Matrix& m) const { return operand(m); }
  Left left_transposed(Slot, const Matrix& m) const { return transposed(m); }
  Right right(Slot, const Matrix& m) const { return operand(m); }
  Right right_transposed(Slot, const Matrix& m) const { return transposed(m); }
  void multiply(const Left& a, const Right& b, double* c, int64_t stride, bool accumulate,
                Skip skip = Skip::kNothing) const;

 private:
  static Operand operand(const Matrix& m);
  static Operand transposed(const Matrix& m);
};

template <>
class Products<float> {
 public:
  struct Left {
    gemm::Left rows;
    int64_t count, num_k;
    int64_t group, group_bytes;  // rows in a group, and bytes from one group to the next
  };
  struct Right {
    const std::byte* panels;
    int64_t num_k, cols;
  };
  // Bytes of a slot for operands with at most `largest` rows and columns.
  static int64_t slot_bytes(const gemm::Engine* engine, int64_t largest);
  Products(const gemm::Engine* engine, std::byte* slots, int64_t slot_bytes)
      : e_(*engine), slots_(slots), slot_bytes_(slot_bytes) {
    if (e_.enter) e_.enter();
  }
  ~Products() {
    if (e_.leave) e_.leave();
  }
  Products(const Products&) = delete;

  Left left(Slot, const Matrix& m) const;
  Left left_transposed(Slot, const Matrix& m) const;
  Right right(Slot, const Matrix& m) const;
  Right right_transposed(Slot, const Matrix& m) const;
  // c [a.count, b.cols] = A B, or += A B.
  void multiply(const Left& a, const Right& b, float* c, int64_t stride, bool accumulate,
                Skip skip = Skip::kNothing) const;

 private:
  std::byte* memory(Slot slot) const { return slots_ + int64_t(slot) * slot_bytes_; }
  const gemm::Engine& e_;
  std::byte* slots_;
  int64_t slot_bytes_;
};

}  // namespace ashlar::kernels::cpu
