// The functions of launch.h that are no kernels.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"

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
void* take(size_t bytes) {
  return half::take(bytes);
}
void give(void* data) {
  half::give(data);
}
std::string copy_bytes(void* to, const void* from, size_t bytes) {
  return half::copy_bytes(to, from, bytes);
}
int num_modes() {
  return half::num_modes();
}
std::string select_mode(int number) {
  return half::select_mode(number);
}

}  // namespace ashlar::device
