// The half of gpu.h on the host: every thread of a block is a fiber (emulator/emulator.cpp).
// ASHLAR_WARP is 32, with NVIDIA's matrix instruction, or 64, with AMD's: what depends on it is
// compiled for both, so that both lane maps of tile.h are tested.
#pragma once

#include <bit>
#include <cmath>
#include <functional>
#include <source_location>
#include <string>

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

namespace emulator {

using Where = std::source_location;

struct Fiber {
  int thread, block, block_size;
  std::byte* shared;
};
extern constinit thread_local Fiber* current;

// Waits for all threads of the block, or for the group of `size` threads that this one belongs to.
// The last one to come calls all_here with what all brought, by lane.
void meet_block(Where where);
void meet_lanes(Where where);
void exchange_lanes(int size, void* mine, void (*all_here)(void** of_lane), Where where);

void refuse_vector(Where where);  // its address is no multiple of 16
inline void check_vector(const void* address, Where where) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) refuse_vector(where);
}
void copy_async(void* shared, const void* global, Where where);
void copy_commit();
void copy_wait(int groups_in_flight);

std::string run(const LaunchShape& shape, const std::function<void()>& body, Where where);

// The part of a lane in an exchange.
struct LaneExchange {
  float value, result;
  int mask;
  float (*join)(float, float);
};
void exchange(void** lanes);
void exchange_warp(void** lanes);
void reduce(void** lanes);

// The part of a lane in a matrix instruction.
struct Fragments {
  float* c;
  const void *a, *b;
};
void multiply_nvidia(void** lanes);
void multiply_amd(void** lanes);

}  // namespace emulator

inline int thread_index() {
  return emulator::current->thread;
}
inline int block_index() {
  return emulator::current->block;
}
inline int block_size() {
  return emulator::current->block_size;
}
inline std::byte* shared_memory() {
  return emulator::current->shared;
}
inline void sync_block(emulator::Where where = emulator::Where::current()) {
  emulator::meet_block(where);
}
inline void sync_lanes(emulator::Where where = emulator::Where::current()) {
  emulator::meet_lanes(where);
}
inline float lane_xor(float x, int mask, emulator::Where where = emulator::Where::current()) {
  emulator::LaneExchange mine{x, 0, mask, nullptr};
  emulator::exchange_lanes(32, &mine, emulator::exchange, where);
  return mine.result;
}
inline float warp_xor(float x, int mask, emulator::Where where = emulator::Where::current()) {
  emulator::LaneExchange mine{x, 0, mask, nullptr};
  emulator::exchange_lanes(kWarp, &mine, emulator::exchange_warp, where);
  return mine.result;
}
inline float lane_reduce(float x, float (*join)(float, float),
                         emulator::Where where = emulator::Where::current()) {
  emulator::LaneExchange mine{x, 0, 0, join};
  emulator::exchange_lanes(32, &mine, emulator::reduce, where);
  return mine.result;
}

// Compiled with -ffp-contract=off, for a CPU with fma.
inline float add(float a, float b) {
  return a + b;
}
inline float mul(float a, float b) {
  return a * b;
}
inline float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline float div(float a, float b) {
  return a / b;
}
inline float sqrt(float a) {
  return std::sqrt(a);
}
inline float fast_exp2(float x) {
  return std::exp2(x);
}
inline double add(double a, double b) {
  return a + b;
}
inline double mul(double a, double b) {
  return a * b;
}
inline double div(double a, double b) {
  return a / b;
}
inline double sqrt(double a) {
  return std::sqrt(a);
}
inline float bits_to_float(uint32_t u) {
  return std::bit_cast<float>(u);
}
inline uint32_t float_to_bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

inline Vector load_vector(const void* from, emulator::Where where = emulator::Where::current()) {
  emulator::check_vector(from, where);
  return *static_cast<const Vector*>(from);
}
inline void store_vector(void* to, Vector v, emulator::Where where = emulator::Where::current()) {
  emulator::check_vector(to, where);
  *static_cast<Vector*>(to) = v;
}
inline void copy_async(void* shared, const void* global,
                       emulator::Where where = emulator::Where::current()) {
  emulator::copy_async(shared, global, where);
}
inline void copy_commit() {
  emulator::copy_commit();
}
template <int n>
void copy_wait() {
  emulator::copy_wait(n);
}

inline void mma_16x8x16(float (&c)[2][4][4], const uint32_t (&a)[2][4], const uint32_t (&b)[4][2],
                        emulator::Where where = emulator::Where::current()) {
  emulator::Fragments mine{&c[0][0][0], a, b};
  emulator::exchange_lanes(32, &mine, emulator::multiply_nvidia, where);
}
inline void mfma_32x32x8(float (&c)[16], const uint64_t (&a)[2], const uint64_t (&b)[2],
                         emulator::Where where = emulator::Where::current()) {
  emulator::Fragments mine{c, a, b};
  emulator::exchange_lanes(64, &mine, emulator::multiply_amd, where);
}

template <typename Args>
std::string run(void (*kernel)(Args), LaunchShape shape, const Args& args,
                emulator::Where where = emulator::Where::current()) {
  return emulator::run(
      shape, [&] { kernel(args); }, where);
}

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
