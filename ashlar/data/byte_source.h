// The bytes of a text file from beginning to end, unpacked if the file is gzip.  Its first two
// bytes decide that, not its name; several members in a row and dictzip are gzip too, and zeros
// between and after members are padding.
//
// Cost    bounded memory: one input buffer of 256 KiB. Errors  kStorage from reading; kData, with
// the file and the byte, where the gzip stream is damaged
//         or ends early, or if a file named .gz or .dz is not gzip.
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
  virtual int64_t stored_done() const = 0;       // bytes of the stored file read so far
};

std::unique_ptr<ByteSource> open_bytes(FileSystem& files, const std::string& path);

}  // namespace ashlar::data
