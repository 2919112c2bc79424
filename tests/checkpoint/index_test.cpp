#include "ashlar/checkpoint/format/index.h"

#include <gtest/gtest.h>

#include "ashlar/checkpoint/format/commit.h"
#include "ashlar/checkpoint/format/manifest.h"
#include "ashlar/core/checksum.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

Index sample() {
  Index index;
  index.attempt[0] = 7;
  index.files.push_back({"model/a.safetensors",
                         Component::kModel,
                         FileKind::kSafetensors,
                         1,
                         kChunkBytes + 4096 + 100,
                         4096,
                         5,
                         {1, 2},
                         {1}});
  index.files.push_back(
      {"extra/trainer.json", Component::kExtra, FileKind::kJson, 1, 30, 0, 0, {3}, {2}});
  index.files.push_back({"extra/none", Component::kExtra, FileKind::kBlob, 1, 0, 0, 0, {}, {3}});
  IndexTensor w;
  w.logical = {"w", DType::kF32, {4, 6}, Role::kParameter};
  w.boxes = {{0, {{0, 0}, {2, 6}}, 4096, std::nullopt}, {0, {{2, 0}, {2, 6}}, 4096 + 48, 77}};
  index.tensors.push_back(w);
  IndexTensor m;
  m.logical = {"optim.m.w", DType::kBF16, {}, Role::kOptimizerState};
  m.parent = 0;
  m.boxes = {{0, {{}, {}}, 4096 + 96, std::nullopt}};
  index.tensors.push_back(m);
  IndexTensor alias = w;
  alias.logical.name = "tied \xc3\xa9";
  alias.alias = true;
  index.tensors.push_back(alias);
  index.blobs = {{"trainer.json", true, 1, 0, 30, 9}, {"none", false, 2, 0, 0, 0}};
  return index;
}

uint64_t number(const std::vector<std::byte>& bytes, size_t at, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= std::to_integer<uint64_t>(bytes[at + i]) << (8 * i);
  return value;
}
void put(std::vector<std::byte>& bytes, size_t at, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i) bytes[at + i] = std::byte(value >> (8 * i));
}

// Where section `kind` starts, from the table at byte 64 whose rows have 32 bytes.
size_t section(const std::vector<std::byte>& bytes, uint64_t kind) {
  return number(bytes, 64 + (kind - 1) * 32 + 8, 8);
}

// Makes all checksums right again after a change, so that only the change can be refused.
void reseal(std::vector<std::byte>& bytes) {
  for (size_t row = 64; row < 64 + 9 * 32; row += 32) {
    const size_t size = number(bytes, row + 4, 4) * number(bytes, row + 16, 8);
    const size_t offset = number(bytes, row + 8, 8);
    if (offset <= bytes.size() && size <= bytes.size() - offset)
      put(bytes, row + 24, crc32c(std::span(bytes).subspan(offset, size)), 4);
  }
  put(bytes, 44, 0, 4);
  put(bytes, 44, crc32c(std::span(bytes).first(64 + 9 * 32)), 4);
}

TEST(Index, HasTheDocumentedBytes) {
  const std::vector<std::byte> bytes = build_index(sample());
  EXPECT_EQ(std::memcmp(bytes.data(), "ASHIDX1\0", 8), 0);
  EXPECT_EQ(number(bytes, 8, 4), 1u);             // major
  EXPECT_EQ(number(bytes, 16, 8), bytes.size());  // file size
  EXPECT_EQ(number(bytes, 40, 4), 9u);            // sections
  EXPECT_EQ(number(bytes, 48, 1), 7u);            // attempt
  const uint64_t sizes[] = {1, 80, 88, 8, 48, 16, 4, 40, 64};
  const uint64_t counts[] = {0, 3, 3, 4, 5, 8, 3, 2, 0};
  for (uint64_t kind = 1; kind <= 9; ++kind) {
    const size_t row = 64 + (kind - 1) * 32;
    EXPECT_EQ(number(bytes, row, 4), kind);
    EXPECT_EQ(number(bytes, row + 4, 4), sizes[kind - 1]);
    EXPECT_EQ(number(bytes, row + 8, 8) % 64, 0u);
    if (kind == 1) continue;  // the names, as long as they are
    EXPECT_EQ(number(bytes, row + 16, 8), counts[kind - 1]) << kind;
  }
  // The second tensor: dtype BF16 is 11, role opt_state is 2, its parent is tensor 0.
  const size_t m = section(bytes, 3) + 88;
  EXPECT_EQ(number(bytes, m + 8, 2), 11u);
  EXPECT_EQ(number(bytes, m + 10, 1), 0u);
  EXPECT_EQ(number(bytes, m + 11, 1), 2u);
  EXPECT_EQ(number(bytes, m + 12, 4), 0u);
  EXPECT_EQ(number(bytes, m + 48, 8), 1u);  // numel of a scalar
  const size_t second_box = section(bytes, 5) + 48;
  EXPECT_EQ(number(bytes, second_box + 8, 8), 4096u + 48);
  EXPECT_EQ(number(bytes, second_box + 16, 8), 48u);
  EXPECT_EQ(number(bytes, second_box + 32, 4), 77u);
  EXPECT_EQ(number(bytes, second_box + 40, 8), 4u);  // max_end0
}

