#include "ashlar/machine/device_file.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::machine {
namespace {

using testing_support::message_of;

std::string refusal(const std::string& text) {
  return message_of(ErrorKind::kConfig, [&] { parse_device(text, "chip.toml"); });
}

TEST(DeviceFile, HasTheMembersOfADeviceSpec) {
  const DeviceSpec spec = parse_device(R"(
name = "half an H100"
architecture = "sm_90"
memory_bytes = 40_000_000_000
compute_units = 66
shared_bytes = 232448
lanes = 32
bf16_flops = 5e14
fp32_flops = 30e12
bytes_a_second = 2e12
product_workspace_bytes = 1048576
reserved_bytes = 1000)",
                                       "chip.toml");
  EXPECT_EQ(spec.name, "half an H100");
  EXPECT_EQ(spec.architecture, "sm_90");
  EXPECT_EQ(spec.memory_bytes, 40'000'000'000);
  EXPECT_EQ(spec.compute_units, 66);
  EXPECT_EQ(spec.shared_bytes, 232448);
  EXPECT_EQ(spec.lanes, 32);
  EXPECT_EQ(spec.bf16_flops, 5e14);
  EXPECT_EQ(spec.fp32_flops, 30e12);
  EXPECT_EQ(spec.bytes_a_second, 2e12);
  EXPECT_EQ(spec.product_workspace_bytes, 1048576);
  EXPECT_EQ(spec.reserved_bytes, 1000);
}

TEST(DeviceFile, TakesWhatItLeavesOutAsItIsOnMostChips) {
  const DeviceSpec spec =
      parse_device("name = 'x'\narchitecture = 'gfx942'\nmemory_bytes = 1000", "chip.toml");
  EXPECT_EQ(spec.reserved_bytes, DeviceSpec{}.reserved_bytes);
  EXPECT_EQ(spec.bf16_flops, 0);
}

TEST(DeviceFile, RefusesWhatIsNoDevice) {
  EXPECT_EQ(refusal("name = 'x'\narchitecture = 'sm_90'"),
            "chip.toml: key 'memory_bytes' is missing");
  EXPECT_NE(
      refusal("name = 'x'\narchitecture = 'sm_90'\nmemory_bytes = 0").find("memory_bytes is 0"),
      std::string::npos);
  EXPECT_NE(refusal("name = 'x'\nnme = 'y'").find("nme"), std::string::npos);
  EXPECT_NE(refusal("name = ").find("chip.toml: line 1"), std::string::npos);
  EXPECT_NE(refusal("name = 'x'\narchitecture = 'sm_90'\nmemory_bytes = 5\nbf16_flops = -1")
                .find("bf16_flops is -1"),
            std::string::npos);
}

// Every known chip, and a card of which little is known.
TEST(DeviceFile, IsReadAsTheDeviceThatItDescribes) {
  std::vector<DeviceSpec> devices(known_devices().begin(), known_devices().end());
  devices.push_back({.name = "A \"card\"\n\\\x01 of \xc3\xa9",
                     .architecture = "sm_120",
                     .memory_bytes = 16'000'000'001,
                     .lanes = 32,
                     .reserved_bytes = 5});
  devices.push_back({.name = "x",
                     .architecture = "gfx90a",
                     .memory_bytes = 1,
                     .bf16_flops = 1e-3,
                     .bytes_a_second = 4.8123456789012345e12});
  for (const DeviceSpec& device : devices) {
    const DeviceSpec spec = parse_device(device_text(device), "chip.toml");
    const auto numbers = [](const DeviceSpec& d) {
      return std::tuple(d.name, d.architecture, d.memory_bytes, d.compute_units, d.shared_bytes,
                        d.lanes, d.bf16_flops, d.fp32_flops, d.bytes_a_second,
                        d.product_workspace_bytes, d.reserved_bytes);
    };
    EXPECT_EQ(numbers(spec), numbers(device)) << device_text(device);
  }
}

TEST(DeviceFile, IsReadWhereNoChipHasTheName) {
  const auto files = posix_files();
  EXPECT_EQ(read_device(*files, "mi300x").architecture, "gfx942");
  const testing_support::TemporaryDirectory directory;
  const std::string path = directory / "chip.toml";
  write_text(*files, path, "name = 'x'\narchitecture = 'sm_80'\nmemory_bytes = 77\n");
  EXPECT_EQ(read_device(*files, path).memory_bytes, 77);
  EXPECT_EQ(message_of(ErrorKind::kConfig, [&] { read_device(*files, "h20"); }),
            "no GPU is known as h20, and there is no such file; expected a100, h100, h200, mi250x, "
            "mi300x or a file");
}

}  // namespace
}  // namespace ashlar::machine
