// The functions of AMD's runtime that programs for AMD have, over libraries by its name.  They find
// the library at the first call, so every case is a process of its own.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "ashlar/core/cards.h"
#include "tests/support/temporary_directory.h"

struct ihipStream_t;
struct ihipEvent_t;
struct TestGrid {
  unsigned x, y, z;
};

extern "C" {
void** __hipRegisterFatBinary(const void*);
void __hipUnregisterFatBinary(void**);
void __hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*,
                           void*, int*);
int __hipPopCallConfiguration(TestGrid*, TestGrid*, size_t*, ihipStream_t**);
int hipLaunchKernel(const void*, TestGrid, TestGrid, void**, size_t, ihipStream_t*);
int hipGetDeviceCount(int*);
int hipMalloc(void**, size_t);
int hipFree(void*);
int hipMemcpy(void*, const void*, size_t, int);
int hipMemcpyAsync(void*, const void*, size_t, int, ihipStream_t*);
int hipMemsetAsync(void*, int, size_t, ihipStream_t*);
int hipHostMalloc(void**, size_t, unsigned);
int hipHostFree(void*);
int hipStreamSynchronize(ihipStream_t*);
int hipEventCreate(ihipEvent_t**);
int hipEventDestroy(ihipEvent_t*);
int hipEventRecord(ihipEvent_t*, ihipStream_t*);
int hipEventElapsedTime(float*, ihipEvent_t*, ihipEvent_t*);
int hipStreamCreateWithFlags(ihipStream_t**, unsigned);
int hipStreamDestroy(ihipStream_t*);
int hipStreamWaitEvent(ihipStream_t*, ihipEvent_t*, unsigned);
int hipEventCreateWithFlags(ihipEvent_t**, unsigned);
int hipEventQuery(ihipEvent_t*);
int hipGetLastError();
const char* hipGetErrorString(int);
}

