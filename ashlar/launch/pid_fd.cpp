#include "ashlar/launch/pid_fd.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ashlar/core/process.h"

namespace ashlar::launch {

PidFd::PidFd(pid_t pid) : fd_(int(syscall(SYS_pidfd_open, pid, 0))) {}

PidFd::PidFd(pid_t pid, uint64_t start_ticks) : PidFd(pid) {
  const auto stat = stat_of_process(pid);
  if (stat && stat->start_ticks == start_ticks) return;
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

PidFd::~PidFd() {
  if (fd_ >= 0) close(fd_);
}

bool PidFd::has_ended() const {
  pollfd ready{fd_, POLLIN, 0};
  return poll(&ready, 1, 0) == 1;
}

void PidFd::signal(int number) const {
  syscall(SYS_pidfd_send_signal, fd_, number, nullptr, 0);
}

}  // namespace ashlar::launch
