#include "ashlar/core/shared_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

void require(bool condition, const char* call, const std::string& path) {
  ASHLAR_REQUIRE(condition, kStorage, "shared memory {}: {}: {}", path, call, strerror(errno));
}

}  // namespace

SharedMemory SharedMemory::create(int64_t bytes) {
  const int fd = memfd_create("ashlar", MFD_CLOEXEC);
  require(fd >= 0, "memfd_create", "");
  const std::string path = fmt::format("/proc/{}/fd/{}", getpid(), fd);
  if (ftruncate(fd, bytes) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    require(false, "ftruncate", path);
  }
  return SharedMemory(fd, path);
}

SharedMemory SharedMemory::holding(std::string_view text) {
  SharedMemory memory = create(int64_t(text.size()));
  std::memcpy(memory.bytes().data(), text.data(), text.size());
  return memory;
}

std::string SharedMemory::text() const {
  return std::string(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
}

SharedMemory SharedMemory::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  require(fd >= 0, "open", path);
  return SharedMemory(fd, path);
}

SharedMemory::SharedMemory(int fd, std::string path) : fd_(fd), path_(std::move(path)) {
  struct stat info {};
  void* begin = MAP_FAILED;
  const char* call = "fstat";
  if (fstat(fd, &info) == 0) {
    call = "mmap";
    begin = mmap(nullptr, size_t(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (begin == MAP_FAILED) {
    const int error = errno;
    close(fd);
    errno = error;
    require(false, call, path_);
  }
  bytes_ = {static_cast<std::byte*>(begin), size_t(info.st_size)};
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory::~SharedMemory() {
  if (fd_ < 0) return;
  munmap(bytes_.data(), bytes_.size());
  close(fd_);
}

}  // namespace ashlar
