#include "ashlar/tensor/host_bytes.h"

#include "ashlar/core/copy_bytes.h"

namespace ashlar {

void copy_to_host(const Tensor& from, int64_t offset, std::span<std::byte> to) {
  ASHLAR_ASSERT(from.device == Device::kCpu && offset >= 0);
  copy_bytes(to.data(), from.data + offset, to.size());
}

void copy_from_host(const Tensor& to, int64_t offset, std::span<const std::byte> from) {
  ASHLAR_ASSERT(to.device == Device::kCpu && offset >= 0);
  stream_bytes(to.data + offset, from.data(), from.size());
}

void finish_copies_from_host() {
  finish_streaming();
}

}  // namespace ashlar
