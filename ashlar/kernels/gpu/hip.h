// The half of gpu.h for AMD (gfx90a, gfx942), compiled by clang alone: the functions of the runtime
// are declared here, and no header or device library of ROCm is read.
#pragma once

#include <string>
#include <vector>

struct dim3 {  // clang knows it by this name
  explicit dim3(int64_t x) : x(unsigned(x)) {}
  unsigned x, y = 1, z = 1;
};
extern "C" {
int hipLaunchKernel(const void*, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                    struct ihipStream_t*);
int hipGetDeviceCount(int*);
int hipMalloc(void**, size_t);
int hipFree(void*);
int hipMemcpy(void* to, const void* from, size_t, int kind);
int hipMemcpyAsync(void* to, const void* from, size_t, int kind, struct ihipStream_t*);
int hipMemsetAsync(void*, int value, size_t, struct ihipStream_t*);
int hipHostMalloc(void**, size_t, unsigned flags);
int hipHostFree(void*);
int hipStreamSynchronize(struct ihipStream_t*);
int hipEventCreate(struct ihipEvent_t**);
int hipEventDestroy(struct ihipEvent_t*);
int hipEventRecord(struct ihipEvent_t*, struct ihipStream_t*);
int hipEventElapsedTime(float* milliseconds, struct ihipEvent_t* earlier,
                        struct ihipEvent_t* later);
int hipStreamCreateWithFlags(struct ihipStream_t**, unsigned flags);
int hipStreamDestroy(struct ihipStream_t*);
int hipStreamWaitEvent(struct ihipStream_t*, struct ihipEvent_t*, unsigned flags);
int hipEventCreateWithFlags(struct ihipEvent_t**, unsigned flags);
int hipEventQuery(struct ihipEvent_t*);
int hipGetLastError();
const char* hipGetErrorString(int);
}

#define ASHLAR_KERNEL(max_threads, ...) \
  __attribute__((global, amdgpu_flat_work_group_size(1, max_threads))) void
#define ASHLAR_DEVICE __attribute__((device, always_inline)) inline
#define ASHLAR_BOTH __attribute__((host, device, always_inline)) inline

namespace ashlar::device {

inline constexpr int kWarp = 64;
using Short4 = short __attribute__((ext_vector_type(4)));
using Float16 = float __attribute__((ext_vector_type(16)));
using Uint4 = uint32_t __attribute__((ext_vector_type(4)));

struct LaunchShape {
  int64_t grid;
  int block, shared_bytes;
};

ASHLAR_DEVICE int thread_index() {
  return int(__builtin_amdgcn_workitem_id_x());
}
ASHLAR_DEVICE int block_index() {
  return int(__builtin_amdgcn_workgroup_id_x());
}
ASHLAR_DEVICE int block_size() {
  return int(__builtin_amdgcn_workgroup_size_x());
}
extern __attribute__((shared, aligned(128))) unsigned char shared_of_block[];
ASHLAR_DEVICE std::byte* shared_memory() {
  return (std::byte*)shared_of_block;
}
ASHLAR_DEVICE void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
ASHLAR_DEVICE void sync_lanes() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
ASHLAR_DEVICE float bits_to_float(uint32_t u) {
  return __builtin_bit_cast(float, u);
}
ASHLAR_DEVICE uint32_t float_to_bits(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
ASHLAR_DEVICE float lane_xor(float x, int mask) {
  const int from = (thread_index() % kWarp) ^ mask;
  return bits_to_float(uint32_t(__builtin_amdgcn_ds_bpermute(4 * from, int(float_to_bits(x)))));
}
ASHLAR_DEVICE float warp_xor(float x, int mask) {
  return lane_xor(x, mask);
}
template <typename Join>
ASHLAR_DEVICE float lane_reduce(float x, Join join) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = join(x, lane_xor(x, mask));
  return x;
}

// Compiled with -ffp-contract=off: nothing is fused but fma.
ASHLAR_DEVICE float add(float a, float b) {
  return a + b;
}
ASHLAR_DEVICE float mul(float a, float b) {
  return a * b;
}
ASHLAR_DEVICE float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
ASHLAR_DEVICE float div(float a, float b) {
  return a / b;
}
ASHLAR_DEVICE float sqrt(float a) {
  return __builtin_sqrtf(a);
}
ASHLAR_DEVICE float fast_exp2(float x) {
  return __builtin_amdgcn_exp2f(x);
}
ASHLAR_DEVICE double add(double a, double b) {
  return a + b;
}
ASHLAR_DEVICE double mul(double a, double b) {
  return a * b;
}
ASHLAR_DEVICE double div(double a, double b) {
  return a / b;
}
ASHLAR_DEVICE double sqrt(double a) {
  return __builtin_sqrt(a);
}

struct alignas(16) Vector {
  uint32_t words[4];
};
ASHLAR_DEVICE Vector load_vector(const void* from) {
  const Uint4 v = *(const Uint4*)from;
  return {{v.x, v.y, v.z, v.w}};
}
ASHLAR_DEVICE void store_vector(void* to, Vector v) {
  *(Uint4*)to = {v.words[0], v.words[1], v.words[2], v.words[3]};
}

// There is no asynchronous copy to shared memory: a load and a store by the thread itself.
ASHLAR_DEVICE void copy_async(void* shared, const void* global) {
  store_vector(shared, load_vector(global));
}
ASHLAR_DEVICE void copy_commit() {}
template <int n>
ASHLAR_DEVICE void copy_wait() {}

// c [32, 32] += a [32, 8] b [8, 32] in bf16, twice: 32 x 32 sums of a warp.
ASHLAR_DEVICE void mfma_32x32x8(float (&c)[16], const uint64_t (&a)[2], const uint64_t (&b)[2]) {
  Float16 sum;
  for (int r = 0; r < 16; ++r) sum[r] = c[r];
  for (int s = 0; s < 2; ++s)
    sum = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Short4, a[s]),
                                                   __builtin_bit_cast(Short4, b[s]), sum, 0, 0, 0);
  for (int r = 0; r < 16; ++r) c[r] = sum[r];
}

