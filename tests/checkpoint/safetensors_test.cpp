#include "ashlar/checkpoint/format/safetensors.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/checkpoint/safetensors_validator.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

// A file of the given header text and number of data bytes.
std::vector<std::byte> file_of(std::string_view json, size_t data_bytes) {
  std::string text;
  for (int shift = 0; shift < 64; shift += 8) text += char(uint64_t(json.size()) >> shift & 0xff);
  text += json;
  text.append(data_bytes, 'x');
  return as_vector(text);
}

SafetensorsHeader parse_header(const std::vector<std::byte>& file,
                               ErrorKind kind = ErrorKind::kCorrupt) {
  return parse_safetensors(file, int64_t(file.size()), "f.safetensors", kind);
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const auto file = file_of(
      R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"format":"pt"},)"
      R"("e":{"dtype":"F32","shape":[0,9],"data_offsets":[4,4]},"a \"q\"":{"dtype":"F32","shape":[],)"
      R"("data_offsets":[0,4]}}     )",
      16);
  const SafetensorsHeader header = parse_header(file);
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0].name, "a \"q\"");
  EXPECT_TRUE(header.entries[0].shape.empty());
  EXPECT_EQ(header.entries[1].name, "e");
  EXPECT_EQ(header.entries[2].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.entries[2].dtype, DType::kBF16);
  EXPECT_EQ(header.data_begin, int64_t(file.size()) - 16);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.find("e"), &header.entries[1]);
  EXPECT_EQ(header.find("x"), nullptr);
}

TEST(Safetensors, RefusesEverythingElse) {
  struct Case {
    const char* json;
    size_t data_bytes;
    const char* message;
  };
  const Case cases[] = {
      {R"( {})", 0, "does not begin with '{'"},
      {R"({"a":1})", 0, "tensor 'a': found 1; expected an object"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "f.safetensors"},
      {R"({"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", 1,
       "dtype is \"F8_E4M3\"; expected one of F64, F32"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "key 'data_offsets' is missing"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown key 'x'"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "shape holds -1"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "shape holds 1.5"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
       "expected an integer from 0"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,4]}})", 4,
       "more than 2^63-1 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})",
       4, "shape has 17 numbers; at most 16"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "needs 8 bytes but data_offsets span 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "begin <= end"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6, "tensors overlap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "there is a hole"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "too long"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "cut short"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__: a is 1; expected a string"},
      {R"({"":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4, "the name has 0 bytes"},
      {R"({}x)", 0, "f.safetensors"},
      {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "f.safetensors"},
  };
  for (const Case& c : cases)
    for (const ErrorKind kind : {ErrorKind::kCorrupt, ErrorKind::kData}) {
      const std::string message =
          message_of(kind, [&] { parse_header(file_of(c.json, c.data_bytes), kind); });
      EXPECT_NE(message.find(c.message), message.npos) << c.json << "\n" << message;
      EXPECT_TRUE(message.starts_with("f.safetensors")) << message;
    }
}

TEST(Safetensors, RefusesLengthsBeforeUsingThem) {
  EXPECT_NE(
      message_of(ErrorKind::kCorrupt, [] { parse_header(as_vector("short")); }).find("5 bytes"),
      std::string::npos);
  EXPECT_NE(message_of(ErrorKind::kCorrupt,
                       [] { parse_header(as_vector(std::string(8, '\xff') + "{}")); })
                .find("18446744073709551615"),
            std::string::npos);
  EXPECT_NE(message_of(ErrorKind::kCorrupt,
                       [] { parse_header(as_vector(std::string("\x10\0\0\0\0\0\0\0{}", 10))); })
                .find("needs 24 bytes but the file has 10"),
            std::string::npos);
}

