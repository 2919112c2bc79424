#include "ashlar/core/cards.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/support/temporary_directory.h"

namespace ashlar {
namespace {

using testing_support::TemporaryDirectory;

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

const CardSources kNowhere{"libno_such_driver.so.1", "/nowhere/nodes"};

TEST(Cards, MissingDriversAreReasons) {
  const Cards cards = find_cards(kNowhere);
  EXPECT_TRUE(cards.list.empty());
  EXPECT_EQ(cards.nvidia_driver, "");
  EXPECT_EQ(cards.reasons, (std::vector<std::string>{"no NVIDIA driver (libno_such_driver.so.1)",
                                                     "no AMD driver (/nowhere/nodes)"}));
}

TEST(Cards, NvidiasDriverDescribesItsCards) {
  const Cards cards = find_cards({ASHLAR_FAKE_CUDA, kNowhere.amd_nodes});
  ASSERT_EQ(cards.list.size(), 2u);
  const DeviceSpec& h200 = cards.list[0];
  EXPECT_EQ(h200.name, "NVIDIA H200");
  EXPECT_EQ(h200.architecture, "sm_90");
  EXPECT_EQ(h200.memory_bytes, 150'109'880'320);
  EXPECT_EQ(h200.compute_units, 132);
  EXPECT_EQ(h200.shared_bytes, 232'448);
  EXPECT_EQ(h200.lanes, 32);
  EXPECT_EQ(chip_of(h200), known_device("h200"));
  EXPECT_EQ(cards.list[1].architecture, "sm_120");
  EXPECT_EQ(chip_of(cards.list[1]), nullptr);
  EXPECT_EQ(spec_of(h200).name, "h200");
  EXPECT_EQ(spec_of(h200).memory_bytes, 150'109'880'320);  // not the data sheet's
  EXPECT_EQ(spec_of(h200).bf16_flops, 989.4e12);
  EXPECT_EQ(spec_of(cards.list[1]).name, "NVIDIA Something");
  EXPECT_EQ(spec_of(cards.list[1]).memory_bytes, 16'000'000'000);
  EXPECT_EQ(cards.nvidia_driver, "13.2");
  EXPECT_EQ(cards.reasons.size(), 1u);  // of AMD
}

TEST(Cards, ADriverThatDoesNotStartIsAReason) {
  setenv("FAKE_CUDA_STATUS", "100", 1);
  const Cards cards = find_cards({ASHLAR_FAKE_CUDA, kNowhere.amd_nodes});
  unsetenv("FAKE_CUDA_STATUS");
  EXPECT_TRUE(cards.list.empty());
  EXPECT_EQ(cards.reasons[0], "NVIDIA's driver shows no device (cuInit: 100)");
}

TEST(Cards, ALibraryThatIsNoDriverIsAReason) {
  const Cards cards = find_cards({"libz.so.1", kNowhere.amd_nodes});
  EXPECT_TRUE(cards.list.empty());
  EXPECT_EQ(cards.reasons[0], "libz.so.1 lacks functions of CUDA's driver");
}

// Nodes as the driver of an MI300X and of one die of an MI250X writes them, after a processor's.
TEST(Cards, AmdsDriverDescribesItsCards) {
  const TemporaryDirectory directory;
  const std::filesystem::path nodes = directory.path();
  write_file(nodes / "0/properties", "cpu_cores_count 96\nsimd_count 0\nsimd_per_cu 0\n");
  write_file(nodes / "0/mem_banks/0/properties", "heap_type 0\nsize_in_bytes 810000000000\n");
  write_file(nodes / "2/properties",
             "cpu_cores_count 0\nsimd_count 1216\nlds_size_in_kb 64\nwave_front_size 64\n"
             "simd_per_cu 4\nhive_id 17953453287398121212\ngfx_target_version 90402\n");
  write_file(nodes / "2/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 206141652992\n");
  write_file(nodes / "10/properties",
             "simd_count 440\nlds_size_in_kb 64\nwave_front_size 64\nsimd_per_cu 4\n"
             "gfx_target_version 90010\n");
  write_file(nodes / "10/mem_banks/0/properties", "heap_type 2\nsize_in_bytes 68702699520\n");
  const Cards cards = find_cards({kNowhere.nvidia_driver, nodes.string()});
  ASSERT_EQ(cards.list.size(), 2u);
  EXPECT_EQ(cards.list[0].architecture, "gfx942");
  EXPECT_EQ(cards.list[0].compute_units, 304);
  EXPECT_EQ(cards.list[0].memory_bytes, 206'141'652'992);
  EXPECT_EQ(cards.list[0].shared_bytes, 65'536);
  EXPECT_EQ(cards.list[0].lanes, 64);
  EXPECT_EQ(chip_of(cards.list[0]), known_device("mi300x"));
  EXPECT_EQ(cards.list[1].architecture, "gfx90a");
  EXPECT_EQ(chip_of(cards.list[1]), known_device("mi250x"));
  EXPECT_EQ(cards.reasons.size(), 1u);  // of NVIDIA
}

// A variable of the environment, during a test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(GpuLibraries, AreLookedForInFoldersOfTheVariableToolkitsAndPackages) {
  const TemporaryDirectory directory;
  const std::filesystem::path root = directory.path();
  write_file(root / "first/bin/tool", "");
  write_file(root / "second/bin/python3", "");
  for (const char* part : {"nvidia/cu13", "nvidia/cublas", "other"})
    write_file(root / "second/lib/python3.11/site-packages" / part / "lib/file", "");
  write_file(root / "second/lib/python3.11/site-packages/nvidia/nothing/file", "");
  write_file(root / "third/bin/python3", "");
  write_file(root / "third/lib/python3.11/site-packages/nvidia/cu13/lib/file", "");
  const auto bin = [&](const char* name) { return (root / name / "bin").string(); };
  const Variable path("PATH", bin("first") + ":" + bin("second") + ":" + bin("third"));
  const Variable own("ASHLAR_GPU_LIBS", "/a::/b");
  const std::string packages = (root / "second/lib/python3.11/site-packages/nvidia").string();
  EXPECT_EQ(gpu_library_folders(),
            (std::vector<std::string>{"/a", "/b", "", "/usr/local/cuda/lib64", "/opt/rocm/lib",
                                      packages + "/cu13/lib", packages + "/cublas/lib"}));
}

TEST(DeviceSpec, ChipsDifferInWhatTheyAreKnownBy) {
  EXPECT_EQ(known_devices().size(), 5u);
  for (const DeviceSpec& chip : known_devices()) {
    EXPECT_EQ(known_device(chip.name), &chip);
    EXPECT_EQ(chip_of(chip), &chip) << chip.name;
    // A product of bf16 is bound by memory below some hundred flop a byte.
    const double balance = chip.bf16_flops / chip.bytes_a_second;
    EXPECT_GT(balance, 100) << chip.name;
    EXPECT_LT(balance, 400) << chip.name;
  }
  EXPECT_EQ(known_device("h300"), nullptr);
  // An H100 with less memory is another product.
  DeviceSpec other = *known_device("h100");
  other.memory_bytes = 64'000'000'000;
  EXPECT_EQ(chip_of(other), nullptr);
}

}  // namespace
}  // namespace ashlar