struct SideOrder {
  ihipStream_t* stream = nullptr;
  ihipEvent_t *followed = nullptr, *held = nullptr;
  std::vector<ihipEvent_t*> marks;
};

namespace half {

inline std::string text_of(int error) {
  return error == 0 ? "" : hipGetErrorString(error);
}
inline std::string description() {
  return "HIP";
}
inline std::string vendor() {
  return "AMD";
}
inline constexpr int kNoDevice = 100;
inline std::string missing() {
  int count = 0;
  const int error = hipGetDeviceCount(&count);
  if (error == kNoDevice) return "there is no AMD GPU, or no amdgpu driver for it";
  return text_of(error);
}
inline std::string emulated_chip() {
  return "";
}
inline void* take(size_t bytes) {
  void* data = nullptr;
  return hipMalloc(&data, bytes) == 0 ? data : nullptr;
}
inline void give(void* data) {
  hipFree(data);
}
inline std::string fill_zero(void* data, size_t bytes) {
  return text_of(hipMemsetAsync(data, 0, bytes, nullptr));
}
inline constexpr int kAnyMemory = 4;  // kind of a copy: whichever memory the two are
// From memory of the host hipMemcpy may return before the bytes have arrived.
inline std::string copy_bytes(void* to, const void* from, size_t bytes) {
  const std::string error = text_of(hipMemcpy(to, from, bytes, kAnyMemory));
  return error.empty() ? text_of(hipStreamSynchronize(nullptr)) : error;
}
inline void* take_pinned(size_t bytes) {
  void* data = nullptr;
  return hipHostMalloc(&data, bytes, 0) == 0 ? data : nullptr;
}
inline void give_pinned(void* data) {
  hipHostFree(data);
}
inline std::string queue_copy(void* to, const void* from, size_t bytes) {
  return text_of(hipMemcpyAsync(to, from, bytes, kAnyMemory, nullptr));
}
inline std::string wait() {
  return text_of(hipStreamSynchronize(nullptr));
}
inline void* make_event() {
  struct ihipEvent_t* event = nullptr;
  return hipEventCreate(&event) == 0 ? event : nullptr;
}
inline void give_event(void* event) {
  hipEventDestroy(static_cast<struct ihipEvent_t*>(event));
}
inline std::string record_event(void* event) {
  return text_of(hipEventRecord(static_cast<struct ihipEvent_t*>(event), nullptr));
}
inline std::string seconds_between(void* earlier, void* later, double& seconds) {
  float milliseconds = 0;
  const std::string error =
      text_of(hipEventElapsedTime(&milliseconds, static_cast<struct ihipEvent_t*>(earlier),
                                  static_cast<struct ihipEvent_t*>(later)));
  seconds = double(milliseconds) * 1e-3;
  return error;
}
inline void give_side_order(SideOrder* order) {
  for (ihipEvent_t* const mark : order->marks) hipEventDestroy(mark);
  if (order->followed) hipEventDestroy(order->followed);
  if (order->held) hipEventDestroy(order->held);
  if (order->stream) hipStreamDestroy(order->stream);
  delete order;
}
inline SideOrder* take_side_order(int num_marks) {
  constexpr unsigned kNonBlocking = 1, kDisableTiming = 2;
  auto* order = new SideOrder;
  const auto make = [](ihipEvent_t** event) {
    return hipEventCreateWithFlags(event, kDisableTiming) == 0;
  };
  bool made = hipStreamCreateWithFlags(&order->stream, kNonBlocking) == 0 &&
              make(&order->followed) && make(&order->held);
  for (int i = 0; i < num_marks && made; ++i) {
    ihipEvent_t* mark = nullptr;
    made = make(&mark);
    if (made) order->marks.push_back(mark);
  }
  if (made) return order;
  half::give_side_order(order);
  return nullptr;
}
inline std::string follow_work(SideOrder* order) {
  const std::string error = text_of(hipEventRecord(order->followed, nullptr));
  return error.empty() ? text_of(hipStreamWaitEvent(order->stream, order->followed, 0)) : error;
}
inline std::string queue_side_copy(SideOrder* order, void* pinned, const void* from, size_t bytes) {
  return text_of(hipMemcpyAsync(pinned, from, bytes, kAnyMemory, order->stream));
}
inline std::string set_mark(SideOrder* order, int mark) {
  return text_of(hipEventRecord(order->marks[size_t(mark)], order->stream));
}
inline std::string has_passed(SideOrder* order, int mark, bool* passed) {
  constexpr int kNotReady = 600;
  const int answer = hipEventQuery(order->marks[size_t(mark)]);
  *passed = answer == 0;
  if (answer != kNotReady) return text_of(answer);
  hipGetLastError();  // it is none
  return "";
}
inline std::string hold_work(SideOrder* order) {
  const std::string error = text_of(hipEventRecord(order->held, order->stream));
  return error.empty() ? text_of(hipStreamWaitEvent(nullptr, order->held, 0)) : error;
}
inline int num_modes() {
  return 1;
}
inline std::string select_mode(int) {
  return "as the device runs";
}

}  // namespace half

template <typename Args>
std::string run(void (*kernel)(Args), LaunchShape shape, Args args) {
  void* list[] = {&args};
  return half::text_of(hipLaunchKernel((const void*)kernel, dim3(shape.grid), dim3(shape.block),
                                       list, size_t(shape.shared_bytes), nullptr));
}

}  // namespace ashlar::device
