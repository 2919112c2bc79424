#include "ashlar/data/sidecar.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ashlar/core/error.h"
#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"

namespace ashlar::data {
namespace {

constexpr std::string_view kFormat = "ashlar-dataset";
// Programs that read version 1 alone know no masks, and would learn every token.
constexpr int64_t kPlainVersion = 1, kMaskedVersion = 2;

}  // namespace

std::string format_sidecar(const Sidecar& sidecar) {
  Json inputs = Json::array();
  for (const Sidecar::Input& input : sidecar.inputs)
    inputs.push_back(
        {{"path", input.path}, {"bytes", input.bytes}, {"documents", input.documents}});
  Json tokenizer = {{"kind", sidecar.tokenizer_kind},
                    {"fingerprint", fmt::format("{:016x}", sidecar.tokenizer_fingerprint)},
                    {"vocab_size", sidecar.vocab_size},
                    {"eos_id", sidecar.eos_id}};
  if (sidecar.bos_id >= 0) tokenizer["bos_id"] = sidecar.bos_id;
  Json object = {{"format", kFormat},
                 {"version", sidecar.mask ? kMaskedVersion : kPlainVersion},
                 {"tokenizer", tokenizer},
                 {"documents", sidecar.documents},
                 {"tokens", sidecar.tokens},
                 {"token_type", sidecar.token_type},
                 {"bin_crc32c", fmt::format("{:08x}", sidecar.bin_crc32c)},
                 {"inputs", inputs}};
  if (sidecar.mask)
    object["mask"] = {{"learned", sidecar.mask->learned},
                      {"crc32c", fmt::format("{:08x}", sidecar.mask->crc32c)}};
  // A path may hold any bytes; what is not UTF-8 in it is replaced.
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Sidecar parse_sidecar(const std::string& text, const std::string& file) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMaxVocab = std::numeric_limits<int32_t>::max();
  const Json object = parse_json(text, file, ErrorKind::kData);
  const Fields top(object, file, ErrorKind::kData);
  if (top.text("format") != kFormat)
    top.fail("format is \"{}\"; expected \"{}\"", top.text("format"), kFormat);
  const int64_t version = top.integer("version", 0, kMax);
  if (version != kPlainVersion && version != kMaskedVersion)
    top.fail("version is {}; this program reads {} and {}", version, kPlainVersion, kMaskedVersion);
  const Fields tokenizer = top.object("tokenizer");
  Sidecar sidecar;
  sidecar.tokenizer_kind = tokenizer.text("kind");
  sidecar.tokenizer_fingerprint = tokenizer.hex("fingerprint", 16);
  sidecar.vocab_size = tokenizer.integer("vocab_size", 1, kMaxVocab);
  sidecar.eos_id = static_cast<int32_t>(tokenizer.integer("eos_id", 0, sidecar.vocab_size - 1));
  // An added token may have an id above those of the model.
  if (tokenizer.has("bos_id"))
    sidecar.bos_id = static_cast<int32_t>(tokenizer.integer("bos_id", 0, kMaxVocab - 1));
  sidecar.documents = top.integer("documents", 1, kMax);
  sidecar.tokens = top.integer("tokens", 1, kMax);
  sidecar.token_type = top.text("token_type");
  sidecar.bin_crc32c = static_cast<uint32_t>(top.hex("bin_crc32c", 8));
  if (version == kMaskedVersion) {
    const Fields mask = top.object("mask");
    sidecar.mask = {.learned = mask.integer("learned", 0, sidecar.tokens),
                    .crc32c = static_cast<uint32_t>(mask.hex("crc32c", 8))};
  }
  const Json& inputs = top.array("inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Fields input(inputs[i], fmt::format("{}: inputs[{}]", file, i), ErrorKind::kData);
    sidecar.inputs.push_back({input.text("path"), input.count("bytes"), input.count("documents")});
  }
  return sidecar;
}

Sidecar load_sidecar(FileSystem& files, const std::string& path) {
  return parse_sidecar(read_text(files, path), path);
}

}  // namespace ashlar::data
