#include "ashlar/data/sidecar.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"

namespace ashlar::data {
namespace {

constexpr std::string_view kFormat = "ashlar-dataset";
constexpr int64_t kVersion = 1;

// Members of one JSON object, each with its checks; `path_` is where the object stands.
class Members {
 public:
  Members(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
    ASHLAR_REQUIRE(object.is_object(), kData, "{} is a {}; expected an object", path_,
                   object.type_name());
  }

  const Json& get(const char* name) const {
    const auto member = object_.find(name);
    ASHLAR_REQUIRE(member != object_.end(), kData, "{} has no member \"{}\"; expected one", path_,
                   name);
    return *member;
  }
  int64_t number(const char* name, int64_t low, int64_t high) const {
    const Json& value = get(name);
    const bool fits =
        value.is_number_integer() && (!value.is_number_unsigned() ||
                                      value.get<uint64_t>() <= std::numeric_limits<int64_t>::max());
    ASHLAR_REQUIRE(fits && value.get<int64_t>() >= low && value.get<int64_t>() <= high, kData,
                   "{}.{} is {}; expected an integer from {} to {}", path_, name, value.dump(), low,
                   high);
    return value.get<int64_t>();
  }
  std::string text(const char* name) const {
    const Json& value = get(name);
    ASHLAR_REQUIRE(value.is_string(), kData, "{}.{} is a {}; expected a string", path_, name,
                   value.type_name());
    return value.get<std::string>();
  }
  uint64_t hex(const char* name, size_t digits) const {
    const std::string value = text(name);
    uint64_t number = 0;
    const char* end = value.data() + value.size();
    const auto parsed = std::from_chars(value.data(), end, number, 16);
    ASHLAR_REQUIRE(value.size() == digits && parsed.ptr == end && parsed.ec == std::errc(), kData,
                   "{}.{} is \"{}\"; expected {} hexadecimal digits", path_, name, value, digits);
    return number;
  }

 private:
  const Json& object_;
  std::string path_;
};

}  // namespace

std::string format_sidecar(const Sidecar& sidecar) {
  Json inputs = Json::array();
  for (const Sidecar::Input& input : sidecar.inputs)
    inputs.push_back(
        {{"path", input.path}, {"bytes", input.bytes}, {"documents", input.documents}});
  const Json object = {{"format", kFormat},
                       {"version", kVersion},
                       {"tokenizer",
                        {{"kind", sidecar.tokenizer_kind},
                         {"fingerprint", fmt::format("{:016x}", sidecar.tokenizer_fingerprint)},
                         {"vocab_size", sidecar.vocab_size},
                         {"eos_id", sidecar.eos_id}}},
                       {"documents", sidecar.documents},
                       {"tokens", sidecar.tokens},
                       {"token_type", sidecar.token_type},
                       {"bin_crc32c", fmt::format("{:08x}", sidecar.bin_crc32c)},
                       {"inputs", inputs}};
  // A path may hold any bytes; what is not UTF-8 in it is replaced.
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Sidecar parse_sidecar(const std::string& text, const std::string& file) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMaxVocab = std::numeric_limits<int32_t>::max();
  const Json object = parse_json(text, file, ErrorKind::kData);
  const Members top(object, file + ": the document");
  ASHLAR_REQUIRE(top.text("format") == kFormat, kData, "{}: format is \"{}\"; expected \"{}\"",
                 file, top.text("format"), kFormat);
  ASHLAR_REQUIRE(top.number("version", 0, kMax) == kVersion, kData,
                 "{}: version is {}; this program reads {}", file, top.number("version", 0, kMax),
                 kVersion);
  const Members tokenizer(top.get("tokenizer"), file + ": tokenizer");
  Sidecar sidecar;
  sidecar.tokenizer_kind = tokenizer.text("kind");
  sidecar.tokenizer_fingerprint = tokenizer.hex("fingerprint", 16);
  sidecar.vocab_size = tokenizer.number("vocab_size", 1, kMaxVocab);
  sidecar.eos_id = static_cast<int32_t>(tokenizer.number("eos_id", 0, sidecar.vocab_size - 1));
  sidecar.documents = top.number("documents", 1, kMax);
  sidecar.tokens = top.number("tokens", 1, kMax);
  sidecar.token_type = top.text("token_type");
  sidecar.bin_crc32c = static_cast<uint32_t>(top.hex("bin_crc32c", 8));
  const Json& inputs = top.get("inputs");
  ASHLAR_REQUIRE(inputs.is_array(), kData, "{}: inputs is a {}; expected an array", file,
                 inputs.type_name());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Members input(inputs[i], fmt::format("{}: inputs[{}]", file, i));
    sidecar.inputs.push_back(
        {input.text("path"), input.number("bytes", 0, kMax), input.number("documents", 0, kMax)});
  }
  return sidecar;
}

Sidecar load_sidecar(FileSystem& files, const std::string& path) {
  return parse_sidecar(read_text(files, path), path);
}

}  // namespace ashlar::data
