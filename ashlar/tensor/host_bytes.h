// Bytes of tensors from and to memory of the host, for saves, loads and first values: one function
// each way, so that a device with memory of its own has one place where bytes cross.
//
// Offsets are in bytes from the first element on.  Where the memory of a tensor has gaps
// (Piece::strides) they may pass its bytes().
//
// Threads  any, on ranges that do not overlap.  Another thread sees what was copied from the host
//          once the thread that copied it has called finish_copies_from_host().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ashlar/tensor/tensor.h"

namespace ashlar {

void copy_to_host(const Tensor& from, int64_t offset, std::span<std::byte> to);
// For much that is not read soon: past the caches where the processor can do so.
void copy_from_host(const Tensor& to, int64_t offset, std::span<const std::byte> from);
void finish_copies_from_host();

}  // namespace ashlar
