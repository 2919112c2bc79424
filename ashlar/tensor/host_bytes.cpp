#include "ashlar/tensor/host_bytes.h"

#include "ashlar/core/copy_bytes.h"

namespace ashlar {

void copy_to_host(const Tensor& from, int64_t offset, std::span<std::byte> to) {
  ASHLAR_ASSERT(from.device != Device::kMeta && offset >= 0);
  if (from.device == Device::kGpu)
    return from.memory->copy_to_host(to.data(), from.data + offset, int64_t(to.size()));
  copy_bytes(to.data(), from.data + offset, to.size());
}

void copy_from_host(const Tensor& to, int64_t offset, std::span<const std::byte> from) {
  ASHLAR_ASSERT(to.device != Device::kMeta && offset >= 0);
  if (to.device == Device::kGpu)
    return to.memory->copy_from_host(to.data + offset, from.data(), int64_t(from.size()));
  stream_bytes(to.data + offset, from.data(), from.size());
}

void finish_copies_from_host() {
  finish_streaming();
}

}  // namespace ashlar
