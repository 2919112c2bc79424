// A library with the functions of CUDA's driver that cards.cpp calls, and two cards.
#include <cstdio>
#include <cstdlib>

namespace {

struct FakeCard {
  const char* name;
  size_t bytes;
  int lanes, processors, major, minor, shared_bytes;
};
constexpr FakeCard kFakeCards[] = {
    {"NVIDIA H200", 150'109'880'320, 32, 132, 9, 0, 232'448},
    {"NVIDIA Something", 16'000'000'000, 32, 46, 12, 0, 101'376},
};
constexpr int kFirstDevice = 40;  // not the ordinal

}  // namespace

extern "C" {

int cuInit(unsigned) {
  const char* status = std::getenv("FAKE_CUDA_STATUS");
  return status ? std::atoi(status) : 0;
}

int cuDriverGetVersion(int* version) {
  *version = 13020;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = kFirstDevice + ordinal;
  return 0;
}

int cuDeviceGetName(char* name, int length, int device) {
  std::snprintf(name, size_t(length), "%s", kFakeCards[device - kFirstDevice].name);
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = kFakeCards[device - kFirstDevice].bytes;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const FakeCard& card = kFakeCards[device - kFirstDevice];
  switch (attribute) {  // the numbers of cuda.h
    case 10:
      *value = card.lanes;
      return 0;
    case 16:
      *value = card.processors;
      return 0;
    case 75:
      *value = card.major;
      return 0;
    case 76:
      *value = card.minor;
      return 0;
    case 97:
      *value = card.shared_bytes;
      return 0;
    default:
      return 1;
  }
}

}  // extern "C"
