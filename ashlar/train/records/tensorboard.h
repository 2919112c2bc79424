// TensorBoard event files without its libraries: scalars only.
//
// Format  record = u64 length, u32 masked crc32c(length bytes), data, u32 masked crc32c(data), with
//         mask(c) = ((c >> 15) | (c << 17)) + 0xa282ead8; data = protobuf Event {1: double
//         wall_time, 2: int64 step, 3: file_version | 5: Summary {1: Value {1: tag, 2: float}} |
//         7: SessionLog {1: status}}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ashlar/core/files.h"
#include "ashlar/train/records/row_file.h"

namespace ashlar::train {

// These append one record to `out`.  A tag has at most 100 bytes.
void append_version_record(std::string& out, double wall_time_s);
// The record of a start whose first step is `step`: TensorBoard drops the values that older files
// have for it and later steps.
void append_start_record(std::string& out, double wall_time_s, int64_t step);
void append_scalar_record(std::string& out, double wall_time_s, int64_t step, std::string_view tag,
                          float value);

// Writes DIRECTORY/events.out.tfevents.<unix time>.<host>, a new file for each start of the
// program, whose name sorts after the older ones.
class TensorBoard {
 public:
  TensorBoard(FileSystem& files, const std::string& directory, int64_t first_step, Log& log);
  void scalar(int64_t step, std::string_view tag, double value);  // allocates nothing up to 64 KiB
  void hand_over() { file_.add(buffer_); }
  RowFile& file() { return file_; }

 private:
  std::string path_;
  RowFile file_;
  std::string buffer_;
};

}  // namespace ashlar::train
