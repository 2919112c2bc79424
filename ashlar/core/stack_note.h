// The stack of a thread of another process, as that thread writes it when a signal asks for it.
//
// The answer has the functions that the program and its libraries export, and offsets in the
// others: "read < ashlar::posix_files < ashlar+0x1f30".  A thread that is suspended, or waits for a
// device, does not answer.
#pragma once

#include <cstdint>
#include <string>

namespace ashlar {

// From now on a thread of this process that gets SIGUSR2 writes its stack into the directory: that
// of the run's pulse, since a disk may be what the thread waits for.
void answer_stack_signals(const std::string& directory);

// Asks a thread, of a process that answers into this directory, and waits at most so long.  "": it
// does not answer, or its process would die of the signal, which is not sent then.
std::string ask_for_stack(int64_t process, int64_t thread, const std::string& directory,
                          double seconds);

// The functions in which the kernel holds a thread, innermost first: all of them for root, else
// one.  "": it is not in the kernel, or the kernel does not say.
std::string kernel_stack(int64_t process, int64_t thread);

}  // namespace ashlar
