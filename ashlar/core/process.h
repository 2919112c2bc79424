// Facts about this process, and what the kernel says about others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/core/function_ref.h"

namespace ashlar {

// Seconds since the kernel started this process, to 10 ms; nullopt if /proc does not say.
std::optional<double> process_age_s();

// One line of /proc/PID/stat.
struct ProcessStat {
  char state;            // R runs, S sleeps, D waits for a device, T is stopped, Z has ended, ...
  uint64_t start_ticks;  // clock ticks from boot to its start; with the number it names a process
};
std::optional<ProcessStat> stat_of_process(int64_t pid);  // nullopt: there is none
std::optional<ProcessStat> stat_of_thread(int64_t pid, int64_t thread);

// The processor's model as the kernel names it; "unknown processor" if it does not.
std::string processor_name();

// Bytes of memory that this process may take: the machine's, or less if one of its control groups,
// such as a container's, has a limit.
int64_t memory_limit_bytes();

// The same from given texts, for tests: /proc/self/cgroup, and a file under the control groups'
// root ("" if there is none).
int64_t memory_limit_of_groups(std::string_view groups,
                               function_ref<std::string(const std::string& path)> text_of);

}  // namespace ashlar
