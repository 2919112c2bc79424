#include "ashlar/data/hf/pattern_syntax.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"

namespace ashlar::data {
namespace {

// Members of \w inside a class: Oniguruma counts marks, connectors and letters in circles as well.
constexpr std::string_view kWordMembers =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE\\x{24B6}-\\x{24E9}"
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
constexpr std::string_view kHexMembers = "0-9A-Fa-f";
constexpr std::string_view kCategoryNames[] = {
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};
constexpr std::string_view kScriptNames[] = {
    "Arabic",   "Armenian",  "Bengali", "Cyrillic", "Devanagari", "Ethiopic", "Georgian", "Greek",
    "Gujarati", "Han",       "Hangul",  "Hebrew",   "Hiragana",   "Katakana", "Khmer",    "Lao",
    "Latin",    "Mongolian", "Myanmar", "Tamil",    "Telugu",     "Thai",     "Tibetan"};
// Two letters that Oniguruma also finds in one character where case does not count.
constexpr std::string_view kFoldedPairs[] = {"ss", "st", "ff", "fi", "fl"};
constexpr int kDeepestGroup = 50;

class PatternTranslator {
 public:
  PatternTranslator(std::string_view in, const std::string& place) : in_(in), place_(place) {}

  TranslatedPattern translate() {
    require(check_utf8(in_).num_invalid == 0, "text that is not UTF-8");
    if (in_.starts_with("(?i)")) {
      at_ = 4;
      out_.pcre = "(?i)";
      ignores_case_ = true;
    }
    alternatives();
    require(at_ == in_.size(), ")");
    return std::move(out_);
  }

