#include "ashlar/core/affinity.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <memory>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar {
namespace {

constexpr int kMostCpus = 1 << 16;

// Properties of the thread, as its affinity is, for which the system has no place.
thread_local Cpus home_of_thread;
thread_local std::vector<Cpus> workers_of_thread;

// A mask of the system for `count` CPUs.
class CpuMask {
 public:
  explicit CpuMask(int count) : bytes_(CPU_ALLOC_SIZE(size_t(count))), set_(CPU_ALLOC(count)) {
    CPU_ZERO_S(bytes_, set_.get());
  }
  size_t bytes() const { return bytes_; }
  cpu_set_t* get() const { return set_.get(); }
  bool has(int cpu) const { return CPU_ISSET_S(size_t(cpu), bytes_, set_.get()); }
  void add(int cpu) const { CPU_SET_S(size_t(cpu), bytes_, set_.get()); }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  size_t bytes_;
  std::unique_ptr<cpu_set_t, Free> set_;
};

// The CPUs that the system allows the calling thread; empty if it does not say.
Cpus allowed_cpus() {
  Cpus cpus;
  for (int count = CPU_SETSIZE; count <= kMostCpus; count *= 2) {  // until the mask is long enough
    const CpuMask mask(count);
    if (sched_getaffinity(0, mask.bytes(), mask.get()) != 0) continue;
    for (int cpu = 0; cpu < count; ++cpu)
      if (mask.has(cpu)) cpus.push_back(cpu);
    break;
  }
  return cpus;
}

bool set_affinity(pid_t thread, const Cpus& cpus) {
  const CpuMask mask(std::max(CPU_SETSIZE, cpus.back() + 1));
  for (const int cpu : cpus) mask.add(cpu);
  return sched_setaffinity(thread, mask.bytes(), mask.get()) == 0;
}

}  // namespace

std::string cpus_text(const Cpus& cpus) {
  std::string text;
  for (size_t i = 0, last = 0; i < cpus.size(); i = last + 1) {
    for (last = i; last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1;) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += fmt::format("-{}", cpus[last]);
  }
  return text.empty() ? "none" : text;
}

Cpus parse_cpus(std::string_view text) {
  Cpus cpus;
  if (text == "none") return cpus;
  for (const std::string& part : split(text, ',')) {
    int first = 0;
    const char* const end = part.data() + part.size();
    auto read = std::from_chars(part.data(), end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-')
      read = std::from_chars(read.ptr + 1, end, last);
    ASHLAR_REQUIRE(read.ec == std::errc() && read.ptr == end && first <= last && last < kMostCpus,
                   kConfig, "{} is no list of CPUs; expected one like 0-3,8", printable(text));
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

Cpus common_cpus(const Cpus& a, const Cpus& b) {
  Cpus both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

Cpus usable_cpus() {
  return home_of_thread.empty() ? allowed_cpus() : home_of_thread;
}

bool bind_thread(const Cpus& own, const Cpus& new_home) {
  if (!own.empty() && !set_affinity(0, own)) return false;
  if (!new_home.empty()) home_of_thread = new_home;
  return true;
}

Cpus home_cpus() {
  return home_of_thread;
}

std::vector<Cpus> worker_cpus(int num_workers) {
  return int(workers_of_thread.size()) == num_workers ? workers_of_thread : std::vector<Cpus>();
}

void bind_other_threads(const Cpus& cpus) {
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), closedir);
  for (const dirent* entry = nullptr; threads && (entry = readdir(threads.get()));) {
    const std::string_view name = entry->d_name;
    int id = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error == std::errc() && id != gettid()) set_affinity(id, cpus);
  }
}

BoundThread::BoundThread(const Cpus& own, const Cpus& home, const std::vector<Cpus>& workers)
    : own_before_(allowed_cpus()),
      home_before_(home_of_thread),
      workers_before_(workers_of_thread),
      is_bound_(bind_thread(own, home)) {
  if (is_bound_) workers_of_thread = workers;
}

BoundThread::~BoundThread() {
  if (!is_bound_) return;
  bind_thread(own_before_, {});
  home_of_thread = home_before_;
  workers_of_thread = workers_before_;
}

}  // namespace ashlar
