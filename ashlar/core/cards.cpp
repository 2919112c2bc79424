#include "ashlar/core/cards.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

namespace ashlar {
namespace {

// Stays loaded: a driver may have begun threads.
void* load_library(const std::string& file) {
  return dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
}

template <typename Function>
Function* function_in(void* library, const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(library, symbol));
}

// --- NVIDIA ---

// The functions of CUDA's driver that are called, with its own names.  They return 0 on success.
struct CudaDriver {
  int (*cuInit)(unsigned flags);
  int (*cuDriverGetVersion)(int* version);
  int (*cuDeviceGetCount)(int* count);
  int (*cuDeviceGet)(int* device, int ordinal);
  int (*cuDeviceGetName)(char* name, int length, int device);
  int (*cuDeviceTotalMem_v2)(size_t* bytes, int device);
  int (*cuDeviceGetAttribute)(int* value, int attribute, int device);

  explicit CudaDriver(void* library) {
    const auto find = [&]<typename F>(F*& function, const char* symbol) {
      function = function_in<F>(library, symbol);
      is_whole = is_whole && function;
    };
    find(cuInit, "cuInit");
    find(cuDriverGetVersion, "cuDriverGetVersion");
    find(cuDeviceGetCount, "cuDeviceGetCount");
    find(cuDeviceGet, "cuDeviceGet");
    find(cuDeviceGetName, "cuDeviceGetName");
    find(cuDeviceTotalMem_v2, "cuDeviceTotalMem_v2");
    find(cuDeviceGetAttribute, "cuDeviceGetAttribute");
  }
  bool is_whole = true;
};

// CUdevice_attribute, as cuda.h numbers it.
enum CudaAttribute {
  kCudaLanes = 10,
  kCudaProcessors = 16,
  kCudaMajor = 75,
  kCudaMinor = 76,
  kCudaSharedBytes = 97,
};

// nullopt: a call failed.
std::optional<DeviceSpec> cuda_card(const CudaDriver& driver, int ordinal) {
  int device = 0, major = 0, minor = 0, shared_bytes = 0;
  size_t bytes = 0;
  std::array<char, 256> name{};
  DeviceSpec card;
  const auto ask = [&](int& value, CudaAttribute attribute) {
    return driver.cuDeviceGetAttribute(&value, attribute, device) == 0;
  };
  if (driver.cuDeviceGet(&device, ordinal) != 0 ||
      driver.cuDeviceGetName(name.data(), int(name.size()) - 1, device) != 0 ||
      driver.cuDeviceTotalMem_v2(&bytes, device) != 0 || !ask(card.lanes, kCudaLanes) ||
      !ask(card.compute_units, kCudaProcessors) || !ask(major, kCudaMajor) ||
      !ask(minor, kCudaMinor) || !ask(shared_bytes, kCudaSharedBytes))
    return std::nullopt;
  card.name = name.data();
  card.architecture = fmt::format("sm_{}{}", major, minor);
  card.memory_bytes = int64_t(bytes);
  card.shared_bytes = shared_bytes;
  return card;
}

void find_nvidia_cards(const std::string& file, Cards& cards) {
  void* const library = load_library(file);
  if (!library) return cards.reasons.push_back(fmt::format("no NVIDIA driver ({})", file));
  const CudaDriver driver(library);
  if (!driver.is_whole)
    return cards.reasons.push_back(fmt::format("{} lacks functions of CUDA's driver", file));
  int version = 0, count = 0;
  const int status = driver.cuInit(0);
  if (status == 0 && driver.cuDriverGetVersion(&version) == 0)
    cards.nvidia_driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  if (status != 0 || driver.cuDeviceGetCount(&count) != 0 || count == 0)
    return cards.reasons.push_back(
        fmt::format("NVIDIA's driver shows no device (cuInit: {})", status));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const std::optional<DeviceSpec> card = cuda_card(driver, ordinal);
    if (!card)
      cards.reasons.push_back(fmt::format("NVIDIA's driver does not describe device {}", ordinal));
    else
      cards.list.push_back(*card);
  }
}

// --- AMD ---

// Ids take all 64 bits; all else is small.
std::map<std::string, uint64_t> read_properties(const std::filesystem::path& path) {
  std::map<std::string, uint64_t> properties;
  std::ifstream file(path);
  std::string key;
  for (uint64_t value = 0; file >> key >> value;) properties[key] = value;
  return properties;
}

