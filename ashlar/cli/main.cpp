#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "ashlar/cli/command.h"

namespace {

// Makes descriptors 0 to 2 exist: if one is closed, the next opened file would take its number, and
// console text would go into that file.  The replacement cannot be used like the stream, so that
// writing a result to a closed stdout fails as with any other broken one.
bool fill_standard_streams() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(number, F_GETFD) != -1) continue;
    // Takes the lowest free number, which is this one.
    if (open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY) != number) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!fill_standard_streams())
    return int(ashlar::ErrorKind::kDevice);  // there is no stream to report on
  // Beyond a limit of file sizes (ulimit -f) a write then fails with EFBIG, like any other error.
  signal(SIGXFSZ, SIG_IGN);
  // The reader of the output may go away (`| head`): a run goes on, and a result that cannot be
  // printed is an error as on any other stream that fails.
  signal(SIGPIPE, SIG_IGN);
  return ashlar::cli::run(argc, argv);
}
