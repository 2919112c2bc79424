// GPUs by name or as a file: `--device` of plans.
//
// Format   TOML: the members of DeviceSpec (core/device_spec.h) by their names.  name, architecture
//          and memory_bytes are required.
#pragma once

#include <string>

#include "ashlar/core/device_spec.h"
#include "ashlar/core/files.h"

namespace ashlar::machine {

// kConfig: no chip is known by this name and there is no such file; the file is malformed.
DeviceSpec read_device(FileSystem& files, const std::string& name_or_path);
DeviceSpec parse_device(const std::string& text, const std::string& source);
// The text of a file that parse_device reads as this device.  Peaks that are unknown are comments,
// which say where to find them.
std::string device_text(const DeviceSpec& device);

}  // namespace ashlar::machine