 private:
  void require(bool known, std::string_view what) const {
    ASHLAR_REQUIRE(known, kData, "{}: the regular expression has {} at byte {}, which is not read",
                   place_, printable(what), at_);
  }
  bool ended() const { return at_ >= in_.size(); }
  bool sees(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void copy(size_t count) {
    out_.pcre += in_.substr(at_, count);
    at_ += count;
  }

  void alternatives() {
    while (!ended() && in_[at_] != ')') {
      if (in_[at_] == '|') {
        copy(1);
        last_literal_ = 0;
        continue;
      }
      atom();
      quantifier();
    }
  }

  void atom() {
    const char c = in_[at_];
    if (c == '(') return group();
    if (c == '[') return char_class();
    if (c == '\\') return escape();
    if (c == '^' || c == '$' || c == '.') return copy(1);
    require(c != '*' && c != '+' && c != '?' && c != '{', in_.substr(at_, 1));
    literal(take_code_point());
  }

  uint32_t take_code_point() {
    const CodePoint point = code_point_at(in_, at_);
    at_ += point.length;
    return point.value;
  }

  void literal(uint32_t value) {
    if (ignores_case_) {
      require(value < 0x80, "a letter of no ASCII whose case does not count");
      const char lower = char(value >= 'A' && value <= 'Z' ? value + 32 : value);
      const char pair[] = {last_literal_, lower};
      require(std::ranges::find(kFoldedPairs, std::string_view(pair, 2)) == std::end(kFoldedPairs),
              "two letters that ligatures stand for");
      last_literal_ = lower;
    }
    name(value, value);
    out_.pcre += fmt::format("\\x{{{:X}}}", value);
  }

  void name(uint32_t first, uint32_t last) {
    if (last >= 0x80) out_.named.emplace_back(first, last);
  }

  void group() {
    static constexpr std::string_view kOpenings[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                                     "(?<=", "(?<!", "(?i:", "(?-i:"};
    require(++depth_ <= kDeepestGroup, "groups nested deeper than 50");
    const bool before = ignores_case_;
    if (sees("(?")) {
      const auto* opening =
          std::ranges::find_if(kOpenings, [&](std::string_view text) { return sees(text); });
      require(opening != std::end(kOpenings), in_.substr(at_, 4));
      if (*opening == "(?i:" || *opening == "(?-i:") ignores_case_ = *opening == "(?i:";
      copy(opening->size());
    } else {
      out_.pcre += "(?:";
      ++at_;
    }
    last_literal_ = 0;
    alternatives();
    require(!ended(), "no ) for a (");
    copy(1);
    ignores_case_ = before;
    last_literal_ = 0;
    --depth_;
  }

  void quantifier() {
    if (ended()) return;
    const char c = in_[at_];
    if (c == '*' || c == '+' || c == '?') {
      copy(1);
      if (sees("+") || sees("?")) copy(1);
      last_literal_ = 0;
    } else if (c == '{') {
      interval();
      last_literal_ = 0;
    }
    require(!sees("*") && !sees("+") && !sees("?") && !sees("{"), "two quantifiers in a row");
  }

  // {n}, {n,}, {n,m} and Ruby's {,m}; of which only those with a comma can be lazy.
  void interval() {
    const size_t close = in_.find('}', at_);
    require(close != std::string::npos, "{");
    const std::string_view inside = in_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = inside.find(',');
    const auto is_number = [](std::string_view text) {
      return text.size() <= 4 &&
             std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    };
    const std::string_view low = inside.substr(0, comma);
    const std::string_view high = comma == std::string::npos ? "" : inside.substr(comma + 1);
    require(is_number(low) && is_number(high) && low.size() + high.size() > 0, "{");
    out_.pcre += fmt::format("{{{}{}{}}}", low.empty() ? "0" : low,
                             comma == std::string::npos ? "" : ",", high);
    at_ = close + 1;
    if (comma != std::string::npos && sees("?")) copy(1);
  }

  void escape() {
    if (const std::string property = take_property(); !property.empty()) {
      out_.pcre += property;
      last_literal_ = 0;
      return;
    }
    require(at_ + 1 < in_.size(), "\\ at its end");
    const char c = in_[at_ + 1];
    last_literal_ = 0;
    if (std::string_view("sSdDAzZ").find(c) != std::string::npos) return copy(2);
    const std::string_view word = kWordMembers;
    if (c == 'w' || c == 'W') return set(fmt::format("[{}{}]", c == 'W' ? "^" : "", word));
    if (c == 'h' || c == 'H') return set(fmt::format("[{}{}]", c == 'H' ? "^" : "", kHexMembers));
    if (c == 'b') return set(fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", word));
    if (c == 'B') return set(fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", word));
    literal(take_escaped());
  }
  void set(std::string_view text) {
    out_.pcre += text;
    at_ += 2;
  }

  // \p{L}, \P{L}, \p{^L}, \p{Han}; "" if there is none here.
  std::string take_property() {
    if (!sees("\\p{") && !sees("\\P{")) return "";
    const size_t close = in_.find('}', at_);
    require(close != std::string::npos, "\\p{");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    bool negated = in_[at_ + 1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const bool category = std::ranges::find(kCategoryNames, name) != std::end(kCategoryNames);
    const bool script = std::ranges::find(kScriptNames, name) != std::end(kScriptNames);
    require(category || script, in_.substr(at_, close + 1 - at_));
    require(!ignores_case_ || (name != "Lu" && name != "Ll" && name != "Lt"),
            "a property of case where case does not count");
    at_ = close + 1;
    return fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', script ? "sc:" : "", name);
  }

  // \n, \x41, \x{1F600}, é, \. as a character.
  uint32_t take_escaped() {
    const char c = in_[at_ + 1];
    constexpr std::string_view kNames = "tnrfvae", kMeanings = "\t\n\r\f\v\a\x1B";
    if (const size_t which = kNames.find(c); which != std::string::npos) {
      at_ += 2;
      return static_cast<unsigned char>(kMeanings[which]);
    }
    if (c == 'x' || c == 'u') return take_hex(c);
    const bool plain = static_cast<unsigned char>(c) < 0x80 && !(c >= '0' && c <= '9') &&
                       !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
    require(plain, in_.substr(at_, 2));
    at_ += 2;
    return static_cast<unsigned char>(c);
  }

  uint32_t take_hex(char kind) {
    std::string_view digits;
    size_t end = 0;
    if (sees("\\x{")) {
      end = in_.find('}', at_);
      require(end != std::string::npos, "\\x{");
      digits = in_.substr(at_ + 3, end++ - at_ - 3);
    } else {
      digits = in_.substr(at_ + 2, kind == 'u' ? 4 : 2);
      require(digits.size() == (kind == 'u' ? 4u : 2u), in_.substr(at_, 2));
      end = at_ + 2 + digits.size();
    }
    uint32_t value = 0;
    require(!digits.empty() && digits.size() <= 6, "an escaped number");
    for (const char c : digits) {
      const size_t digit = std::string_view("0123456789abcdef").find(char(c | 0x20));
      require(digit != std::string::npos, "an escaped number");
      value = value * 16 + uint32_t(digit);
    }
    const bool one_byte = kind == 'x' && digits.size() == 2 && in_[at_ + 2] != '{';
    require(value < 0x110000 && (value < 0xD800 || value > 0xDFFF) && (!one_byte || value < 0x80),
            in_.substr(at_, end - at_));
    at_ = end;
    return value;
  }

  void char_class() {
    last_literal_ = 0;
    copy(1);
    if (sees("^")) copy(1);
    require(!sees("]"), "an empty class");
    while (!sees("]")) {
      require(!ended(), "no ] for a [");
      require(!sees("[") && !sees("&&"), in_.substr(at_, 2));
      member();
    }
    copy(1);
  }

  void member() {
    if (sees("\\")) {
      if (const std::string property = take_property(); !property.empty()) {
        out_.pcre += property;
        return;
      }
      require(at_ + 1 < in_.size(), "\\ at its end");
      const char c = in_[at_ + 1];
      if (std::string_view("sSdD").find(c) != std::string::npos) return copy(2);
      if (c == 'w') return set(kWordMembers);
      if (c == 'h') return set(kHexMembers);
    }
    const uint32_t first = sees("\\") ? take_escaped() : take_code_point();
    uint32_t last = first;
    if (sees("-") && at_ + 1 < in_.size() && in_[at_ + 1] != ']') {
      ++at_;
      require(!sees("["), "[");
      last = sees("\\") ? take_escaped() : take_code_point();
      require(first <= last, "a range whose end is before its beginning");
    }
    require(!ignores_case_ || last < 0x80, "a letter of no ASCII whose case does not count");
    name(first, last);
    out_.pcre += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", first, last);
  }

  std::string_view in_;
  const std::string& place_;
  size_t at_ = 0;
  int depth_ = 0;
  bool ignores_case_ = false;
  char last_literal_ = 0;
  TranslatedPattern out_;
};

}  // namespace

TranslatedPattern translate_pattern(const std::string& expression, const std::string& place) {
  return PatternTranslator(expression, place).translate();
}

}  // namespace ashlar::data
