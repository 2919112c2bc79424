// AMD's runtime, loaded when it is first called, so that one program starts everywhere and works
// with each version of the runtime: functions of its names, which call those of the library.
//
// Source   HIP's programming interface (ROCm 5.2 to 7), and clang's code for a kernel's
//          registration, which runs before main.
// Errors   hipGetErrorString says why there is no runtime: no library, or a function that it lacks.
#include <dlfcn.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/cards.h"

struct ihipStream_t;
struct ihipEvent_t;

namespace ashlar::kernels::gpu {
namespace {

using HipStream = ihipStream_t*;
using HipEvent = ihipEvent_t*;
struct HipGrid {  // dim3
  unsigned x, y, z;
};
constexpr int kNoHipRuntime = -1;  // no error of the runtime
constexpr const char* kHipLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6",
                                         "libamdhip64.so.5"};

struct HipFunctions {
  void** (*__hipRegisterFatBinary)(const void*);
  void (*__hipUnregisterFatBinary)(void**);
  void (*__hipRegisterFunction)(void**, const void*, char*, const char*, unsigned, void*, void*,
                                void*, void*, int*);
  int (*__hipPopCallConfiguration)(HipGrid*, HipGrid*, size_t*, HipStream*);
  int (*hipLaunchKernel)(const void*, HipGrid, HipGrid, void**, size_t, HipStream);
  int (*hipGetDeviceCount)(int*);
  int (*hipMalloc)(void**, size_t);
  int (*hipFree)(void*);
  int (*hipMemcpy)(void*, const void*, size_t, int);
  int (*hipMemcpyAsync)(void*, const void*, size_t, int, HipStream);
  int (*hipMemsetAsync)(void*, int, size_t, HipStream);
  int (*hipHostMalloc)(void**, size_t, unsigned);
  int (*hipHostFree)(void*);
  int (*hipStreamSynchronize)(HipStream);
  int (*hipStreamCreateWithFlags)(HipStream*, unsigned);
  int (*hipStreamDestroy)(HipStream);
  int (*hipStreamWaitEvent)(HipStream, HipEvent, unsigned);
  int (*hipEventCreateWithFlags)(HipEvent*, unsigned);
  int (*hipEventQuery)(HipEvent);
  int (*hipEventCreate)(HipEvent*);
  int (*hipEventDestroy)(HipEvent);
  int (*hipEventRecord)(HipEvent, HipStream);
  int (*hipEventElapsedTime)(float*, HipEvent, HipEvent);
  int (*hipGetLastError)();
  const char* (*hipGetErrorString)(int);
};

class HipRuntime {
 public:
  HipRuntime() {
    void* const library = load();
    if (!library) return;
    const auto find = [&]<typename F>(F*& function, const char* name) {
      function = reinterpret_cast<F*>(dlsym(library, name));
      if (!function) missing_ = fmt::format("{} lacks {}", file_, name);
    };
    find(f_.__hipRegisterFatBinary, "__hipRegisterFatBinary");
    find(f_.__hipUnregisterFatBinary, "__hipUnregisterFatBinary");
    find(f_.__hipRegisterFunction, "__hipRegisterFunction");
    find(f_.__hipPopCallConfiguration, "__hipPopCallConfiguration");
    find(f_.hipLaunchKernel, "hipLaunchKernel");
    find(f_.hipGetDeviceCount, "hipGetDeviceCount");
    find(f_.hipMalloc, "hipMalloc");
    find(f_.hipFree, "hipFree");
    find(f_.hipMemcpy, "hipMemcpy");
    find(f_.hipMemcpyAsync, "hipMemcpyAsync");
    find(f_.hipMemsetAsync, "hipMemsetAsync");
    find(f_.hipHostMalloc, "hipHostMalloc");
    find(f_.hipHostFree, "hipHostFree");
    find(f_.hipStreamSynchronize, "hipStreamSynchronize");
    find(f_.hipEventCreate, "hipEventCreate");
    find(f_.hipEventDestroy, "hipEventDestroy");
    find(f_.hipEventRecord, "hipEventRecord");
    find(f_.hipEventElapsedTime, "hipEventElapsedTime");
    find(f_.hipStreamCreateWithFlags, "hipStreamCreateWithFlags");
    find(f_.hipStreamDestroy, "hipStreamDestroy");
    find(f_.hipStreamWaitEvent, "hipStreamWaitEvent");
    find(f_.hipEventCreateWithFlags, "hipEventCreateWithFlags");
    find(f_.hipEventQuery, "hipEventQuery");
    find(f_.hipGetLastError, "hipGetLastError");
    find(f_.hipGetErrorString, "hipGetErrorString");
  }

  const std::string& missing() const { return missing_; }
  const HipFunctions* functions() const { return missing_.empty() ? &f_ : nullptr; }
  template <typename... Parameters, typename... Arguments>
  int call(int (*HipFunctions::*function)(Parameters...), Arguments... arguments) const {
    return missing_.empty() ? (f_.*function)(arguments...) : kNoHipRuntime;
  }

