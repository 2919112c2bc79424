#include "ashlar/train/tensorboard.h"

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

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_varint(out, uint64_t(field) << 3 | 2);
  put_varint(out, bytes.size());
  out.append(bytes);
}

std::string event(double wall_time_s) {
  std::string out;
  out.push_back(char(1 << 3 | 1));
  put(out, wall_time_s);
  return out;
}

std::string record(const std::string& data) {
  const auto masked = [](std::string_view bytes) {
    const uint32_t crc = crc32c(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::string out;
  put<uint64_t>(out, data.size());
  put(out, masked(out));
  out += data;
  put(out, masked(data));
  return out;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string tensorboard_version_record(double wall_time_s) {
  std::string data = event(wall_time_s);
  put_bytes(data, 3, "brain.Event:2");
  return record(data);
}

std::string tensorboard_scalar_record(double wall_time_s, int64_t step, std::string_view tag,
                                      float value) {
  std::string scalar;
  put_bytes(scalar, 1, tag);
  scalar.push_back(char(2 << 3 | 5));
  put(scalar, value);
  std::string summary;
  put_bytes(summary, 1, scalar);
  std::string data = event(wall_time_s);
  data.push_back(char(2 << 3 | 0));
  put_varint(data, uint64_t(step));
  put_bytes(data, 5, summary);
  return record(data);
}

TensorBoard::TensorBoard(FileSystem& files, const std::string& directory) {
  files.make_directories(directory);
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  file_ = files.append(join(
      directory, fmt::format("events.out.tfevents.{}.{}", int64_t(now_s()), std::string(host))));
  if (file_->size() == 0) buffer_ = tensorboard_version_record(now_s());
}

void TensorBoard::scalar(int64_t step, std::string_view tag, double value) {
  buffer_ += tensorboard_scalar_record(now_s(), step, tag, float(value));
}

void TensorBoard::flush() {
  file_->write_at(std::as_bytes(std::span(buffer_)), file_->size());
  buffer_.clear();
}

}  // namespace ashlar::train
