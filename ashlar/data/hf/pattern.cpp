#define PCRE2_CODE_UNIT_WIDTH 8
#include "ashlar/data/hf/pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/pattern_syntax.h"
#include "ashlar/data/hf/unicode.h"

namespace ashlar::data {
namespace {

constexpr uint32_t kMostSteps = 1'000'000, kMostHeapKib = 64 << 10;
constexpr size_t kMostExpressionBytes = 64 << 10;

struct FreePcre {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
template <typename T>
using PcrePointer = std::unique_ptr<T, FreePcre>;

std::string message_of_pcre(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR as_pcre(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

struct TextPattern::Expression {
  PcrePointer<pcre2_code> code;
  PcrePointer<pcre2_match_context> context;
  std::vector<std::pair<uint32_t, uint32_t>> named;
  std::string text, place;

  Expression(const std::string& expression, const std::string& where)
      : text(expression), place(where) {
    ASHLAR_REQUIRE(expression.size() <= kMostExpressionBytes, kData,
                   "{}: the regular expression has {} bytes; expected at most {}", place,
                   expression.size(), kMostExpressionBytes);
    TranslatedPattern translated = translate_pattern(expression, place);
    named = std::move(translated.named);
    const PcrePointer<pcre2_compile_context> settings(pcre2_compile_context_create(nullptr));
    pcre2_set_newline(settings.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    PCRE2_SIZE where_in = 0;
    code.reset(pcre2_compile(as_pcre(translated.pcre), translated.pcre.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error, &where_in, settings.get()));
    ASHLAR_REQUIRE(code, kData, "{}: PCRE2 does not read the regular expression: {}", place,
                   message_of_pcre(error));
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // else it is interpreted
    context.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context.get(), kMostSteps);
    pcre2_set_heap_limit(context.get(), kMostHeapKib);
  }

  // Whether a stand-in belongs to the same named characters.
  bool can_stand_for(uint32_t other, uint32_t value) const {
    return std::ranges::none_of(named, [&](const auto& range) {
      const auto inside = [&](uint32_t c) { return range.first <= c && c <= range.second; };
      return inside(other) != inside(value);
    });
  }

  // The text with stand-ins, in `buffer`, or the text itself if it needs none.
  std::string_view readable(std::string_view text, std::string& buffer) const {
    for (size_t at = 0; at < text.size();) {
      if (static_cast<unsigned char>(text[at]) < 0xE0) {
        ++at;
        continue;
      }
      const CodePoint point = code_point_at(text, at);
      if (has_class(point.value, kReplacedChar)) {
        const uint32_t other = stand_in(point.value);
        if (can_stand_for(other, point.value)) {
          if (buffer.empty()) buffer = text;
          std::string bytes;
          append_code_point(bytes, other);
          buffer.replace(at, point.length, bytes);
        }
      }
      at += point.length;
    }
    return buffer.empty() ? text : buffer;
  }

  // Whether there is a match from `at` on; its place.
  bool find(std::string_view text, size_t at, pcre2_match_data* data, TextSegment& found) const {
    int result = pcre2_match(code.get(), as_pcre(text), text.size(), at, PCRE2_NO_UTF_CHECK, data,
                             context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
      result = pcre2_match(code.get(), as_pcre(text), text.size(), at,
                           PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context.get());
    if (result == PCRE2_ERROR_NOMATCH) return false;
    ASHLAR_REQUIRE(result > 0, kData,
                   "{}: the regular expression gives up on a text of {} bytes: {}", place,
                   text.size(), message_of_pcre(result));
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    found = {ends[0], ends[1], true};
    return true;
  }
};

TextPattern::TextPattern(const Json& pattern, const std::string& place) {
  const Fields fields(pattern, place, ErrorKind::kData);
  fields.only({"String", "Regex"});
  if (fields.has("Regex")) {
    expression_ = std::make_unique<Expression>(fields.text("Regex"), place);
    return;
  }
  literal_ = fields.text("String");
  if (literal_.empty()) fields.fail("String is empty; expected text");
}

TextPattern TextPattern::regex(const std::string& expression, const std::string& place) {
  TextPattern pattern;
  pattern.expression_ = std::make_unique<Expression>(expression, place);
  return pattern;
}

TextPattern::~TextPattern() = default;
TextPattern::TextPattern(TextPattern&&) noexcept = default;

std::string_view TextPattern::expression() const {
  return expression_ ? std::string_view(expression_->text) : "";
}

std::vector<TextSegment> TextPattern::segments(std::string_view text) const {
  std::vector<TextSegment> all;
  size_t done = 0;
  const auto add = [&](size_t begin, size_t end) {
    if (begin > done) all.push_back({done, begin, false});
    all.push_back({begin, end, true});
    done = end;
  };
  if (!expression_) {
    for (size_t at = text.find(literal_); at != text.npos; at = text.find(literal_, done))
      add(at, at + literal_.size());
  } else {
    std::string buffer;
    const std::string_view read = expression_->readable(text, buffer);
    const PcrePointer<pcre2_match_data> data(pcre2_match_data_create(1, nullptr));
    TextSegment found{};
    size_t from = 0, last_end = std::string::npos;
    while (from <= read.size() && expression_->find(read, from, data.get(), found)) {
      from = found.end;
      if (found.begin == found.end && found.end == last_end) {  // nothing, where one just ended
        from += from < read.size() ? code_point_at(read, from).length : 1;
        continue;
      }
      last_end = found.end;
      add(found.begin, found.end);
    }
  }
  if (done < text.size()) all.push_back({done, text.size(), false});
  return all;
}

std::string TextPattern::replace_literal(std::string_view text,
                                         std::string_view replacement) const {
  size_t matches = 0;
  for (size_t at = text.find(literal_); at != text.npos; at = text.find(literal_, at))
    ++matches, at += literal_.size();
  require_text_size(text.size() + matches * replacement.size());
  std::string out;
  out.reserve(text.size() - matches * literal_.size() + matches * replacement.size());
  size_t done = 0;
  for (; matches > 0; --matches) {
    const size_t at = text.find(literal_, done);
    out.append(text.substr(done, at - done)).append(replacement);
    done = at + literal_.size();
  }
  return out.append(text.substr(done));
}

std::string TextPattern::replace(std::string_view text, std::string_view replacement,
                                 TextSegment* first) const {
  if (text.empty()) return "";
  if (!expression_) {
    if (first) *first = {0, std::min(literal_.size(), text.size()), text.starts_with(literal_)};
    return replace_literal(text, replacement);
  }
  const std::vector<TextSegment> parts = segments(text);
  if (first) *first = parts[0];
  const auto matches = size_t(std::ranges::count(parts, true, &TextSegment::match));
  require_text_size(text.size() + matches * replacement.size());
  std::string out;
  for (const TextSegment& part : parts)
    out += part.match ? replacement : text.substr(part.begin, part.end - part.begin);
  return out;
}

void require_text_size(size_t bytes) {
  ASHLAR_REQUIRE(bytes <= kMostTextBytes, kData,
                 "the tokenizer makes {} bytes of a text; expected at most {}", bytes,
                 kMostTextBytes);
}

}  // namespace ashlar::data
