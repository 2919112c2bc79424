// Makes the disk of a program slow, by LD_PRELOAD: reads and writes of descriptors take as long as
// at ASHLAR_SLOW_DISK_MBPS megabytes a second, and each sync takes 20 ms more.  While the file
// ASHLAR_BROKEN_DISK exists, every sync fails with EIO.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace {

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

bool is_file(int descriptor) {
  struct stat about {};
  return fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0;
}

// Passes on the count of a call, after the time that so many bytes take.
ssize_t slowly(int descriptor, ssize_t count) {
  const char* rate = std::getenv("ASHLAR_SLOW_DISK_MBPS");
  if (rate && count > 0 && is_file(descriptor))
    std::this_thread::sleep_for(
        std::chrono::duration<double>(double(count) / std::atof(rate) / 1e6));
  return count;
}

}  // namespace

extern "C" {

ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  static const auto real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return slowly(descriptor, real(descriptor, bytes, count, offset));
}

ssize_t pread(int descriptor, void* bytes, size_t count, off_t offset) {
  static const auto real = next<ssize_t(int, void*, size_t, off_t)>("pread");
  return slowly(descriptor, real(descriptor, bytes, count, offset));
}

int fsync(int descriptor) {
  static const auto real = next<int(int)>("fsync");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const char* broken = std::getenv("ASHLAR_BROKEN_DISK");
  if (broken && access(broken, F_OK) == 0) {
    errno = EIO;
    return -1;
  }
  return real(descriptor);
}

}  // extern "C"
