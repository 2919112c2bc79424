// The side order of copies: late, so that a host which does not make work wait for them, or uses
// their memory too early, is seen in the numbers.
#include <atomic>
#include <mutex>
#include <vector>

#include "ashlar/kernels/gpu/device.h"
#include "ashlar/kernels/gpu/emulator/host_view.h"
#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device {

struct SideOrder {
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  explicit SideOrder(int num_marks) : marks(size_t(num_marks), 0) {}

  void run_all() {
    for (const Copy& copy : copies) emulator::copy_on_device(copy.to, copy.from, copy.bytes);
    num_run += int64_t(copies.size());
    copies.clear();
    num_asked = 0;
  }

  std::mutex mutex;  // guards the members below
  bool follows = false;
  std::vector<Copy> copies;  // queued, and not run
  int64_t num_run = 0, num_asked = 0;
  std::vector<int64_t> marks;  // the number of copies before each
};

namespace emulator {
namespace {

std::atomic<int64_t> side_patience = kSidePatience;

}  // namespace

void set_side_patience(int64_t questions) {
  side_patience = questions;
}

}  // namespace emulator

namespace half {

SideOrder* take_side_order(int num_marks) {
  return new SideOrder(num_marks);
}
void give_side_order(SideOrder* order) {
  delete order;
}
std::string follow_work(SideOrder* order) {
  const std::lock_guard lock(order->mutex);
  order->follows = true;
  emulator::run_queued();  // launches ran when they were called
  return "";
}
std::string queue_side_copy(SideOrder* order, void* pinned, const void* from, size_t bytes) {
  const std::lock_guard lock(order->mutex);
  if (!order->follows) return "a copy beside the work follows none of it";
  order->copies.push_back({pinned, from, bytes});
  return "";
}
std::string set_mark(SideOrder* order, int mark) {
  const std::lock_guard lock(order->mutex);
  order->marks[size_t(mark)] = order->num_run + int64_t(order->copies.size());
  return "";
}
std::string has_passed(SideOrder* order, int mark, bool* passed) {
  const std::lock_guard lock(order->mutex);
  const auto here = [&] { return order->marks[size_t(mark)] <= order->num_run; };
  if (!here() && ++order->num_asked > emulator::side_patience) order->run_all();
  *passed = here();
  return "";
}
std::string hold_work(SideOrder* order) {
  const std::lock_guard lock(order->mutex);
  order->run_all();
  order->follows = false;
  return "";
}

}  // namespace half
}  // namespace ashlar::device