TEST(Index, RoundTrips) {
  const std::vector<std::byte> bytes = build_index(sample());
  const Index index = parse_index(bytes, "index.bin");
  EXPECT_EQ(build_index(index), bytes);
  EXPECT_EQ(index.tensors[0].boxes[1].box, (Box{{2, 0}, {2, 6}}));
  EXPECT_EQ(index.tensors[0].boxes[0].crc, std::nullopt);
  EXPECT_TRUE(index.tensors[2].alias);
  EXPECT_EQ(index.files[0].chunk_crcs, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(index.blobs[0].name, "trainer.json");
  EXPECT_EQ(build_index(parse_index(build_index(Index{}), "x")), build_index(Index{}));
}

// Version 0.1.0 could write parts of fused parameters, though no run had any: it wrote this file of
// two tensors, of which `w` has the parts `gate` and `up`.
TEST(Index, PartsOfAParameterAreSkipped) {
  const auto files = posix_files();
  const std::string path = std::string(ASHLAR_FIXTURES) + "/index_with_subparts.bin";
  const std::string text = read_all(*files, path);
  const Index index = parse_index(std::as_bytes(std::span(text)), path);
  ASSERT_EQ(index.tensors.size(), 2u);
  EXPECT_EQ(index.tensors[0].logical.name, "w");
  EXPECT_EQ(index.tensors[1].logical.name, "z");
  EXPECT_EQ(index.tensors[1].logical.global_shape, (Shape{4, 6}));
  const std::vector<std::byte> again = build_index(index);
  EXPECT_EQ(number(again, 64 + 8 * 32 + 16, 8), 0u);  // elements of SUBPART
  EXPECT_EQ(build_index(parse_index(again, "x")), again);
}

TEST(Index, EveryFlippedBitIsFound) {
  std::vector<std::byte> bytes = build_index(sample());
  for (size_t at = 0; at < bytes.size(); ++at)
    for (const int bit : {0, 7}) {
      bytes[at] ^= std::byte(1 << bit);
      // Bytes 12 to 16 (minor) and 32 to 40 (optional flags) are under the header's checksum too.
      EXPECT_THROW(parse_index(bytes, "index.bin"), Error) << "byte " << at;
      bytes[at] ^= std::byte(1 << bit);
    }
}

TEST(Index, EveryTruncationIsFound) {
  const std::vector<std::byte> bytes = build_index(sample());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(parse_index(std::span(bytes).first(size), "index.bin"), Error);
}

// With right checksums: what a hostile writer could send.
TEST(Index, WrongFieldsAreNamed) {
  struct Case {
    uint64_t kind;
    size_t at, size;
    uint64_t value;
    const char* message;
  };
  const Case cases[] = {
      {2, 0, 4, 1, "FILE 0: STR [1, +19)"},
      {2, 4, 4, 5000, "path has 5000 bytes; expected 1 to 4096"},
      {2, 8, 2, 4, "component 4 is unknown"},
      {2, 10, 2, 3, "file kind 3 is unknown"},
      {2, 16, 8, ~uint64_t(0), "size is 18446744073709551615"},
      {2, 16, 8, 1, "data begins at 4096 but the file has 1 bytes"},
      {2, 36, 4, 20, "chunk_log2 is 20; expected 22"},
      {2, 48, 8, 3, "number of checksums is 3; expected 2"},
      {2, 72, 8, 1, "the reference to a parent step is not zero"},
      {3, 8, 2, 14, "TENSOR 0 'w': dtype code 14"},
      {3, 10, 1, 9, "9 dims; at most 8"},
      {3, 11, 1, 3, "role 3 is unknown"},
      {3, 11, 1, 5, "role 5 is unknown"},
      {3, 12, 4, 3, "parent 3 does not exist"},
      {3, 16, 4, 1, "layout is 1; expected 0"},
      {3, 20, 4, 2, "flags 0x2 are unknown"},
      {3, 40, 8, 1u << 30, "TENSOR 0 'w': BOX"},
      {3, 48, 8, 25, "number of elements is 25; expected 24"},
      {4, 0, 8, uint64_t(1) << 62, "the shape has more than 2^63-1 bytes"},
      {5, 0, 4, 3, "file 3 does not exist; there are 3"},
      {5, 8, 8, 4095, "lie outside the data of 'model/a.safetensors'"},
      {5, 8, 8, 4097, "byte offset 4097 is not a multiple of the element size 4"},
      {5, 16, 8, 44, "byte length is 44; expected 48"},
      {5, 40, 8, 4, "max_end0 is 4; expected 2"},
      {6, 0, 8, 3, "the box passes the shape [4, 6]"},
      {8, 8, 4, 2, "blob kind 2 is unknown"},
      {8, 24, 8, 31, "pass the end of its file, 30"},
  };
  for (const Case& c : cases) {
    std::vector<std::byte> bytes = build_index(sample());
    put(bytes, section(bytes, c.kind) + c.at, c.value, c.size);
    reseal(bytes);
    const std::string message =
        message_of(ErrorKind::kCorrupt, [&] { parse_index(bytes, "index.bin"); });
    EXPECT_NE(message.find(c.message), message.npos) << message << "\nexpected: " << c.message;
    EXPECT_TRUE(message.starts_with("index.bin: ")) << message;
  }
}

TEST(Index, LaterVersionsAreRefusedOrIgnoredAsTheyAsk) {
  std::vector<std::byte> bytes = build_index(sample());
  put(bytes, 12, 9, 4);  // a minor version and an optional flag change nothing
  put(bytes, 32, 4, 8);
  reseal(bytes);
  EXPECT_EQ(parse_index(bytes, "i").tensors.size(), 3u);
  put(bytes, 24, 6, 8);
  reseal(bytes);
  EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { parse_index(bytes, "i"); })
                .find("required feature flags 0x6 are unknown"),
            std::string::npos);
  put(bytes, 8, 2, 4);
  EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { parse_index(bytes, "i"); })
                .find("format version 2 is unknown"),
            std::string::npos);
}

