// Shared by the bandwidth-bound kernels: tasks of 64 tokens, parameter gradients summed in a fixed
// order, and elements read and written in whatever type a tensor has.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "ashlar/core/error.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels::cpu {

inline constexpr int64_t kTokensPerTask = 64;

// Elements of a tensor or matrix as T (float or double); stored as F64, F32 or BF16.  For the plain
// references: one source for every mixture of types.
template <typename T>
class Cells {
 public:
  Cells() = default;  // absent
  Cells(const Tensor& t) : data_(t ? t.data : nullptr), dtype_(t.dtype) {}
  Cells(const Matrix& m) : data_(m.data), dtype_(m.dtype) {}
  explicit operator bool() const { return data_ != nullptr; }  // false: absent

  T operator[](int64_t i) const {
    switch (dtype_) {
      case DType::kF64:
        return T(reinterpret_cast<const double*>(data_)[i]);
      case DType::kBF16:
        return T(float(reinterpret_cast<const bf16*>(data_)[i]));
      default:
        return T(reinterpret_cast<const float*>(data_)[i]);
    }
  }
  void set(int64_t i, T value) const {
    switch (dtype_) {
      case DType::kF64:
        reinterpret_cast<double*>(data_)[i] = double(value);
        break;
      case DType::kBF16:
        reinterpret_cast<bf16*>(data_)[i] = bf16(float(value));
        break;
      default:
        reinterpret_cast<float*>(data_)[i] = float(value);
    }
  }
  void add(int64_t i, T value) const { set(i, (*this)[i] + value); }

  std::byte* data() const { return data_; }
  DType dtype() const { return dtype_; }

 private:
  std::byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
};

// Elements of an I32 tensor; null on meta.
inline int32_t* ints(const Tensor& t) {
  ASHLAR_ASSERT(t.dtype == DType::kI32);
  return reinterpret_cast<int32_t*>(t.data);
}

// body(double{}) for an F64 stream, else body(float{}).
template <typename Body>
void with_real(DType stream, Body body) {
  stream == DType::kF64 ? body(double{}) : body(float{});
}

// body(begin, end) over tasks of 64 tokens; nothing on meta.
void for_tokens(const Context& ctx, int64_t num_tokens,
                function_ref<void(int64_t begin, int64_t end)> body);

// body(begin, end, partial) over tasks of 64 tokens; `partial` is the task's zeroed row of T (float
// or double), where the columns of `gradients` lie one after another (absent ones have none), then
// `scratch` elements of the task's own.  Then adds the rows to the gradients in task order.  The
// rows come from the workspace; on meta they are taken, and nothing else is done.
template <typename T>
void sum_over_tokens(const Context& ctx, int64_t num_tokens,
                     std::initializer_list<Tensor> gradients,
                     function_ref<void(int64_t begin, int64_t end, T* partial)> body,
                     int64_t scratch = 0);

// Rows of one op on vectors (`fast`, fp32 streams only) or plain, which fp64 always takes and the
// Context can ask for.
template <template <typename> class Args, typename T>
void run_rows(const Context& ctx, int64_t num_tokens, const Args<T>& args,
              void (*fast)(const Args<float>&, int64_t begin, int64_t end),
              void (*reference)(const std::type_identity_t<Args<T>>&, int64_t begin, int64_t end)) {
  auto* rows = reference;
  if constexpr (std::is_same_v<T, float>) rows = ctx.reference ? reference : fast;
  for_tokens(ctx, num_tokens, [&](int64_t begin, int64_t end) { rows(args, begin, end); });
}

// The same for rows that add to parameter gradients.
template <template <typename> class Args, typename T>
void run_summing_rows(const Context& ctx, int64_t num_tokens,
                      std::initializer_list<Tensor> gradients, const Args<T>& args,
                      void (*fast)(const Args<float>&, int64_t, int64_t, float*),
                      void (*reference)(const std::type_identity_t<Args<T>>&, int64_t, int64_t, T*),
                      int64_t scratch = 0) {
  auto* rows = reference;
  if constexpr (std::is_same_v<T, float>) rows = ctx.reference ? reference : fast;
  const auto body = [&](int64_t begin, int64_t end, T* partial) {
    rows(args, begin, end, partial);
  };
  sum_over_tokens<T>(ctx, num_tokens, gradients, body, scratch);
}

}  // namespace ashlar::kernels::cpu
