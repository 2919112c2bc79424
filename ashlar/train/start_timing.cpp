#include "ashlar/train/start_timing.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>

#include "ashlar/core/process.h"

namespace ashlar::train {
namespace {

double seconds_of(const timeval& time) {
  return double(time.tv_sec) + double(time.tv_usec) * 1e-6;
}

}  // namespace

StartTiming::Use StartTiming::Use::now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {seconds_of(usage.ru_utime), seconds_of(usage.ru_stime), usage.ru_minflt};
}

StartTiming::StartTiming() : start_(Clock::now()), age_s_(process_age_s().value_or(0.0)) {
  constexpr size_t kMostParts = 64;  // running_ points into the list
  parts_.reserve(kMostParts);
  parts_.push_back({"loading the program", age_s_, Use::now()});
}

void StartTiming::enter(std::string_view name) {
  if (finished_) return;
  leave();
  const auto part =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.name == name; });
  ASHLAR_ASSERT(part != parts_.end() || parts_.size() < parts_.capacity());
  running_ = part != parts_.end() ? &*part : &parts_.emplace_back(Part{std::string(name), 0, {}});
  entered_use_ = Use::now();
  entered_ = Clock::now();
}

void StartTiming::leave() {
  if (!running_) return;
  running_->seconds += seconds_since(entered_);
  const Use now = Use::now();
  running_->use.user_s += now.user_s - entered_use_.user_s;
  running_->use.kernel_s += now.kernel_s - entered_use_.kernel_s;
  running_->use.faults += now.faults - entered_use_.faults;
  running_ = nullptr;
}

void StartTiming::finish(Trace& trace) {
  leave();
  total_s_ = age_s_ + seconds_since(start_);
  finished_ = true;
  std::map<std::string, Kernel, std::less<>> by_op;
  for (const TraceEvent& event : trace.events()) {
    if (event.kind != TraceEvent::Kind::kKernel) continue;
    Kernel& kernel = by_op[std::string(trace.text(event.name))];
    kernel.seconds += event.end_s - event.start_s;
    ++kernel.calls;
  }
  trace.stop();
  trace.release();
  for (const auto& [op, kernel] : by_op) kernels_.push_back({op, kernel.seconds, kernel.calls});
  std::stable_sort(kernels_.begin(), kernels_.end(),
                   [](const Kernel& a, const Kernel& b) { return a.seconds > b.seconds; });
}

double StartTiming::total_s() const {
  return finished_ ? total_s_ : age_s_ + seconds_since(start_);
}

double StartTiming::unaccounted_s() const {
  double sum = 0;
  for (const Part& part : parts_) sum += part.seconds;
  return total_s() - sum;
}

std::string StartTiming::text() const {
  std::string text = fmt::format("{:<32} {:>9} {:>9} {:>9} {:>9}\n", "start", "ms", "user_ms",
                                 "kernel_ms", "faults");
  Use all;
  for (const Part& part : parts_) {
    text += fmt::format("{:<32} {:>9.1f} {:>9.1f} {:>9.1f} {:>9}\n", part.name, part.seconds * 1e3,
                        part.use.user_s * 1e3, part.use.kernel_s * 1e3, part.use.faults);
    all.user_s += part.use.user_s, all.kernel_s += part.use.kernel_s;
    all.faults += part.use.faults;
  }
  text += fmt::format("{:<32} {:>9.1f}\n", "unaccounted", unaccounted_s() * 1e3);
  text += fmt::format("{:<32} {:>9.1f} {:>9.1f} {:>9.1f} {:>9}\n", "to the end of the first step",
                      total_s() * 1e3, all.user_s * 1e3, all.kernel_s * 1e3, all.faults);
  constexpr size_t kMostKernels = 8;
  text += "kernels of the first step";
  for (size_t i = 0; i < std::min(kernels_.size(), kMostKernels); ++i)
    text += fmt::format("\n  {:<30} {:>9.1f}  {} calls", kernels_[i].op, kernels_[i].seconds * 1e3,
                        kernels_[i].calls);
  return text;
}

}  // namespace ashlar::train
