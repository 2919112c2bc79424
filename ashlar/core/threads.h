// The threads that CPU loops run on.  Every parallel loop of the project goes through here, so that
// thread counts, determinism and sanitizers are handled in one place.
//
// Numerics  the cut of a range into tasks depends on the range and the grain only, never on the
//           number of threads.  A reduction that keeps one partial per task and adds them in task
//           order therefore gives the same bits for any thread count.
// Threads   the caller works too, so num_threads 1 starts none.  A pool has one run at a time; a
//           task must not call run on the pool that runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include "ashlar/core/function_ref.h"

namespace ashlar {

// Starts a thread for work that is not a loop.  kDevice if the system refuses it, because of a
// limit of processes (ulimit -u, a container's) or of memory.
std::thread start_thread(std::string_view purpose, std::function<void()> body);

// Gives the calling thread the lowest priority from now on, if the system allows it.
void lower_thread_priority();

class Threads {
 public:
  // num_threads >= 1; 0 means one per CPU that this process may use (sched_getaffinity).
  explicit Threads(int num_threads);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int size() const;

  // Runs task(index, worker) for every index in [0, num_tasks), worker in [0, size()); returns when
  // all are done.  Worker w begins with the w-th part of the indices, in order, and then helps the
  // others, so loops over the same rows find them in the cache of their core.  The first exception
  // is rethrown here after all tasks have ended (the others still run).  Allocates nothing.
  void run(int64_t num_tasks, function_ref<void(int64_t task, int worker)> task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// body(begin, end) over [0, count) cut into pieces of `grain` (the last may be shorter).
void parallel_for(Threads& threads, int64_t count, int64_t grain,
                  function_ref<void(int64_t begin, int64_t end)> body);

}  // namespace ashlar
