#include "ashlar/launch/suspect.h"

#include <fmt/core.h>

#include "ashlar/core/process.h"
#include "ashlar/core/stack_note.h"

namespace ashlar::launch {

std::string describe_suspect(const PulsePage& page, const std::string& run_directory) {
  constexpr double kPatience_s = 0.5;
  const auto stat = stat_of_thread(page.process, page.thread);
  if (!stat) return fmt::format("rank {} is gone", page.rank);
  std::string text = fmt::format("rank {} is in state {}", page.rank, stat->state);
  if (const std::string kernel = kernel_stack(page.process, page.thread); !kernel.empty())
    text += "; kernel: " + kernel;
  const bool answers = stat->state == 'R' || stat->state == 'S';
  if (!answers) return text;
  const std::string stack =
      ask_for_stack(page.process, page.thread, pulse_directory(run_directory), kPatience_s);
  return stack.empty() ? text : text + "; stack: " + stack;
}

}  // namespace ashlar::launch
