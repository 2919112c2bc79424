// The half of gpu.h that the test `gpu.sources` compiles kernels against, without making code: here
// `float` is a class without operators, so a plain a * b or a + b of floats does not compile.
#pragma once

#include <string>
#include <type_traits>

#define ASHLAR_KERNEL(...) inline void
#define ASHLAR_DEVICE inline
#define ASHLAR_BOTH inline

namespace ashlar::device {

inline constexpr int kWarp = ASHLAR_WARP;

struct LaunchShape {
  int64_t grid;
  int block, shared_bytes;
};
struct alignas(16) Vector {
  uint32_t words[4];
};

// May be made from numbers, compared and negated, all of which is exact.
class StrictFloat {
 public:
  StrictFloat() = default;
  template <typename Number>
  requires std::is_arithmetic_v<Number>
  constexpr StrictFloat(Number x) : x_(static_cast<float>(x)) {}
  explicit operator double() const { return double(x_); }
  StrictFloat operator-() const { return -x_; }
  auto operator<=>(const StrictFloat&) const = default;

 private:
  float x_;
};

}  // namespace ashlar::device

#define float ::ashlar::device::StrictFloat

namespace ashlar::device {

int thread_index();
int block_index();
int block_size();
std::byte* shared_memory();
void sync_block();
void sync_lanes();
float lane_xor(float, int mask);
float warp_xor(float, int mask);
float lane_reduce(float, float (*join)(float, float));
float add(float, float);
float mul(float, float);
float fma(float, float, float);
float div(float, float);
float sqrt(float);
float fast_exp2(float);
double add(double, double);
double mul(double, double);
double div(double, double);
double sqrt(double);
float bits_to_float(uint32_t);
uint32_t float_to_bits(float);
Vector load_vector(const void*);
void store_vector(void*, Vector);
void copy_async(void* shared, const void* global);
void copy_commit();
template <int n>
void copy_wait();
void mma_16x8x16(float (&c)[2][4][4], const uint32_t (&a)[2][4], const uint32_t (&b)[4][2]);
void mfma_32x32x8(float (&c)[16], const uint64_t (&a)[2], const uint64_t (&b)[2]);
template <typename Args>
std::string run(void (*kernel)(Args), LaunchShape shape, const Args& args);

struct SideOrder;  // device.h

namespace half {
std::string description();
std::string vendor();
std::string missing();
std::string emulated_chip();
void* take(size_t bytes);
void give(void* data);
std::string fill_zero(void* data, size_t bytes);
std::string copy_bytes(void* to, const void* from, size_t bytes);
void* take_pinned(size_t bytes);
void give_pinned(void* data);
std::string queue_copy(void* to, const void* from, size_t bytes);
std::string wait();
void* make_event();
void give_event(void* event);
std::string record_event(void* event);
std::string seconds_between(void* earlier, void* later, double& seconds);
SideOrder* take_side_order(int num_marks);
void give_side_order(SideOrder*);
std::string follow_work(SideOrder*);
std::string queue_side_copy(SideOrder*, void* pinned, const void* from, size_t bytes);
std::string set_mark(SideOrder*, int mark);
std::string has_passed(SideOrder*, int mark, bool* passed);
std::string hold_work(SideOrder*);
int num_modes();
std::string select_mode(int number);
}  // namespace half

}  // namespace ashlar::device
