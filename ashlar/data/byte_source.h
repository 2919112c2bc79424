// The bytes of a text file from beginning to end, unpacked if the file is gzip (by its first two
// bytes, not by its name; several members in a row and dictzip are gzip too, and zeros between and
// behind members are padding).
//
// Cost    bounded memory: one input buffer of 256 KiB.
// Errors  kStorage from reading; kData with the file and the byte in it where the gzip stream is
//         damaged or ends early, or when a file named .gz or .dz is not gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ashlar/core/files.h"

namespace ashlar::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual size_t read(std::span<char> out) = 0;  // 0: the end
  virtual int64_t stored_done() const = 0;       // bytes of the file taken so far, packed as stored
};

std::unique_ptr<ByteSource> open_bytes(FileSystem& files, const std::string& path);

}  // namespace ashlar::data
