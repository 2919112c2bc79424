// TensorBoard event files without its libraries: scalars only.
//
// Format  record = u64 length, u32 masked crc32c(length bytes), data, u32 masked crc32c(data), with
//         mask(c) = ((c >> 15) | (c << 17)) + 0xa282ead8; data = protobuf Event {1: double
//         wall_time, 2: int64 step, 3: file_version | 5: Summary {1: Value {1: tag, 2: float}}}.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ashlar/core/files.h"

namespace ashlar::train {

// They append one record to `out`.  A tag has at most 100 bytes.
void append_version_record(std::string& out, double wall_time_s);
void append_scalar_record(std::string& out, double wall_time_s, int64_t step, std::string_view tag,
                          float value);

// Appends to DIRECTORY/events.out.tfevents.<unix time>.<host>; one file per start of the program.
class TensorBoard {
 public:
  TensorBoard(FileSystem& files, const std::string& directory);
  void scalar(int64_t step, std::string_view tag, double value);  // allocates nothing up to 64 KiB
  void flush();  // hands what is buffered to the file

 private:
  std::unique_ptr<File> file_;
  std::string buffer_;
};

}  // namespace ashlar::train
