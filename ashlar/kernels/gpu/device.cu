// device.h for the devices of vendors and for the emulator.
#include "ashlar/kernels/gpu/device.h"
#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device {

std::string description() {
  return half::description();
}
std::string vendor() {
  return half::vendor();
}
int warp_size() {
  return kWarp;
}
std::string missing() {
  return half::missing();
}
std::string emulated_chip() {
  return half::emulated_chip();
}
void* take(size_t bytes) {
  return half::take(bytes);
}
void give(void* data) {
  half::give(data);
}
std::string copy_bytes(void* to, const void* from, size_t bytes) {
  return half::copy_bytes(to, from, bytes);
}
std::string fill_zero(void* data, size_t bytes) {
  return half::fill_zero(data, bytes);
}
void* take_pinned(size_t bytes) {
  return half::take_pinned(bytes);
}
void give_pinned(void* data) {
  half::give_pinned(data);
}
std::string queue_copy(void* to, const void* from, size_t bytes) {
  return half::queue_copy(to, from, bytes);
}
std::string wait() {
  return half::wait();
}
void* make_event() {
  return half::make_event();
}
void give_event(void* event) {
  half::give_event(event);
}
std::string record_event(void* event) {
  return half::record_event(event);
}
std::string seconds_between(void* earlier, void* later, double& seconds) {
  return half::seconds_between(earlier, later, seconds);
}
SideOrder* take_side_order(int num_marks) {
  return half::take_side_order(num_marks);
}
void give_side_order(SideOrder* order) {
  half::give_side_order(order);
}
std::string follow_work(SideOrder* order) {
  return half::follow_work(order);
}
std::string queue_side_copy(SideOrder* order, void* pinned, const void* from, size_t bytes) {
  return half::queue_side_copy(order, pinned, from, bytes);
}
std::string set_mark(SideOrder* order, int mark) {
  return half::set_mark(order, mark);
}
std::string has_passed(SideOrder* order, int mark, bool* passed) {
  return half::has_passed(order, mark, passed);
}
std::string hold_work(SideOrder* order) {
  return half::hold_work(order);
}
int num_modes() {
  return half::num_modes();
}
std::string select_mode(int number) {
  return half::select_mode(number);
}

}  // namespace ashlar::device