TEST(Safetensors, PlansAlignedFilesThatTheOtherReaderAccepts) {
  const Rng rng(5, "safetensors");
  for (uint64_t round = 0; round < 300; ++round) {
    std::vector<TensorSpec> specs;
    uint64_t draw = round * 1000;
    const uint64_t count = rng.below(draw++, 12);
    for (uint64_t i = 0; i < count; ++i) {
      TensorSpec spec{"t\"\\" + std::to_string(i), DType(rng.below(draw++, 13)), {}};
      for (uint64_t d = rng.below(draw++, 4); d > 0; --d)
        spec.shape.push_back(
            int64_t(rng.below(draw++, 4) == 0 ? rng.below(draw, 3) : 1u << rng.below(draw, 5)));
      ++draw;
      specs.push_back(spec);
    }
    for (const HeaderStyle style : {HeaderStyle::kAligned, HeaderStyle::kPlain}) {
      const SafetensorsPlan plan =
          plan_safetensors(specs, {{"format", "pt"}, {"k", "\n\"v\""}}, style);
      std::string file = plan.header;
      file.resize(size_t(plan.file_bytes), 'x');
      SafetensorsValidator validator;
      ASSERT_EQ(validator.validate(file), "") << plan.header;
      ASSERT_EQ(validator.tensors.size(), specs.size());
      EXPECT_EQ(plan.data_begin % (style == HeaderStyle::kAligned ? 4096 : 8), 0);
      const SafetensorsHeader header = parse_header(as_vector(file));
      for (size_t i = 0; i < specs.size(); ++i) {
        const TensorEntry& entry = plan.entries[i];
        const TensorEntry* read = header.find(entry.name);
        ASSERT_NE(read, nullptr);
        EXPECT_EQ(std::tuple(read->begin, read->end, read->dtype, read->shape),
                  std::tuple(entry.begin, entry.end, entry.dtype, entry.shape));
        if (style == HeaderStyle::kPlain) {
          EXPECT_EQ(entry.name, specs[i].name);
          continue;
        }
        EXPECT_EQ(entry.begin % (int64_t(1) << alignment_exponent(entry.bytes())), 0);
        const int64_t bytes_before = i > 0 ? plan.entries[i - 1].bytes() : 0;
        EXPECT_GE(alignment_exponent(bytes_before), alignment_exponent(entry.bytes()));
      }
    }
  }
}

// Headers are written by hand, in the form in which the library prints them.
TEST(Safetensors, HeadersAreWhatTheLibraryWouldPrint) {
  const std::map<std::string, std::string> metadata{{"a", R"({"x":[1,2],"y\\":"z"})"},
                                                    {"é", "\t\x7f"}};
  const std::vector<TensorSpec> specs{{"plain.name", DType::kF32, {2, 3}},
                                      {"with \"quotes\" and \\", DType::kBF16, {}},
                                      {"ümlaut\n", DType::kI64, {0}}};
  nlohmann::ordered_json json = {{"__metadata__", metadata}};
  int64_t begin = 0;
  for (const TensorSpec& spec : specs) {
    const int64_t end = begin + *checked_bytes(spec.shape, spec.dtype);
    json[spec.name] = {{"dtype", std::string(name_of(spec.dtype))},
                       {"shape", spec.shape},
                       {"data_offsets", {begin, end}}};
    begin = end;
  }
  const std::string header = plan_safetensors(specs, metadata, HeaderStyle::kPlain).header;
  EXPECT_EQ(header.substr(8, header.find_last_not_of(' ') - 7), json.dump());
}

TEST(Safetensors, KeepsTheGivenOrderAmongEquals) {
  const std::vector<TensorSpec> specs{{"z", DType::kF32, {3}},
                                      {"b", DType::kF32, {4096}},
                                      {"a", DType::kF32, {5}},
                                      {"c", DType::kF32, {2048}}};
  const SafetensorsPlan plan = plan_safetensors(specs, {}, HeaderStyle::kAligned);
  std::string order;
  for (const TensorEntry& entry : plan.entries) order += entry.name;
  EXPECT_EQ(order, "bcza");
}

}  // namespace
}  // namespace ashlar::checkpoint
