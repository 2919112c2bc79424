// Holds the first thread of a process as a debugger does, until that process or the time ends:
//
//   hold PROCESS SECONDS
//
// To all others that thread looks as if it computed for ever, while the process is not suspended.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const pid_t process = pid_t(std::atol(argv[1]));
  if (ptrace(PTRACE_SEIZE, process, nullptr, nullptr) != 0 ||
      ptrace(PTRACE_INTERRUPT, process, nullptr, nullptr) != 0) {
    std::perror("hold");
    return 1;
  }
  int status = 0;
  for (double left_s = std::atof(argv[2]); left_s > 0; left_s -= 0.01) {
    // Its parent hears of its death only after this did.
    if (waitpid(process, &status, WNOHANG | __WALL) == process && !WIFSTOPPED(status)) return 0;
    usleep(10'000);
  }
  return 0;
}