// gfx_target_version 90402 is gfx942, 90010 is gfx90a.
std::string gfx_name(uint64_t version) {
  return fmt::format("gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100);
}

// nullopt: the node is a processor.
std::optional<DeviceSpec> amd_card(const std::filesystem::path& node) {
  auto p = read_properties(node / "properties");
  if (p["simd_count"] == 0 || p["simd_per_cu"] == 0) return std::nullopt;
  DeviceSpec card;
  card.architecture = gfx_name(p["gfx_target_version"]);
  card.name = "AMD " + card.architecture;
  card.compute_units = int(p["simd_count"] / p["simd_per_cu"]);
  card.shared_bytes = int64_t(p["lds_size_in_kb"]) * 1024;
  card.lanes = int(p["wave_front_size"]);
  std::error_code none;
  for (const auto& bank : std::filesystem::directory_iterator(node / "mem_banks", none)) {
    auto memory = read_properties(bank.path() / "properties");
    constexpr uint64_t kVisible = 1, kPrivate = 2;  // heaps in the card's memory
    if (memory["heap_type"] == kVisible || memory["heap_type"] == kPrivate)
      card.memory_bytes += int64_t(memory["size_in_bytes"]);
  }
  return card;
}

void find_amd_cards(const std::string& nodes, Cards& cards) {
  std::error_code none;
  std::vector<std::filesystem::path> paths;
  for (const auto& node : std::filesystem::directory_iterator(nodes, none))
    paths.push_back(node.path());
  const auto number = [](const std::filesystem::path& path) {
    return std::atoi(path.filename().c_str());
  };
  std::sort(paths.begin(), paths.end(),
            [&](const auto& a, const auto& b) { return number(a) < number(b); });
  const size_t before = cards.list.size();
  for (const std::filesystem::path& path : paths)
    if (const std::optional<DeviceSpec> card = amd_card(path)) cards.list.push_back(*card);
  if (paths.empty())
    cards.reasons.push_back(fmt::format("no AMD driver ({})", nodes));
  else if (cards.list.size() == before)
    cards.reasons.push_back("AMD's driver shows no device");
}

// --- libraries ---

// 130100 of cuBLASLt is 13.1.0; 22703 of NCCL is 2.27.3.
std::string cublas_version(void* library) {
  auto* const get = function_in<size_t()>(library, "cublasLtGetVersion");
  if (!get) return "";
  const size_t version = get();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string nccl_version(void* library) {
  auto* const get = function_in<int(int*)>(library, "ncclGetVersion");
  int version = 0;
  if (!get || get(&version) != 0) return "";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string no_version(void*) {
  return "";
}

// The parts of a list like PATH that are not empty; null: none.
std::vector<std::string> split_at_colons(const char* list) {
  std::vector<std::string> parts;
  std::istringstream stream(list ? list : "");
  for (std::string part; std::getline(stream, part, ':');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Wheels of NVIDIA lie in PREFIX/lib/python3.X/site-packages/nvidia/NAME/lib, Debian's Python has
// dist-packages.
std::vector<std::string> python_package_folders() {
  std::vector<std::string> folders;
  std::error_code none;
  for (const std::filesystem::path bin : split_at_colons(std::getenv("PATH"))) {
    if (!std::filesystem::exists(bin / "python3", none)) continue;
    const std::filesystem::path prefix = bin.parent_path();
    for (const std::filesystem::path& lib : {prefix / "lib", prefix / "local/lib"})
      for (const std::filesystem::path& python : entries_of(lib)) {
        if (!python.filename().string().starts_with("python3")) continue;
        for (const char* packages : {"site-packages", "dist-packages"})
          for (const std::filesystem::path& part : entries_of(python / packages / "nvidia"))
            if (std::filesystem::is_directory(part / "lib", none))
              folders.push_back((part / "lib").string());
      }
    break;
  }
  return folders;
}

}  // namespace

Cards find_cards(const CardSources& sources) {
  Cards cards;
  find_nvidia_cards(sources.nvidia_driver, cards);
  find_amd_cards(sources.amd_nodes, cards);
  return cards;
}

DeviceSpec spec_of(const DeviceSpec& card) {
  const DeviceSpec* chip = chip_of(card);
  DeviceSpec spec = chip ? *chip : card;
  spec.memory_bytes = card.memory_bytes;
  return spec;
}

std::vector<std::string> gpu_library_folders() {
  std::vector<std::string> folders = split_at_colons(std::getenv("ASHLAR_GPU_LIBS"));
  folders.push_back("");
  for (const char* toolkit : {"/usr/local/cuda/lib64", "/opt/rocm/lib"}) folders.push_back(toolkit);
  for (std::string& folder : python_package_folders()) folders.push_back(std::move(folder));
  return folders;
}

LoadedLibrary first_library(std::span<const std::string> folders,
                            std::span<const char* const> files) {
  LoadedLibrary found;
  for (const char* file : files)
    for (const std::string& folder : folders) {
      found.path = folder.empty() ? file : fmt::format("{}/{}", folder, file);
      found.library = dlopen(found.path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      if (found.library) return found;
      const std::string error = dlerror();
      if (!error.starts_with(found.path + ": cannot open shared object file: No such file"))
        found.error = error;
    }
  found.path.clear();
  return found;
}

std::vector<GpuLibrary> find_gpu_libraries() {
  struct Candidate {
    const char *name, *file;
    std::string (*version)(void*);
  };
  constexpr Candidate kCandidates[] = {{"cuBLASLt", "libcublasLt.so.13", cublas_version},
                                       {"NCCL", "libnccl.so.2", nccl_version},
                                       {"hipBLASLt", "libhipblaslt.so.0", no_version},
                                       {"hipBLASLt", "libhipblaslt.so.1", no_version},
                                       {"RCCL", "librccl.so.1", nccl_version}};
  std::vector<GpuLibrary> found;
  const std::vector<std::string> folders = gpu_library_folders();
  for (const Candidate& candidate : kCandidates) {
    const LoadedLibrary loaded = first_library(folders, std::span(&candidate.file, 1));
    if (loaded.library)
      found.push_back({candidate.name, candidate.version(loaded.library), loaded.path});
  }
  return found;
}

}  // namespace ashlar