 private:
  // The newest version, but any in the folders that ASHLAR_GPU_LIBS names comes before others.
  void* load() {
    const std::vector<std::string> folders = gpu_library_folders();
    const auto named = size_t(std::ranges::find(folders, "") - folders.begin());
    LoadedLibrary found = first_library(std::span(folders).first(named), kHipLibraries);
    if (!found.library) found = first_library(folders, kHipLibraries);
    file_ = found.path;
    if (!found.library)
      missing_ = found.error.empty()
                     ? fmt::format(
                           "AMD's runtime is missing: none of {} is on the loader's path, "
                           "in /opt/rocm/lib or in a folder of ASHLAR_GPU_LIBS",
                           fmt::join(kHipLibraries, ", "))
                     : fmt::format("AMD's runtime does not load: {}", found.error);
    return found.library;
  }

  HipFunctions f_{};
  std::string file_, missing_;
};

const HipRuntime& hip_runtime() {
  static const HipRuntime runtime;
  return runtime;
}

}  // namespace
}  // namespace ashlar::kernels::gpu

using namespace ashlar::kernels::gpu;

extern "C" {

void** __hipRegisterFatBinary(const void* code) {
  const HipFunctions* f = hip_runtime().functions();
  return f ? f->__hipRegisterFatBinary(code) : nullptr;
}
void __hipUnregisterFatBinary(void** modules) {
  if (const HipFunctions* f = hip_runtime().functions()) f->__hipUnregisterFatBinary(modules);
}
void __hipRegisterFunction(void** modules, const void* host, char* device, const char* name,
                           unsigned threads, void* thread, void* block, void* block_size,
                           void* grid_size, int* warp) {
  if (const HipFunctions* f = hip_runtime().functions())
    f->__hipRegisterFunction(modules, host, device, name, threads, thread, block, block_size,
                             grid_size, warp);
}
int __hipPopCallConfiguration(HipGrid* grid, HipGrid* block, size_t* shared, HipStream* stream) {
  return hip_runtime().call(&HipFunctions::__hipPopCallConfiguration, grid, block, shared, stream);
}
int hipLaunchKernel(const void* kernel, HipGrid grid, HipGrid block, void** arguments,
                    size_t shared, HipStream stream) {
  return hip_runtime().call(&HipFunctions::hipLaunchKernel, kernel, grid, block, arguments, shared,
                            stream);
}
int hipGetDeviceCount(int* count) {
  return hip_runtime().call(&HipFunctions::hipGetDeviceCount, count);
}
int hipMalloc(void** data, size_t bytes) {
  return hip_runtime().call(&HipFunctions::hipMalloc, data, bytes);
}
int hipFree(void* data) {
  return hip_runtime().call(&HipFunctions::hipFree, data);
}
int hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  return hip_runtime().call(&HipFunctions::hipMemcpy, to, from, bytes, kind);
}
int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, HipStream stream) {
  return hip_runtime().call(&HipFunctions::hipMemcpyAsync, to, from, bytes, kind, stream);
}
int hipMemsetAsync(void* data, int value, size_t bytes, HipStream stream) {
  return hip_runtime().call(&HipFunctions::hipMemsetAsync, data, value, bytes, stream);
}
int hipHostMalloc(void** data, size_t bytes, unsigned flags) {
  return hip_runtime().call(&HipFunctions::hipHostMalloc, data, bytes, flags);
}
int hipHostFree(void* data) {
  return hip_runtime().call(&HipFunctions::hipHostFree, data);
}
int hipStreamSynchronize(HipStream stream) {
  return hip_runtime().call(&HipFunctions::hipStreamSynchronize, stream);
}
int hipEventCreate(HipEvent* event) {
  return hip_runtime().call(&HipFunctions::hipEventCreate, event);
}
int hipEventDestroy(HipEvent event) {
  return hip_runtime().call(&HipFunctions::hipEventDestroy, event);
}
int hipEventRecord(HipEvent event, HipStream stream) {
  return hip_runtime().call(&HipFunctions::hipEventRecord, event, stream);
}
int hipEventElapsedTime(float* milliseconds, HipEvent earlier, HipEvent later) {
  return hip_runtime().call(&HipFunctions::hipEventElapsedTime, milliseconds, earlier, later);
}
int hipStreamCreateWithFlags(HipStream* stream, unsigned flags) {
  return hip_runtime().call(&HipFunctions::hipStreamCreateWithFlags, stream, flags);
}
int hipStreamDestroy(HipStream stream) {
  return hip_runtime().call(&HipFunctions::hipStreamDestroy, stream);
}
int hipStreamWaitEvent(HipStream stream, HipEvent event, unsigned flags) {
  return hip_runtime().call(&HipFunctions::hipStreamWaitEvent, stream, event, flags);
}
int hipEventCreateWithFlags(HipEvent* event, unsigned flags) {
  return hip_runtime().call(&HipFunctions::hipEventCreateWithFlags, event, flags);
}
int hipEventQuery(HipEvent event) {
  return hip_runtime().call(&HipFunctions::hipEventQuery, event);
}
int hipGetLastError() {
  return hip_runtime().call(&HipFunctions::hipGetLastError);
}
const char* hipGetErrorString(int error) {
  const HipFunctions* f = hip_runtime().functions();
  return f ? f->hipGetErrorString(error) : hip_runtime().missing().c_str();
}

}  // extern "C"
