// manifest.json: what people and programs want to know about a step without reading its index.
//
//   {"format": "ashlar", "version": 1, "required_features": [], "optional_features": [], "run_id",
//    "step", "attempt", "created", "writer_version", "durability", "components": {name: {bytes,
//    files}}, "files": [{path, size, uuid}], "tensors_total", "aliases": {name: stored name},
//    "verdict": "candidate", and objects by section name: "optimizer", "loader", "rng", "trainer",
//    "mesh", "quant", "hf"}
//
// At most 64 MiB, depth 32, no duplicate keys.  An unknown required feature is refused; unknown
// keys are ignored.
//
// Errors  kCorrupt: "PATH: key: value found; what is expected".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/checkpoint/format/layout.h"

namespace ashlar::checkpoint {

inline constexpr int64_t kMaxManifestBytes = int64_t(64) << 20;
inline constexpr int64_t kMaxManifestValues = 4'000'000;  // four a file of the step

struct ComponentTotal {
  int64_t bytes = 0, files = 0;
};

struct ManifestFile {
  std::string path;
  int64_t size_bytes = 0;
  Id uuid{};
};

struct Manifest {
  std::string run_id;
  int64_t step = 0;
  Id attempt{};
  std::string created, writer_version, durability = "full";
  std::map<std::string, ComponentTotal> components;
  std::vector<ManifestFile> files;
  int64_t tensors_total = 0;
  std::map<std::string, std::string> aliases;   // name -> the tensor that is stored
  std::map<std::string, std::string> sections;  // name -> JSON text of an object
};

// The section names that a manifest may have.
bool is_manifest_section(std::string_view name);

std::string build_manifest(const Manifest& manifest);  // sections must hold valid JSON objects
Manifest parse_manifest(std::string_view text, const std::string& path);

}  // namespace ashlar::checkpoint
