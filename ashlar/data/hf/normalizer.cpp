#include "ashlar/data/hf/normalizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/bytes.h"
#include "ashlar/data/hf/pattern.h"
#include "ashlar/data/hf/unicode.h"
#include "ashlar/data/sentencepiece_model.h"

namespace ashlar::data {
namespace {

// Appends what `map` makes of every character.
template <typename Map>
void map_characters(std::string& text, size_t& origin, Map map) {
  std::string out;
  out.reserve(text.size());
  size_t kept = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    map(point.value, std::string_view(text).substr(at, point.length), out);
    if (at < origin) kept = out.size();
    at += point.length;
  }
  origin = kept;
  text = std::move(out);
}

// Replaces a text by what a function makes of it, which is that of its beginning at first.
template <typename Function>
void replace_text(std::string& text, size_t& origin, Function function) {
  if (origin > 0) origin = function(std::string_view(text).substr(0, origin)).size();
  text = function(text);
  // A following character may have joined the first.
  origin = std::min(origin, text.size());
  while (origin < text.size() && continues_character(text[origin])) ++origin;
}

void drop(std::string& text, size_t& origin, CharClass classes) {
  map_characters(text, origin, [&](uint32_t value, std::string_view bytes, std::string& out) {
    if (!has_class(value, classes)) out += bytes;
  });
}

class FormNormalizer : public TextNormalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  void apply(std::string& text, size_t& origin) const override {
    replace_text(text, origin, [&](std::string_view part) { return normal_form(part, form_); });
  }
  std::string_view word_border() const override { return " "; }

 private:
  NormalForm form_;
};

// The control characters and spaces of sentencepiece's nmt_nfkc.
class NmtNormalizer : public TextNormalizer {
 public:
  void apply(std::string& text, size_t& origin) const override {
    map_characters(text, origin, [](uint32_t c, std::string_view bytes, std::string& out) {
      const bool dropped = (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                           c == 0x8F || c == 0x9F;
      const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
                         c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      if (!dropped) out += space ? " " : bytes;
    });
  }
  std::string_view word_border() const override { return " "; }
};

class LowercaseNormalizer : public TextNormalizer {
 public:
  void apply(std::string& text, size_t& origin) const override {
    replace_text(text, origin, lowercase);
  }
  std::string_view word_border() const override { return " "; }
};

class StripNormalizer : public TextNormalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, size_t& origin) const override {
    while (right_ && !text.empty()) {
      const CodePoint point = code_point_before(text, text.size());
      if (!has_class(point.value, kSpaceChar)) break;
      text.resize(text.size() - point.length);
    }
    size_t begin = 0;
    while (left_ && begin < text.size()) {
      const CodePoint point = code_point_at(text, begin);
      if (!has_class(point.value, kSpaceChar)) break;
      begin += point.length;
    }
    text.erase(0, begin);
    origin -= std::min(origin, begin);
  }

 private:
  bool left_, right_;
};

class StripAccentsNormalizer : public TextNormalizer {
 public:
  void apply(std::string& text, size_t& origin) const override { drop(text, origin, kMarkChar); }
  std::string_view word_border() const override { return " "; }
};

