// Memory that processes of one machine share: a file without a name, which is in no directory and
// takes pages as they are touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ashlar {

// Errors  kStorage with the call and errno's text.
class SharedMemory {
 public:
  // Filled with zeros.
  static SharedMemory create(int64_t bytes);
  static SharedMemory holding(std::string_view text);  // not empty
  // All of the memory that another process, or this one, has created and still holds.
  static SharedMemory open(const std::string& path);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  // "/proc/PID/fd/N": for open() on this machine by a process of the same user.
  const std::string& path() const { return path_; }
  std::span<std::byte> bytes() const { return bytes_; }
  std::string text() const;

 private:
  SharedMemory(int fd, std::string path);  // maps the file, whatever its size
  int fd_;
  std::string path_;
  std::span<std::byte> bytes_;
};

}  // namespace ashlar
