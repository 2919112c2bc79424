// A tensor is a view: pointer, dtype, shape, device.  It is row-major and contiguous, and can be
// cut along dim 0 only.  It owns nothing; the Buffer or Arena behind it must outlive it.  On meta
// the pointer is null.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

#include "ashlar/core/error.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/tensor/allocator.h"
#include "ashlar/tensor/dtype.h"
#include "ashlar/tensor/shape.h"

namespace ashlar {

struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Device device = Device::kCpu;
  Shape shape{0};
  DeviceMemory* memory = nullptr;  // that the bytes are in, on a GPU

  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  bool empty() const { return numel() == 0; }
  explicit operator bool() const { return shape.ndim() != 1 || shape[0] != 0; }  // false: absent

  // The elements; T must be the tensor's type, and the device must be the CPU.
  template <typename T>
  T* as() const {
    ASHLAR_ASSERT(dtype == dtype_of<std::remove_const_t<T>> && device == Device::kCpu);
    return reinterpret_cast<T*>(data);
  }
  template <typename T>
  std::span<T> span() const {
    return {as<T>(), size_t(numel())};
  }

  Tensor slice(int64_t begin, int64_t end) const;  // rows [begin, end) of dim 0
  Tensor view(const Shape& new_shape) const;       // the same elements with other extents
};

Tensor tensor_over(const Buffer& buffer, Device device, DType dtype, const Shape& shape,
                   int64_t byte_offset = 0);
// A view of elements in host memory that somebody else owns.
template <typename T>
Tensor tensor_over(std::span<T> values) {
  return {reinterpret_cast<std::byte*>(values.data()),
          dtype_of<T>,
          Device::kCpu,
          {int64_t(values.size())}};
}

// A tensor with its own buffer.
struct OwnedTensor {
  Buffer buffer;
  Tensor tensor;
};
OwnedTensor make_tensor(Allocator& allocator, DType dtype, const Shape& shape, Tag tag);

// Copies elements of one type, or converts between F64, F32 and BF16 (to nearest even); equal
// numel.
void copy_convert(const Tensor& from, const Tensor& to);
void fill_zero(const Tensor& tensor);

// Stack memory: take() advances a pointer, and a Scope returns everything taken since it opened.
// An arena without a buffer (on meta, or for planning) only counts; its peak is the size that a
// real one needs.  kMemory never arises here: exceeding the capacity is a bug.
class Arena {
 public:
  static constexpr int64_t kAlign = kHostAlign;  // default alignment of tensors, in bytes
  // An arena that only counts; its tensors have no bytes.
  explicit Arena(Device device, int64_t align = kAlign) : device_(device), align_(align) {}
  // An arena over memory of the allocator; on meta the memory is only counted.
  Arena(Allocator& allocator, int64_t size_bytes, Tag tag, int64_t align = kAlign);
  // An arena that only counts, whose tensors have addresses that must not be read: they show where
  // tensors would be.
  static Arena addresses();
  Tensor take(DType dtype, const Shape& shape);
  // An arena over the next size_bytes of this one.
  Arena part(int64_t size_bytes);
  int64_t used_bytes() const { return used_; }
  int64_t peak_bytes() const { return peak_; }
  // Calls `reached` whenever more is in use than ever before.
  void watch_peak(std::function<void()> reached) { reached_ = std::move(reached); }
  // All memory as one vector; not for an arena that only counts.
  Tensor whole(DType dtype) const;

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;

   private:
    Arena& arena_;
    int64_t mark_;
  };

 private:
  Device device_;
  DeviceMemory* memory_ = nullptr;
  Buffer buffer_;
  int64_t align_;
  bool counting_ = true;
  std::byte* base_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0, peak_ = 0;
  std::function<void()> reached_;
};

// An arena with exactly the size that `lay_out(arena)` takes.
Arena arena_for(Allocator& allocator, Tag tag, function_ref<void(Arena&)> lay_out,
                int64_t align = Arena::kAlign);

}  // namespace ashlar
