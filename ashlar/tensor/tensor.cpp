#include "ashlar/tensor/tensor.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "ashlar/core/rounding.h"

namespace ashlar {

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  ASHLAR_ASSERT(shape.ndim() >= 1 && 0 <= begin && begin <= end && end <= shape[0]);
  Tensor part = *this;
  part.shape[0] = end - begin;
  const int64_t row_bytes = shape[0] == 0 ? 0 : bytes() / shape[0];
  if (data) part.data = data + begin * row_bytes;
  return part;
}

Tensor Tensor::view(const Shape& new_shape) const {
  ASHLAR_ASSERT(new_shape.numel() == numel());
  Tensor other = *this;
  other.shape = new_shape;
  return other;
}

Tensor tensor_over(const Buffer& buffer, Device device, DType dtype, const Shape& shape,
                   int64_t byte_offset) {
  Tensor tensor{nullptr, dtype, device, shape, buffer.device_memory()};
  ASHLAR_ASSERT(byte_offset >= 0 && byte_offset + tensor.bytes() <= buffer.size_bytes());
  if (buffer.data()) tensor.data = buffer.data() + byte_offset;
  return tensor;
}

OwnedTensor make_tensor(Allocator& allocator, DType dtype, const Shape& shape, Tag tag) {
  OwnedTensor owned;
  owned.buffer = allocator.allocate(shape.numel() * size_of(dtype), tag);
  owned.tensor = tensor_over(owned.buffer, allocator.device(), dtype, shape);
  return owned;
}

namespace {

// A float that rounds to the same bf16 as `value`: the float towards zero, with its last bit set if
// anything was cut off, so that two roundings do not add up ("round to odd").
float float_towards_bf16(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

template <typename From, typename To>
void convert(const Tensor& from, const Tensor& to) {
  const From* in = from.as<From>();
  To* out = to.as<To>();
  for (int64_t i = 0, n = from.numel(); i < n; ++i) {
    if constexpr (std::is_same_v<To, bf16> && std::is_same_v<From, double>)
      out[i] = bf16(float_towards_bf16(in[i]));
    else if constexpr (std::is_same_v<To, bf16>)
      out[i] = bf16(static_cast<float>(in[i]));
    else
      out[i] = static_cast<To>(static_cast<float>(in[i]));
  }
}

template <typename From>
void convert_from(const Tensor& from, const Tensor& to) {
  switch (to.dtype) {
    case DType::kF64:
      return convert<From, double>(from, to);
    case DType::kF32:
      return convert<From, float>(from, to);
    case DType::kBF16:
      return convert<From, bf16>(from, to);
    default:
      ASHLAR_ASSERT(false && "copy_convert: floating types only");
  }
}

}  // namespace

void copy_convert(const Tensor& from, const Tensor& to) {
  ASHLAR_ASSERT(from.numel() == to.numel() && from.device == to.device);
  if (from.device == Device::kMeta) return;
  ASHLAR_ASSERT(from.device == Device::kCpu);
  if (from.dtype == to.dtype) {
    if (from.bytes() > 0) std::memcpy(to.data, from.data, size_t(from.bytes()));
    return;
  }
  switch (from.dtype) {
    case DType::kF64:
      return convert_from<double>(from, to);
    case DType::kF32:
      return convert_from<float>(from, to);
    case DType::kBF16:
      return convert_from<bf16>(from, to);
    default:
      ASHLAR_ASSERT(false && "copy_convert: floating types only");
  }
}

void fill_zero(const Tensor& tensor) {
  ASHLAR_ASSERT(tensor.device != Device::kGpu);
  if (tensor.data && tensor.bytes() > 0) std::memset(tensor.data, 0, size_t(tensor.bytes()));
}

Arena::Arena(Allocator& allocator, int64_t size_bytes, Tag tag, int64_t align)
    : device_(allocator.device()),
      memory_(allocator.device_memory()),
      buffer_(allocator.allocate(size_bytes, tag)),
      align_(align),
      counting_(false),
      base_(buffer_.data()),
      capacity_(buffer_.size_bytes()) {}

Arena Arena::part(int64_t size_bytes) {
  Arena arena(device_, align_);
  arena.memory_ = memory_;
  arena.counting_ = counting_;
  arena.base_ = take(DType::kU8, {size_bytes}).data;
  arena.capacity_ = size_bytes;
  return arena;
}

Arena Arena::addresses() {
  Arena arena(Device::kMeta);
  arena.base_ = reinterpret_cast<std::byte*>(uintptr_t(1) << 12);
  return arena;
}

Tensor Arena::whole(DType dtype) const {
  ASHLAR_ASSERT(!counting_);
  return tensor_over(buffer_, device_, dtype, {buffer_.size_bytes() / size_of(dtype)});
}

Tensor Arena::take(DType dtype, const Shape& shape) {
  Tensor tensor{nullptr, dtype, device_, shape, memory_};
  const int64_t size = round_up(tensor.bytes(), align_);
  ASHLAR_ASSERT(counting_ || used_ + size <= capacity_);
  if (base_) tensor.data = base_ + used_;
  used_ += size;
  if (used_ > peak_) {
    peak_ = used_;
    if (reached_) reached_();
  }
  return tensor;
}

Arena arena_for(Allocator& allocator, Tag tag, function_ref<void(Arena&)> lay_out, int64_t align) {
  Arena counter(Device::kMeta, align);
  lay_out(counter);
  return Arena(allocator, counter.peak_bytes(), tag, align);
}

}  // namespace ashlar
