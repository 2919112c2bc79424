// A process by a descriptor, which stays with it: its number may become another process's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <utility>

namespace ashlar::launch {

class PidFd {
 public:
  PidFd() = default;
  explicit PidFd(pid_t pid);
  // The process of that number that started then (ProcessStat); false if it has ended.
  PidFd(pid_t pid, uint64_t start_ticks);
  PidFd(PidFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PidFd& operator=(PidFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~PidFd();
  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }  // readable once the process has ended
  bool has_ended() const;
  void signal(int number) const;

 private:
  int fd_ = -1;
};

}  // namespace ashlar::launch