class PrependNormalizer : public TextNormalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text, size_t& origin) const override {
    if (!text.empty()) text.insert(0, prefix_);
    if (origin > 0) origin += prefix_.size();
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public TextNormalizer {
 public:
  ReplaceNormalizer(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text, size_t& origin) const override {
    TextSegment first{};
    std::string out = pattern_.replace(text, content_, &first);
    // To the library, the text that replaces several characters stands where their last one did.
    if (first.match) origin = first.end <= origin ? content_.size() + origin - first.end : 0;
    text = std::move(out);
  }
  std::string_view word_border() const override {
    return pattern_.literal() == " " && content_ == kPieceSpace ? kPieceSpace : "";
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

// Source  BERT's tokenization.py.
class BertTextNormalizer : public TextNormalizer {
 public:
  explicit BertTextNormalizer(const Fields& fields)
      : cleans_(fields.boolean("clean_text")),
        spaces_chinese_(fields.boolean("handle_chinese_chars")),
        lowers_(fields.boolean("lowercase")) {
    const bool stated = fields.has("strip_accents") && !fields.at("strip_accents").is_null();
    strips_accents_ = stated ? fields.boolean("strip_accents") : lowers_;
  }
  void apply(std::string& text, size_t& origin) const override {
    if (cleans_) clean(text, origin);
    if (spaces_chinese_)
      map_characters(text, origin, [](uint32_t c, std::string_view bytes, std::string& out) {
        const bool chinese = is_chinese(c);
        if (chinese) out += ' ';
        out += bytes;
        if (chinese) out += ' ';
      });
    if (strips_accents_) {
      replace_text(text, origin,
                   [](std::string_view part) { return normal_form(part, NormalForm::kNfd); });
      drop(text, origin, kBertAccentChar);
    }
    if (lowers_) replace_text(text, origin, lowercase);
  }
  std::string_view word_border() const override { return " "; }

 private:
  static void clean(std::string& text, size_t& origin) {
    map_characters(text, origin, [](uint32_t c, std::string_view bytes, std::string& out) {
      if (c == 0xFFFD || has_class(c, kBertControlChar)) return;
      out += has_class(c, kSpaceChar) ? " " : bytes;
    });
  }
  static bool is_chinese(uint32_t c) {
    static constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
        {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
        {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    return std::ranges::any_of(
        kRanges, [&](const auto& range) { return range.first <= c && c <= range.second; });
  }
  bool cleans_, spaces_chinese_, lowers_, strips_accents_ = false;
};

class ByteLevelNormalizer : public TextNormalizer {
 public:
  void apply(std::string& text, size_t& origin) const override {
    replace_text(text, origin, byte_level_text);
  }
};

class NormalizerSequence : public TextNormalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<TextNormalizer>> parts)
      : parts_(std::move(parts)) {}
  void apply(std::string& text, size_t& origin) const override {
    for (const auto& part : parts_) apply_part(*part, text, origin);
  }
  std::string_view word_border() const override {
    std::string_view border = " ";
    for (const auto& part : parts_) border = border == " " ? part->word_border() : "";
    return border;
  }

 private:
  static void apply_part(const TextNormalizer& part, std::string& text, size_t& origin) {
    if (text.empty()) return;
    part.apply(text, origin);
    require_text_size(text.size());
  }
  std::vector<std::unique_ptr<TextNormalizer>> parts_;
};

std::unique_ptr<TextNormalizer> parse_normalizers(const Fields& fields, const std::string& place) {
  std::vector<std::unique_ptr<TextNormalizer>> parts;
  for (const Json& part : fields.array("normalizers"))
    if (auto parsed = parse_normalizer(part, place)) parts.push_back(std::move(parsed));
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

}  // namespace

std::unique_ptr<TextNormalizer> parse_normalizer(const Json& json, const std::string& place) {
  if (json.is_null()) return nullptr;
  const Fields fields(json, place, ErrorKind::kData);
  const std::string& type = fields.text("type");
  static constexpr std::string_view kForms[] = {"NFC", "NFD", "NFKC", "NFKD"};
  if (const auto* form = std::ranges::find(kForms, type); form != std::end(kForms))
    return std::make_unique<FormNormalizer>(NormalForm(form - kForms));
  if (type == "Sequence") return parse_normalizers(fields, place);
  if (type == "Nmt") return std::make_unique<NmtNormalizer>();
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "BertNormalizer") return std::make_unique<BertTextNormalizer>(fields);
  if (type == "Precompiled") return parse_precompiled(json, place);
  if (type == "Strip")
    return std::make_unique<StripNormalizer>(fields.boolean("strip_left"),
                                             fields.boolean("strip_right"));
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(fields.text("prepend"));
  if (type == "Replace")
    return std::make_unique<ReplaceNormalizer>(
        TextPattern(fields.at("pattern"), place + ": Replace"), fields.text("content"));
  fields.fail("the type {} of a normalizer is not known", type);
}

}  // namespace ashlar::data
