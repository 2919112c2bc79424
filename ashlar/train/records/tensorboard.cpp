#include "ashlar/train/records/tensorboard.h"

#include <unistd.h>

#include <chrono>
#include <cstring>

#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"

namespace ashlar::train {
namespace {

template <typename T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(char(value | 0x80));
  out.push_back(char(value));
}

void put_key(std::string& out, int field, int wire_type) {
  out.push_back(char(field << 3 | wire_type));
}

// The head of a text or message of `size` bytes.
void put_head(std::string& out, int field, size_t size) {
  put_key(out, field, 2);
  put_varint(out, size);
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

constexpr size_t kRecordHead = sizeof(uint64_t) + sizeof(uint32_t);

// Leaves room for the head of a record, whose data is appended next; returns its begin.
size_t begin_record(std::string& out, double wall_time_s) {
  const size_t begin = out.size();
  out.append(kRecordHead, '\0');
  put_key(out, 1, 1);
  put(out, wall_time_s);
  return begin;
}

void end_record(std::string& out, size_t begin) {
  const size_t data = begin + kRecordHead;
  const uint64_t length = out.size() - data;
  std::memcpy(&out[begin], &length, sizeof length);
  const uint32_t crc = masked_crc(std::string_view(out).substr(begin, sizeof length));
  std::memcpy(&out[begin + sizeof length], &crc, sizeof crc);
  put(out, masked_crc(std::string_view(out).substr(data)));
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The path of this start's file; its name sorts after the older ones.
std::string new_path(FileSystem& files, const std::string& directory) {
  make_own_directory(files, directory);
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  const auto path_at = [&](int64_t time_s) {
    return join(directory, fmt::format("events.out.tfevents.{}.{}", time_s, std::string(host)));
  };
  auto time_s = int64_t(now_s());
  while (files.stat(path_at(time_s))) ++time_s;  // a start within the same second
  return path_at(time_s);
}

}  // namespace

void append_version_record(std::string& out, double wall_time_s) {
  constexpr std::string_view kVersion = "brain.Event:2";
  const size_t begin = begin_record(out, wall_time_s);
  put_head(out, 3, kVersion.size());
  out += kVersion;
  end_record(out, begin);
}

void append_start_record(std::string& out, double wall_time_s, int64_t step) {
  const size_t begin = begin_record(out, wall_time_s);
  put_key(out, 2, 0);
  put_varint(out, uint64_t(step));
  put_head(out, 7, 2);
  put_key(out, 1, 0);
  put_varint(out, 1);  // START
  end_record(out, begin);
}

void append_scalar_record(std::string& out, double wall_time_s, int64_t step, std::string_view tag,
                          float value) {
  ASHLAR_ASSERT(tag.size() <= 100);  // so that each length below is one byte
  const size_t scalar_bytes = 2 + tag.size() + 1 + sizeof value, summary_bytes = 2 + scalar_bytes;
  const size_t begin = begin_record(out, wall_time_s);
  put_key(out, 2, 0);
  put_varint(out, uint64_t(step));
  put_head(out, 5, summary_bytes);
  put_head(out, 1, scalar_bytes);
  put_head(out, 1, tag.size());
  out += tag;
  put_key(out, 2, 5);
  put(out, value);
  end_record(out, begin);
}

TensorBoard::TensorBoard(FileSystem& files, const std::string& directory, int64_t first_step,
                         Log& log)
    : path_(new_path(files, directory)), file_(files, path_, files.create(path_), log) {
  files.sync_directory(directory);
  buffer_.reserve(RowFile::kRoom);
  append_version_record(buffer_, now_s());
  append_start_record(buffer_, now_s(), first_step);
}

void TensorBoard::scalar(int64_t step, std::string_view tag, double value) {
  append_scalar_record(buffer_, now_s(), step, tag, float(value));
}

}  // namespace ashlar::train
