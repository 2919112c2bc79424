// The half of gpu.h for NVIDIA, from sm_80 on.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#define ASHLAR_KERNEL(...) __global__ __launch_bounds__(__VA_ARGS__) void
#define ASHLAR_DEVICE __device__ __forceinline__
#define ASHLAR_BOTH __host__ __device__ __forceinline__

namespace ashlar::device {

inline constexpr int kWarp = 32;

struct LaunchShape {
  int64_t grid;
  int block, shared_bytes;
};

ASHLAR_DEVICE int thread_index() {
  return int(threadIdx.x);
}
ASHLAR_DEVICE int block_index() {
  return int(blockIdx.x);
}
ASHLAR_DEVICE int block_size() {
  return int(blockDim.x);
}
ASHLAR_DEVICE std::byte* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return reinterpret_cast<std::byte*>(memory);
}
ASHLAR_DEVICE void sync_block() {
  __syncthreads();
}
ASHLAR_DEVICE void sync_lanes() {
  __syncwarp();
}
ASHLAR_DEVICE float lane_xor(float x, int mask) {
  return __shfl_xor_sync(~0u, x, mask);
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

ASHLAR_DEVICE float add(float a, float b) {
  return __fadd_rn(a, b);
}
ASHLAR_DEVICE float mul(float a, float b) {
  return __fmul_rn(a, b);
}
ASHLAR_DEVICE float fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
ASHLAR_DEVICE float div(float a, float b) {
  return __fdiv_rn(a, b);
}
ASHLAR_DEVICE float sqrt(float a) {
  return __fsqrt_rn(a);
}
ASHLAR_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ASHLAR_DEVICE double add(double a, double b) {
  return __dadd_rn(a, b);
}
ASHLAR_DEVICE double mul(double a, double b) {
  return __dmul_rn(a, b);
}
ASHLAR_DEVICE double div(double a, double b) {
  return __ddiv_rn(a, b);
}
ASHLAR_DEVICE double sqrt(double a) {
  return __dsqrt_rn(a);
}
ASHLAR_DEVICE float bits_to_float(uint32_t u) {
  return __uint_as_float(u);
}
ASHLAR_DEVICE uint32_t float_to_bits(float x) {
  return __float_as_uint(x);
}

struct alignas(16) Vector {
  uint32_t words[4];
};
ASHLAR_DEVICE Vector load_vector(const void* from) {
  const uint4 v = *static_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}
ASHLAR_DEVICE void store_vector(void* to, Vector v) {
  *static_cast<uint4*>(to) = {v.words[0], v.words[1], v.words[2], v.words[3]};
}

ASHLAR_DEVICE void copy_async(void* shared, const void* global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(shared))),
      "l"(global)
      : "memory");
}
ASHLAR_DEVICE void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int n>
ASHLAR_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8] in bf16, for two a and four b: 32 x 32 sums of a warp.
ASHLAR_DEVICE void mma_16x8x16(float (&c)[2][4][4], const uint32_t (&a)[2][4],
                               const uint32_t (&b)[4][2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c[i][j][0]), "+f"(c[i][j][1]), "+f"(c[i][j][2]), "+f"(c[i][j][3])
          : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j][0]), "r"(b[j][1]));
  }
}