TEST(Commit, RoundTripsAndEveryFlippedBitOrTailIsFound) {
  Commit commit{12000, "run \"1\"", random_id(), digest_of("m"), digest_of("i"), 1 << 20, 4};
  const std::string line = build_commit(commit);
  EXPECT_EQ(build_commit(parse_commit(line, "COMMIT")), line);
  EXPECT_EQ(line.back(), '\n');
  for (size_t at = 0; at < line.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = line;
      damaged[at] = char(damaged[at] ^ (1 << bit));
      EXPECT_THROW(parse_commit(damaged, "COMMIT"), Error) << damaged;
    }
  for (const std::string& tail : {std::string("\n"), std::string(" "), line})
    EXPECT_THROW(parse_commit(line + tail, "COMMIT"), Error);
  for (size_t size = 0; size < line.size(); ++size)
    EXPECT_THROW(parse_commit(line.substr(0, size), "COMMIT"), Error);
  commit.manifest.xxh3.reset();  // an optional key
  EXPECT_EQ(parse_commit(build_commit(commit), "COMMIT").manifest.xxh3, std::nullopt);
}

TEST(Manifest, RoundTrips) {
  Manifest manifest;
  manifest.run_id = "r";
  manifest.step = 5;
  manifest.attempt = random_id();
  manifest.created = "2026-01-01T00:00:00Z";
  manifest.writer_version = "test";
  manifest.components["model"] = {123, 1};
  manifest.files = {{"model/a", 123, random_id()}};
  manifest.tensors_total = 2;
  manifest.aliases = {{"lm_head.weight", "embed.weight"}};
  manifest.sections = {{"trainer", R"({"lr":0.5,"tokens":18446744073709551615})"}};
  const std::string text = build_manifest(manifest);
  const Manifest parsed = parse_manifest(text, "m");
  EXPECT_EQ(build_manifest(parsed), text);
  EXPECT_EQ(parsed.sections.at("trainer"), manifest.sections.at("trainer"));
  EXPECT_EQ(parsed.aliases, manifest.aliases);
}

TEST(Manifest, WrongFieldsAreNamed) {
  Manifest manifest;
  manifest.files = {{"model/a", 123, {}}};
  manifest.components["model"] = {123, 1};
  const std::string text = build_manifest(manifest);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, changed.npos) << from;
    return changed.replace(at, from.size(), to);
  };
  const std::tuple<std::string, const char*> cases[] = {
      {with("\"ashlar\"", "\"other\""), "format is 'other'; expected 'ashlar'"},
      {with("\"version\": 1", "\"version\": 2"), "format version 2 is unknown"},
      {with("\"required_features\": []", "\"required_features\": [\"delta\"]"),
       "[\"delta\"]; this program knows none"},
      {with("\"step\": 0", "\"step\": -1"), "step is -1; expected an integer"},
      {with("model/a", "../a"), "path '../a' must be relative"},
      {with("\"attempt\": \"00", "\"attempt\": \"0x"), "expected 32 lower-case hex digits"},
      {with("\"size\": 123", "\"size\": 1.5"), "m: files: size is 1.5"},
      {with("\"step\": 0", "\"step\": 0, \"step\": 0"), "m"},
      {with("\"run_id\": \"\",", ""), "key 'run_id' is missing"},
      {"[]", "found []; expected an object"},
  };
  for (const auto& [changed, expected] : cases) {
    const std::string message =
        message_of(ErrorKind::kCorrupt, [&] { parse_manifest(changed, "m"); });
    EXPECT_NE(message.find(expected), message.npos) << message << "\nexpected: " << expected;
  }
}

}  // namespace
}  // namespace ashlar::checkpoint
