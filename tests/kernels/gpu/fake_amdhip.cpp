// A library by the name of AMD's runtime, with the functions that hip/runtime.cpp calls: each
// notes its arguments in `calls`, which a test reads.  With FAKE_IS_PARTIAL it has one alone.
#include <cstddef>
#include <cstdio>

extern "C" {

struct FakeGrid {
  unsigned x, y, z;
};
struct FakeStream;
struct FakeEvent;

char hip_calls[4096];

static int note(const char* text) {
  std::snprintf(hip_calls, sizeof hip_calls, "%s", text);
  return 7;
}

int hipGetDeviceCount(int* count) {
  *count = 3;
  return note("count");
}

#ifndef FAKE_IS_PARTIAL
void** __hipRegisterFatBinary(const void* code) {
  static void* modules[1];
  modules[0] = const_cast<void*>(code);
  return modules;
}
void __hipUnregisterFatBinary(void** modules) {
  modules[0] = nullptr;
}
void __hipRegisterFunction(void** modules, const void*, char*, const char* name, unsigned threads,
                           void*, void*, void*, void*, int* warp) {
  std::snprintf(hip_calls, sizeof hip_calls, "register %s of %s, %u threads, warp %d", name,
                static_cast<const char*>(modules[0]), threads, *warp);
}
int __hipPopCallConfiguration(FakeGrid* grid, FakeGrid* block, size_t* shared, FakeStream**) {
  *grid = {1, 2, 3};
  *block = {4, 5, 6};
  *shared = 8;
  return note("pop");
}
int hipLaunchKernel(const void* kernel, FakeGrid grid, FakeGrid block, void** arguments,
                    size_t shared, FakeStream*) {
  std::snprintf(hip_calls, sizeof hip_calls,
                "launch %s(%s) grid %u %u %u block %u %u %u shared %zu",
                static_cast<const char*>(kernel), static_cast<const char*>(arguments[0]), grid.x,
                grid.y, grid.z, block.x, block.y, block.z, shared);
  return 0;
}
int hipMalloc(void** data, size_t bytes) {
  *data = hip_calls;
  return bytes == 5 ? note("malloc") : 1;
}
int hipFree(void*) {
  return note("free");
}
int hipMemcpy(void*, const void*, size_t bytes, int kind) {
  return bytes == 5 && kind == 4 ? note("memcpy") : 1;
}
int hipMemcpyAsync(void*, const void*, size_t bytes, int kind, FakeStream*) {
  return bytes == 5 && kind == 4 ? note("memcpy, queued") : 1;
}
int hipMemsetAsync(void*, int value, size_t bytes, FakeStream*) {
  return value == 9 && bytes == 5 ? note("memset") : 1;
}
int hipHostMalloc(void** data, size_t bytes, unsigned flags) {
  *data = hip_calls;
  return bytes == 5 && flags == 2 ? note("pinned") : 1;
}
int hipHostFree(void*) {
  return note("free pinned");
}
int hipStreamSynchronize(FakeStream*) {
  return note("wait");
}
int hipEventCreate(FakeEvent** event) {
  *event = reinterpret_cast<FakeEvent*>(hip_calls);
  return note("event");
}
int hipEventDestroy(FakeEvent* event) {
  return event ? note("destroy event") : 1;
}
int hipEventRecord(FakeEvent* event, FakeStream*) {
  return event ? note("record event") : 1;
}
int hipEventElapsedTime(float* milliseconds, FakeEvent* earlier, FakeEvent* later) {
  *milliseconds = earlier && !later ? 2.5f : 0;
  return note("elapsed");
}
int hipStreamCreateWithFlags(FakeStream** stream, unsigned flags) {
  *stream = reinterpret_cast<FakeStream*>(hip_calls);
  return flags == 1 ? note("stream") : 1;
}
int hipStreamDestroy(FakeStream* stream) {
  return stream ? note("destroy stream") : 1;
}
int hipStreamWaitEvent(FakeStream* stream, FakeEvent* event, unsigned flags) {
  return stream && event && flags == 0 ? note("wait for event") : 1;
}
int hipEventCreateWithFlags(FakeEvent** event, unsigned flags) {
  *event = reinterpret_cast<FakeEvent*>(hip_calls);
  return flags == 2 ? note("event without times") : 1;
}
int hipEventQuery(FakeEvent* event) {
  note("query");
  return event ? 600 : 1;
}
int hipGetLastError() {
  return note("last error");
}
const char* hipGetErrorString(int error) {
  return error == 7 ? "seven" : "another";
}
#endif

}  // extern "C"
