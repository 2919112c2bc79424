// The CPUs that threads may run on.
//
// The system gives a new thread the CPUs of its creator.  A thread of kernels is bound to one CPU,
// which a helper that it starts (a lane, a loader, a writer) must not share while other CPUs are
// idle.  So a BoundThread has, besides its own CPUs, those of the threads that it starts
// (core/threads.h):
//
//   workers   worker w of a Threads of as many workers runs on the CPUs workers[w]; 0 is the caller
//   home      all other threads, and those that they start in turn, run here
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ashlar {

using Cpus = std::vector<int>;  // the system's numbers, ascending

// "0-3,8"; "none" if there are none.
std::string cpus_text(const Cpus& cpus);
// The same backwards; kConfig for other text.
Cpus parse_cpus(std::string_view text);
// Elements that both have.
Cpus common_cpus(const Cpus& a, const Cpus& b);

// The CPUs that threads started from this one may use: its home, or else those that the system
// allows it, by taskset, a launcher or a control group.
Cpus usable_cpus();

// Binds the calling thread to `own`, and the threads that it starts to `home`.  Returns whether the
// system permitted it; if not, nothing changes.  Empty sets leave things as they are.
bool bind_thread(const Cpus& own, const Cpus& home);
// The home of the calling thread, and its CPUs for each of so many workers; empty if it has none.
Cpus home_cpus();
std::vector<Cpus> worker_cpus(int num_workers);
// Binds all other threads of this process.
void bind_other_threads(const Cpus& cpus);

// Binds the calling thread while it lives, and restores what was.
class BoundThread {
 public:
  BoundThread(const Cpus& own, const Cpus& home, const std::vector<Cpus>& workers = {});
  ~BoundThread();
  BoundThread(const BoundThread&) = delete;
  BoundThread& operator=(const BoundThread&) = delete;
  bool is_bound() const { return is_bound_; }

 private:
  const Cpus own_before_, home_before_;
  const std::vector<Cpus> workers_before_;
  bool is_bound_ = false;
};

}  // namespace ashlar