template <typename Args>
std::string run(void (*kernel)(Args), LaunchShape shape, const Args& args) {
  constexpr int kWithoutAsking = 48 << 10;
  if (shape.shared_bytes > kWithoutAsking)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  kernel<<<unsigned(shape.grid), unsigned(shape.block), size_t(shape.shared_bytes)>>>(args);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

struct SideOrder {
  cudaStream_t stream = nullptr;
  cudaEvent_t followed = nullptr, held = nullptr;
  std::vector<cudaEvent_t> marks;
};

namespace half {

inline std::string text_of(cudaError_t error) {
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}
inline std::string description() {
  return "CUDA";
}
inline std::string vendor() {
  return "NVIDIA";
}
inline std::string missing() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver)
    return "there is no NVIDIA driver, or one older than release 580, which CUDA 13 needs";
  return text_of(error);
}
inline std::string emulated_chip() {
  return "";
}
inline void* take(size_t bytes) {
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) == cudaSuccess) return data;
  cudaGetLastError();  // or the next launch would have this error
  return nullptr;
}
inline void give(void* data) {
  cudaFree(data);
}
inline std::string fill_zero(void* data, size_t bytes) {
  return text_of(cudaMemsetAsync(data, 0, bytes));
}
// From memory of the host cudaMemcpy may return before the bytes have arrived.
inline std::string copy_bytes(void* to, const void* from, size_t bytes) {
  const std::string error = text_of(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  return error.empty() ? text_of(cudaStreamSynchronize(nullptr)) : error;
}
inline void* take_pinned(size_t bytes) {
  void* data = nullptr;
  if (cudaMallocHost(&data, bytes) == cudaSuccess) return data;
  cudaGetLastError();
  return nullptr;
}
inline void give_pinned(void* data) {
  cudaFreeHost(data);
}
inline std::string queue_copy(void* to, const void* from, size_t bytes) {
  return text_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault));
}
inline std::string wait() {
  return text_of(cudaStreamSynchronize(nullptr));
}
inline void* make_event() {
  cudaEvent_t event = nullptr;
  if (cudaEventCreate(&event) == cudaSuccess) return event;
  cudaGetLastError();
  return nullptr;
}
inline void give_event(void* event) {
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}
inline std::string record_event(void* event) {
  return text_of(cudaEventRecord(static_cast<cudaEvent_t>(event), nullptr));
}
inline std::string seconds_between(void* earlier, void* later, double& seconds) {
  float milliseconds = 0;
  const std::string error = text_of(cudaEventElapsedTime(
      &milliseconds, static_cast<cudaEvent_t>(earlier), static_cast<cudaEvent_t>(later)));
  seconds = double(milliseconds) * 1e-3;
  return error;
}
inline void give_side_order(SideOrder* order) {
  for (const cudaEvent_t mark : order->marks) cudaEventDestroy(mark);
  if (order->followed) cudaEventDestroy(order->followed);
  if (order->held) cudaEventDestroy(order->held);
  if (order->stream) cudaStreamDestroy(order->stream);
  delete order;
}
inline SideOrder* take_side_order(int num_marks) {
  auto* order = new SideOrder;
  const auto make = [](cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDisableTiming) == cudaSuccess;
  };
  bool made = cudaStreamCreateWithFlags(&order->stream, cudaStreamNonBlocking) == cudaSuccess &&
              make(&order->followed) && make(&order->held);
  for (int i = 0; i < num_marks && made; ++i) {
    cudaEvent_t mark = nullptr;
    made = make(&mark);
    if (made) order->marks.push_back(mark);
  }
  if (made) return order;
  cudaGetLastError();
  half::give_side_order(order);
  return nullptr;
}
inline std::string follow_work(SideOrder* order) {
  const std::string error = text_of(cudaEventRecord(order->followed, nullptr));
  return error.empty() ? text_of(cudaStreamWaitEvent(order->stream, order->followed, 0)) : error;
}
inline std::string queue_side_copy(SideOrder* order, void* pinned, const void* from, size_t bytes) {
  return text_of(cudaMemcpyAsync(pinned, from, bytes, cudaMemcpyDefault, order->stream));
}
inline std::string set_mark(SideOrder* order, int mark) {
  return text_of(cudaEventRecord(order->marks[size_t(mark)], order->stream));
}
inline std::string has_passed(SideOrder* order, int mark, bool* passed) {
  const cudaError_t answer = cudaEventQuery(order->marks[size_t(mark)]);
  *passed = answer == cudaSuccess;
  if (answer != cudaErrorNotReady) return text_of(answer);
  cudaGetLastError();  // it is none
  return "";
}
inline std::string hold_work(SideOrder* order) {
  const std::string error = text_of(cudaEventRecord(order->held, order->stream));
  return error.empty() ? text_of(cudaStreamWaitEvent(nullptr, order->held, 0)) : error;
}
inline int num_modes() {
  return 1;
}
inline std::string select_mode(int) {
  return "as the device runs";
}

}  // namespace half
}  // namespace ashlar::device
