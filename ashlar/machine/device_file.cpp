#include "ashlar/machine/device_file.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "ashlar/core/fields.h"
#include "ashlar/machine/toml.h"

namespace ashlar::machine {
namespace {

constexpr int64_t kMostDeviceBytes = int64_t{1} << 50;

std::vector<std::string> names_of_chips() {
  std::vector<std::string> names;
  for (const DeviceSpec& chip : known_devices()) names.push_back(chip.name);
  return names;
}

}  // namespace

DeviceSpec parse_device(const std::string& text, const std::string& source) {
  const Json json = json_of_toml(text, source, "a device");
  const Fields fields(json, source, ErrorKind::kConfig);
  fields.only({"name", "architecture", "memory_bytes", "compute_units", "shared_bytes", "lanes",
               "bf16_flops", "fp32_flops", "bytes_a_second", "product_workspace_bytes",
               "reserved_bytes"});
  DeviceSpec spec;
  spec.name = fields.text("name");
  spec.architecture = fields.text("architecture");
  spec.memory_bytes = fields.integer("memory_bytes", 1, kMostDeviceBytes);
  const auto integer = [&](std::string_view key, auto& value, int64_t most) {
    if (fields.has(key)) value = std::decay_t<decltype(value)>(fields.integer(key, 0, most));
  };
  const auto rate = [&](std::string_view key, double& value) {
    if (!fields.has(key)) return;
    value = fields.number(key);
    if (!(value >= 0)) fields.fail("{} is {}; expected a number from 0 on", key, value);
  };
  integer("compute_units", spec.compute_units, 1 << 20);
  integer("shared_bytes", spec.shared_bytes, kMostDeviceBytes);
  integer("lanes", spec.lanes, 1024);
  integer("product_workspace_bytes", spec.product_workspace_bytes, kMostDeviceBytes);
  integer("reserved_bytes", spec.reserved_bytes, kMostDeviceBytes);
  rate("bf16_flops", spec.bf16_flops);
  rate("fp32_flops", spec.fp32_flops);
  rate("bytes_a_second", spec.bytes_a_second);
  return spec;
}

std::string device_text(const DeviceSpec& device) {
  // A string of JSON is one of TOML.
  const auto quoted = [](const std::string& text) {
    return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
  };
  std::string text = fmt::format(
      "name = {}\narchitecture = {}\nmemory_bytes = {}\ncompute_units = {}\n"
      "shared_bytes = {}\nlanes = {}\n",
      quoted(device.name), quoted(device.architecture), device.memory_bytes, device.compute_units,
      device.shared_bytes, device.lanes);
  const auto peak = [&](std::string_view key, double value) {
    text += value > 0 ? fmt::format("{} = {}\n", key, value)
                      : fmt::format("# {} = (unknown: see its data sheet)\n", key);
  };
  peak("bf16_flops", device.bf16_flops);
  peak("fp32_flops", device.fp32_flops);
  peak("bytes_a_second", device.bytes_a_second);
  return text + fmt::format("product_workspace_bytes = {}\nreserved_bytes = {}\n",
                            device.product_workspace_bytes, device.reserved_bytes);
}

DeviceSpec read_device(FileSystem& files, const std::string& name_or_path) {
  if (const DeviceSpec* chip = known_device(name_or_path)) return *chip;
  ASHLAR_REQUIRE(files.stat(name_or_path), kConfig,
                 "no GPU is known as {}, and there is no such file; expected {} or a file",
                 name_or_path, fmt::join(names_of_chips(), ", "));
  return parse_device(read_text(files, name_or_path), name_or_path);
}

}  // namespace ashlar::machine
