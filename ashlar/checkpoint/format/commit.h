// COMMIT: the one line whose presence makes a step exist.
//
//   {"format":"ashlar","v":1,"step":12000,"run_id":"...","attempt":"32 hex digits",
//    "manifest":{"size":1234,"crc32c":"01234567","xxh3":"0123456789abcdef"},"index":{...same},
//    "bytes":123,"files":4,"crc32c":"01234567"}\n
//
// (without the line breaks shown here).  The last key is the CRC32C of all bytes before
// `,"crc32c":"xxxxxxxx"}`; exactly one newline follows.  xxh3 may be absent.
//
// Errors  kCorrupt: "PATH: value found; what is expected".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/checkpoint/format/layout.h"

namespace ashlar::checkpoint {

inline constexpr int64_t kMaxCommitBytes = 4096;

struct FileDigest {
  int64_t size_bytes = 0;
  uint32_t crc = 0;
  std::optional<uint64_t> xxh3;
};
FileDigest digest_of(std::string_view bytes);

struct Commit {
  int64_t step = 0;
  std::string run_id;
  Id attempt{};
  FileDigest manifest, index;
  int64_t bytes = 0, files = 0;  // of the data files
};

std::string build_commit(const Commit& commit);
Commit parse_commit(std::string_view text, const std::string& path);

}  // namespace ashlar::checkpoint
