// Every malformed file of tests/fixtures/bad/ckpt: its kind and what the one line says.
#include <gtest/gtest.h>

#include <set>

#include "ashlar/checkpoint/format/commit.h"
#include "ashlar/checkpoint/format/safetensors.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

const std::string kDirectory = std::string(ASHLAR_FIXTURES) + "/bad/ckpt";

// Each file goes to the parser that its ending names.
void parse_file(FileSystem& files, const std::string& name) {
  const std::string text = read_all(files, join(kDirectory, name));
  const auto bytes = std::as_bytes(std::span(text));
  if (name.ends_with(".safetensors"))
    parse_safetensors(bytes, int64_t(bytes.size()), name, ErrorKind::kCorrupt);
  else if (name.ends_with(".COMMIT"))
    parse_commit(text, name);
  else if (name.ends_with(".index"))
    parse_index(bytes, name);
  else
    parse_manifest(text, name);
}

TEST(BadCheckpoint, EveryFileIsRefusedInOneLineThatNamesItsDefect) {
  const std::pair<const char*, const char*> cases[] = {
      {"overlap.safetensors", "tensor 'b': data starts at byte 4; expected 8: tensors overlap"},
      {"hole.safetensors", "tensor 'a': data starts at byte 1; expected 0: there is a hole"},
      {"huge_header.safetensors",
       "the header length is 4611686018427387904; at most 100000000 bytes"},
      {"duplicate.safetensors", "a"},
      {"overflow.safetensors", "shape [4294967296, 4294967296] has more than 2^63-1 bytes"},
      {"deep.safetensors", "32"},
      {"cut.safetensors", "the tensors hold 16 bytes but the file has 7 after its header"},
      {"torn.COMMIT", "it is cut short or damaged"},
      {"checksum.COMMIT", "but 'deadbeef' was recorded; the file is damaged"},
      {"trailing.COMMIT", "does not end with"},
      {"version.COMMIT", "format version 2 is unknown; this program reads version 1"},
      {"step.COMMIT", "step 1000000000000 has more than 12 digits"},
      {"negative.COMMIT", "bytes is -5; expected an integer from 0"},
      {"outside.index", "BOX 0 of 'w': the box passes the shape [2, 2]"},
      {"past_end.index", "bytes [12, +16) lie outside the data of 'model/a', [8, 24)"},
      {"dotdot.index", "FILE 0 '../../etc/passwd': the path must be relative"},
      {"numel.index", "TENSOR 0 'w': the shape has more than 2^63-1 bytes"},
      {"dtype.index", "TENSOR 0 'w': dtype code 14 is not one this program reads"},
      {"feature.index", "required feature flags 0x1 are unknown; use a newer version"},
      {"length.index", "BOX 0 of 'w': byte length is 12; expected 16"},
      {"cut.index", "the header says"},
      {"feature.manifest", "required_features is [\"delta\"]; this program knows none"},
      {"path.manifest", "files: path '/etc/passwd' must be relative"},
      {"duplicate.manifest", "step"},
      {"utf8.manifest", "not valid"},
  };
  const auto files = posix_files();
  std::set<std::string> covered{"make.py"};
  for (const auto& [name, expected] : cases) {
    const std::string file = name;
    covered.insert(file);
    const std::string message = message_of(ErrorKind::kCorrupt, [&] { parse_file(*files, file); });
    EXPECT_TRUE(message.starts_with(file)) << message;
    EXPECT_NE(message.find(expected), message.npos) << message << "\nexpected: " << expected;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  }
  for (const std::string& name : files->list(kDirectory))
    EXPECT_TRUE(covered.contains(name)) << name;
}

}  // namespace
}  // namespace ashlar::checkpoint
