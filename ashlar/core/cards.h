// The GPUs of this machine, as their drivers describe them, and the libraries for them that are
// installed.  Nothing is linked: what is there is loaded while it is asked, so that one program
// starts everywhere.
//
//   NVIDIA   the driver's library, libcuda.so.1
//   AMD      files of the driver under /sys/class/kfd
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/core/device_spec.h"

namespace ashlar {

struct GpuLibrary {
  std::string name, version, file;  // "cuBLASLt", "13.1.0", "libcublasLt.so.13"
};

struct Cards {
  std::vector<DeviceSpec> list;  // without peaks, which no driver tells
  std::string nvidia_driver;     // the newest CUDA that it runs, "13.0"; empty: there is no driver
  // Why a vendor has no cards here, a line each.
  std::vector<std::string> reasons;
};

struct CardSources {
  std::string nvidia_driver = "libcuda.so.1";
  std::string amd_nodes = "/sys/class/kfd/kfd/topology/nodes";
};
Cards find_cards(const CardSources& sources = {});

// The device that plans and kernels take a card for: the known chip that it is, with the memory
// that its driver shows; the card itself if it is none.
DeviceSpec spec_of(const DeviceSpec& card);

// The folders in which libraries for GPUs are looked for, in this order: those of ASHLAR_GPU_LIBS
// (separated by colons); "", the path of the loader; those of CUDA's and ROCm's toolkits; those of
// vendors' packages for the Python that is first on PATH.
std::vector<std::string> gpu_library_folders();

struct LoadedLibrary {
  void* library = nullptr;  // stays loaded; null: none was
  std::string path;
  std::string error;  // of the last file that is there and does not load; empty: none is there
};
// The first of the files that a folder has, from the first such folder; "" is the loader's path.
LoadedLibrary first_library(std::span<const std::string> folders,
                            std::span<const char* const> files);

// Libraries of products and of communication on GPUs, of any vendor.
std::vector<GpuLibrary> find_gpu_libraries();

}  // namespace ashlar
