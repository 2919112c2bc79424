#include "ashlar/data/tokenizer.h"

#include <algorithm>
#include <array>

#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/json_tokenizer.h"
#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/stream_decoder.h"

namespace ashlar::data {
namespace {

constexpr int32_t kPad = 0, kEos = 1, kBos = 2, kUnk = 3, kFirstByte = 4;
constexpr std::array<std::string_view, 4> kSpecialNames = {"<pad>", "</s>", "<s>", "<unk>"};
constexpr const char *kModelFile = "tokenizer.model", *kJsonFile = "tokenizer.json";
constexpr int64_t kMaxTokenizerBytes = int64_t(256) << 20;
constexpr std::string_view kByteModel = "ashlar byte tokenizer 1\n";

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(std::string name) : name_(std::move(name)) {}
  std::string_view kind() const override { return "byte"; }
  const std::string& name() const override { return name_; }
  int64_t vocab_size() const override { return kFirstByte + 256; }
  int32_t eos_id() const override { return kEos; }
  int32_t bos_id() const override { return kBos; }
  int32_t pad_id() const override { return kPad; }
  int32_t unk_id() const override { return kUnk; }
  const std::string& bytes() const override { return bytes_; }
  int32_t id_of(std::string_view name) const override {
    const auto at = std::ranges::find(kSpecialNames, name);
    return at == kSpecialNames.end() ? -1 : int32_t(at - kSpecialNames.begin());
  }
  LeadingSpace leading_space() const override { return LeadingSpace::kKeep; }
  bool starts_word(int32_t) const override { return false; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i)
      ids[i] = kFirstByte + static_cast<unsigned char>(text[i]);
    return ids;
  }

  size_t independent_part(std::string_view text) const override { return text.size(); }

  std::string piece(int32_t id) const override {
    ASHLAR_REQUIRE(id >= 0 && id < vocab_size(), kData,
                   "{}: token id {} is outside its vocabulary; expected 0 to {}", name_, id,
                   vocab_size() - 1);
    return id < kFirstByte ? "" : std::string(1, static_cast<char>(id - kFirstByte));
  }

 private:
  std::string name_, bytes_{kByteModel};
};

}  // namespace

uint64_t Tokenizer::fingerprint() const {
  return xxh3_64(std::as_bytes(std::span(bytes())));
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamDecoder decoder(*this, {}, skip_special);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

size_t part_of(std::string_view text) {
  const auto is_space = [&](size_t at) {
    return text[at] == ' ' || (text[at] >= 9 && text[at] <= 13);
  };
  const auto is_word = [&](size_t at) { return text[at] > ' ' && text[at] < 0x7F; };
  ASHLAR_ASSERT(!text.empty());
  size_t any_space = 0, any = 0;
  for (size_t at = text.size() - 1; at-- > 1;) {
    if (text[at] == ' ' && is_word(at - 1) && is_word(at + 1)) return at;
    const bool inside = continues_character(text[at]);  // a character
    if (inside || is_space(at - 1)) continue;
    if (any_space == 0 && text[at] == ' ' && !is_space(at + 1)) any_space = at;
    if (any == 0 && !is_space(at)) any = at;
  }
  if (any_space > 0) return any_space;
  return any > 0 ? any : text.size();
}

int32_t first_id(const Tokenizer& tokenizer) {
  if (tokenizer.bos_id() >= 0) return tokenizer.bos_id();
  ASHLAR_REQUIRE(tokenizer.eos_id() >= 0, kData,
                 "{}: the tokenizer has no id that begins a text (bos_id) and none that ends one "
                 "(eos_id), so nothing can follow an empty prompt; give a prompt or ids",
                 tokenizer.name());
  return tokenizer.eos_id();
}

std::unique_ptr<Tokenizer> byte_tokenizer(std::string name) {
  return std::make_unique<ByteTokenizer>(std::move(name));
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string bytes, const std::string& what) {
  if (bytes == kByteModel) return byte_tokenizer(what);
  if (is_json_tokenizer(bytes)) return parse_json_tokenizer(std::move(bytes), what);
  return parse_sentencepiece(std::move(bytes), what);
}

std::unique_ptr<Tokenizer> tokenizer_among(const std::map<std::string, std::string>& files,
                                           const std::string& place) {
  if (const auto model = files.find(kModelFile); model != files.end())
    return parse_tokenizer(model->second, join(place, kModelFile));
  const auto json = files.find(kJsonFile);
  if (json == files.end()) return nullptr;
  return parse_json_tokenizer(with_roles(json->second, files, place), join(place, kJsonFile));
}

std::unique_ptr<Tokenizer> readable_tokenizer_among(const std::map<std::string, std::string>& files,
                                                    const std::string& place, Log& log) {
  if (files.contains(kModelFile)) return tokenizer_among(files, place);
  try {
    return tokenizer_among(files, place);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw;
    log.warn("{}; text cannot be encoded with it", error.what());
    return nullptr;
  }
}

std::unique_ptr<Tokenizer> load_tokenizer(FileSystem& files, const std::string& name) {
  if (name == "byte") return byte_tokenizer();
  const auto info = files.stat(name, LinkPolicy::kFollow);
  ASHLAR_REQUIRE(info, kData,
                 "{}: there is no such tokenizer file; expected a sentencepiece model, a "
                 "tokenizer.json, a directory with one of them, or the word 'byte'",
                 name);
  if (info->type == FileInfo::Type::kDirectory) {
    for (const char* file : {kModelFile, kJsonFile})
      if (files.stat(join(name, file), LinkPolicy::kFollow))
        return load_tokenizer(files, join(name, file));
    ASHLAR_FAIL(kData, "{}: the directory has neither tokenizer.model nor tokenizer.json", name);
  }
  std::string bytes = read_text(files, name, kMaxTokenizerBytes);
  if (bytes.starts_with('{')) bytes = with_roles_beside(files, name, std::move(bytes));
  return parse_tokenizer(std::move(bytes), name);
}

}  // namespace ashlar::data