namespace ashlar::kernels::gpu {
namespace {

// The text that the library noted last; hipMalloc of the fake gives its address.
void expect_noted(const std::string& want, const char* noted) {
  if (want == noted) return;
  std::fprintf(stderr, "noted: %s, expected: %s\n", noted, want.c_str());
  std::_Exit(1);
}

// Calls the functions for a second stream.
void call_for_side_copies(const char* noted) {
  ihipStream_t* stream = nullptr;
  hipStreamCreateWithFlags(&stream, 1);
  expect_noted("stream", noted);
  ihipEvent_t* event = nullptr;
  hipEventCreateWithFlags(&event, 2);
  expect_noted("event without times", noted);
  hipStreamWaitEvent(stream, event, 0);
  expect_noted("wait for event", noted);
  if (hipEventQuery(event) != 600) std::_Exit(6);
  hipGetLastError();
  expect_noted("last error", noted);
  hipStreamDestroy(stream);
  expect_noted("destroy stream", noted);
}

[[noreturn]] void call_every_function() {
  void* data = nullptr;
  hipMalloc(&data, 5);
  const char* const noted = static_cast<const char*>(data);
  expect_noted("malloc", noted);
  char code[] = "code", kernel[] = "kernel", argument[] = "argument";
  void** const modules = __hipRegisterFatBinary(code);
  int warp = 64;
  __hipRegisterFunction(modules, kernel, nullptr, "name", 256, nullptr, nullptr, nullptr, nullptr,
                        &warp);
  expect_noted("register name of code, 256 threads, warp 64", noted);
  void* list[] = {argument};
  if (hipLaunchKernel(kernel, {10, 1, 1}, {128, 1, 1}, list, 512, nullptr) != 0) std::_Exit(2);
  expect_noted("launch kernel(argument) grid 10 1 1 block 128 1 1 shared 512", noted);
  TestGrid grid, block;
  size_t shared = 0;
  __hipPopCallConfiguration(&grid, &block, &shared, nullptr);
  if (grid.z != 3 || block.x != 4 || shared != 8) std::_Exit(3);
  int count = 0;
  if (hipGetDeviceCount(&count) != 7 || count != 3) std::_Exit(4);
  hipFree(nullptr);
  expect_noted("free", noted);
  hipMemcpy(nullptr, nullptr, 5, 4);
  expect_noted("memcpy", noted);
  hipMemcpyAsync(nullptr, nullptr, 5, 4, nullptr);
  expect_noted("memcpy, queued", noted);
  hipMemsetAsync(nullptr, 9, 5, nullptr);
  expect_noted("memset", noted);
  hipHostMalloc(&data, 5, 2);
  expect_noted("pinned", noted);
  hipHostFree(nullptr);
  expect_noted("free pinned", noted);
  hipStreamSynchronize(nullptr);
  expect_noted("wait", noted);
  ihipEvent_t* event = nullptr;
  hipEventCreate(&event);
  hipEventRecord(event, nullptr);
  expect_noted("record event", noted);
  float milliseconds = 0;
  hipEventElapsedTime(&milliseconds, event, nullptr);
  if (milliseconds != 2.5f) std::_Exit(5);
  hipEventDestroy(event);
  expect_noted("destroy event", noted);
  call_for_side_copies(noted);
  __hipUnregisterFatBinary(modules);
  std::fprintf(stderr, "%s", modules[0] ? "still registered" : hipGetErrorString(7));
  std::_Exit(0);
}

// Prints the words of a program that has no runtime to call.
[[noreturn]] void ask_for_devices(const char* folder) {
  setenv("ASHLAR_GPU_LIBS", folder, 1);
  int count = 0;
  std::fprintf(stderr, "%s", hipGetErrorString(hipGetDeviceCount(&count)));
  std::_Exit(count);
}

TEST(HipRuntime, PassesEveryCallOn) {
  setenv("ASHLAR_GPU_LIBS", ASHLAR_FAKE_AMDHIP "/whole", 1);
  EXPECT_EXIT(call_every_function(), testing::ExitedWithCode(0), "^seven$");
}

TEST(HipRuntime, NamesAFunctionThatIsMissing) {
  EXPECT_EXIT(ask_for_devices(ASHLAR_FAKE_AMDHIP "/partial"), testing::ExitedWithCode(0),
              "partial/libamdhip64.so.6 lacks hip[A-Z][A-Za-z]*$");
}

// The loader says why: here, that the file is no library.
TEST(HipRuntime, SaysWhyALibraryDoesNotLoad) {
  const testing_support::TemporaryDirectory folder;
  std::ofstream(folder / "libamdhip64.so.7") << "no library";
  LoadedLibrary found = first_library(std::vector{folder.path().string()},
                                      std::vector{"libamdhip64.so.7", "libnowhere.so.1"});
  EXPECT_EQ(found.library, nullptr);
  EXPECT_NE(found.error.find("libamdhip64.so.7: file too short"), std::string::npos) << found.error;
  found = first_library(std::vector{folder.path().string(), std::string()},
                        std::vector{"libnowhere.so.1"});
  EXPECT_EQ(found.library, nullptr);
  EXPECT_EQ(found.error, "");
}

// Versions come before folders: the whole library, an older version's, is in the second folder.
TEST(HipRuntime, TakesTheFirstFileThatAnyFolderHas) {
  const std::vector<std::string> folders{ASHLAR_FAKE_AMDHIP "/nowhere", ASHLAR_FAKE_AMDHIP "/whole",
                                         ""};
  const LoadedLibrary found = first_library(folders, std::vector{"libamdhip64.so.6", "libc.so.6"});
  EXPECT_EQ(found.path, ASHLAR_FAKE_AMDHIP "/whole/libamdhip64.so.6");
  EXPECT_EQ(first_library(folders, std::vector{"libc.so.6"}).path, "libc.so.6");
}

}  // namespace
}  // namespace ashlar::kernels::gpu
