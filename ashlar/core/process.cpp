#include "ashlar/core/process.h"

#include <time.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace ashlar {

std::optional<double> process_age_s() {
  // Field 22 of /proc/self/stat, counted after the command name, which may hold spaces: clock ticks
  // from boot.
  std::ifstream in("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 3; i < 22; ++i) fields >> skipped;
  double started = 0.0;
  if (!(fields >> started)) return std::nullopt;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9 - started / double(sysconf(_SC_CLK_TCK));
}

}  // namespace ashlar
