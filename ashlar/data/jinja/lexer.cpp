// How it works.  text_until_tag() takes the text up to the next tag and strips it as the tag's sign
// says ("-", "+" or none); then one of comment(), raw() and tag() takes the tag, and skip_after()
// the white space that its end swallows.
#include "ashlar/data/jinja/lexer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/jinja/python_text.h"

namespace ashlar::data::jinja {
namespace {

using Kind = TemplateToken::Kind;

std::string unified_lines(std::string_view source) {
  std::string out;
  for (size_t at = 0; at < source.size(); ++at) {
    if (source[at] == '\r' && source.substr(at).starts_with("\r\n")) continue;
    out += source[at] == '\r' ? '\n' : source[at];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : source_(unified_lines(source)), rest_(source_), name_(name) {}

  std::vector<TemplateToken> run() {
    while (!rest_.empty()) {
      text_until_tag();
      if (rest_.empty()) break;
      if (rest_[1] == '#')
        comment();
      else if (!raw())
        tag();
    }
    add(Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(SourcePlace place, std::string_view message) {
    fail_at(name_, place, message);
  }

  // Moves over `size` bytes.
  void skip(size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    const size_t line = taken.rfind('\n');
    place_.line += static_cast<int32_t>(std::ranges::count(taken, '\n'));
    if (line != taken.npos) place_.column = 1;
    place_.column +=
        static_cast<int32_t>(num_characters(line == taken.npos ? taken : taken.substr(line + 1)));
    if (size > 0) line_begins_ = taken.back() == '\n';
  }

  void add(Kind kind, std::string text = "") { tokens_.push_back({kind, place_, std::move(text)}); }

  void text_until_tag() {
    size_t end = 0;
    while ((end = rest_.find('{', end)) != rest_.npos && end + 1 < rest_.size() &&
           rest_[end + 1] != '%' && rest_[end + 1] != '{' && rest_[end + 1] != '#')
      ++end;
    if (end == rest_.npos || end + 1 >= rest_.size()) end = rest_.size();
    std::string_view text = rest_.substr(0, end);
    const char sign = end + 2 < rest_.size() ? rest_[end + 2] : ' ';
    if (end < rest_.size()) text = stripped_before(text, rest_[end + 1], sign);
    if (!text.empty()) add(Kind::kText, std::string(text));
    skip(end);
  }

  // The rest of the text before a tag: lstrip_blocks takes the white space between the
  // beginning of the line and a block or a comment.
  std::string_view stripped_before(std::string_view text, char tag, char sign) const {
    if (sign == '-') return strip(text, Side::kRight);
    if (sign == '+' || tag == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // 0 if there is none
    if (line == 0 && !line_begins_) return text;
    return strip(text.substr(line), Side::kRight).empty() ? text.substr(0, line) : text;
  }

  // Moves over the end of a tag and what it swallows: "-" all white space, and unless there is a
  // "+", a block or a comment swallows one line end.
  void skip_after(char sign, size_t end_bytes, bool swallows_line) {
    skip(end_bytes);
    if (sign == '-') {
      const size_t left = strip(rest_, Side::kLeft).size();
      skip(rest_.size() - left);
    } else if (sign != '+' && swallows_line && rest_.starts_with('\n')) {
      skip(1);
    }
  }

  void comment() {
    const size_t end = rest_.find("#}", 2);
    if (end == rest_.npos) fail(place_, "the comment has no end; expected #}");
    const char sign = rest_[end - 1];
    skip(end);
    skip_after(sign, 2, true);
  }

  // {% raw %} text {% endraw %}; false if there is another tag.
  bool raw() {
    size_t at = 0;
    if (!matches_tag(at, "raw", false)) return false;
    const SourcePlace begin = place_;
    const char sign = rest_[at - 3];
    skip(at);
    if (sign == '-') skip_after('-', 0, false);
    for (size_t end = 0; (end = rest_.find("{%", end)) != rest_.npos; ++end) {
      size_t after = end;
      if (!matches_tag(after, "endraw", true)) continue;
      const std::string_view text =
          stripped_before(rest_.substr(0, end), '%', end + 2 < rest_.size() ? rest_[end + 2] : ' ');
      if (!text.empty()) add(Kind::kText, std::string(text));
      const char end_sign = rest_[after - 3];
      skip(after);
      skip_after(end_sign, 0, true);
      return true;
    }
    fail(begin, "the tag raw has no end; expected {% endraw %}");
  }

  // Whether rest_ has {% WORD %} at `at`, which then moves behind it.
  bool matches_tag(size_t& at, std::string_view word, bool plus) const {
    const auto sign = [&](size_t i) {
      return i < rest_.size() && (rest_[i] == '-' || (plus && rest_[i] == '+'));
    };
    size_t next = at + 2;
    if (!rest_.substr(at).starts_with("{%")) return false;
    if (next < rest_.size() && (rest_[next] == '-' || rest_[next] == '+')) ++next;
    const auto skip_space = [&] {
      while (next < rest_.size() && (rest_[next] == ' ' || (rest_[next] >= 9 && rest_[next] <= 13)))
        ++next;
    };
    skip_space();
    if (!rest_.substr(next).starts_with(word)) return false;
    next += word.size();
    skip_space();
    if (sign(next)) ++next;
    if (!rest_.substr(next).starts_with("%}")) return false;
    at = next + 2;
    return true;
  }

  void tag() {
    const bool variable = rest_[1] == '{';
    const SourcePlace begin = place_;
    add(variable ? Kind::kVariableBegin : Kind::kBlockBegin);
    skip(2);
    if (rest_.starts_with('-') || rest_.starts_with('+')) skip(1);
    std::vector<char> open;  // brackets
    while (true) {
      const std::string_view left = strip(rest_, Side::kLeft);
      skip(rest_.size() - left.size());
      if (rest_.empty())
        fail(begin, fmt::format("the tag has no end; expected {}", variable ? "}}" : "%}"));
      if (open.empty() && tag_ends(variable)) return;
      token(open);
    }
  }

  bool tag_ends(bool variable) {
    const std::string_view end = variable ? "}}" : "%}";
    char sign = ' ';
    std::string_view after = rest_;
    if (after[0] == '-' || (after[0] == '+' && !variable)) {
      sign = after[0];
      after.remove_prefix(1);
    }
    if (!after.starts_with(end)) return false;
    add(variable ? Kind::kVariableEnd : Kind::kBlockEnd);
    if (sign != ' ') skip(1);
    skip_after(sign, 2, !variable);
    return true;
  }

  void token(std::vector<char>& open) {
    const char c = rest_[0];
    if (begins_name(c)) return word();
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string();
    static constexpr std::array<std::string_view, 26> kOperators = {
        "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto* found = std::ranges::find_if(
        kOperators, [&](std::string_view symbol) { return rest_.starts_with(symbol); });
    if (found == kOperators.end())
      fail(place_,
           fmt::format("unexpected character '{}'",
                       printable(std::string(rest_.substr(0, utf8_step(rest_, 0).length)))));
    balance(c, open);
    add(Kind::kOperator, std::string(*found));
    skip(found->size());
  }

  void balance(char c, std::vector<char>& open) {
    if (c == '(') open.push_back(')');
    if (c == '[') open.push_back(']');
    if (c == '{') open.push_back('}');
    if (c != ')' && c != ']' && c != '}') return;
    if (open.empty()) fail(place_, fmt::format("unexpected '{}'", c));
    if (open.back() != c)
      fail(place_, fmt::format("unexpected '{}'; expected '{}'", c, open.back()));
    open.pop_back();
  }

  void word() {
    size_t size = 1;
    while (size < rest_.size() && (begins_name(rest_[size]) || is_digit(rest_[size]))) ++size;
    add(Kind::kName, std::string(rest_.substr(0, size)));
    skip(size);
  }

  size_t digits(size_t at) const {
    const auto ends = [&](size_t i) { return i >= rest_.size() || !is_digit(rest_[i]); };
    while (!ends(at) || (at < rest_.size() && rest_[at] == '_' && !ends(at + 1))) ++at;
    return at;
  }

  void number() {
    if (rest_.size() > 1 && rest_[0] == '0' && begins_name(rest_[1]) && rest_[1] != 'e' &&
        rest_[1] != 'E')
      fail(place_, "numbers in other bases than ten are not supported");
    size_t end = digits(0);
    bool real = false;
    if (end + 1 < rest_.size() && rest_[end] == '.' && is_digit(rest_[end + 1])) {
      real = true;
      end = digits(end + 1);
    }
    if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
      const bool sign = end + 1 < rest_.size() && (rest_[end + 1] == '+' || rest_[end + 1] == '-');
      const size_t after = digits(end + 1 + sign);
      if (after > end + 1 + sign) {
        real = true;
        end = after;
      }
    }
    std::string text(rest_.substr(0, end));
    std::erase(text, '_');
    add(real ? Kind::kFloat : Kind::kInteger, std::move(text));
    skip(end);
  }

  void string() {
    const char quote = rest_[0];
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail(place_, "the string has no end");
    add(Kind::kString, unescaped(rest_.substr(1, end - 1)));
    skip(end + 1);
  }

  std::string unescaped(std::string_view text) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '\\')
        out += text[at++];
      else
        at += escape(text.substr(at), out);
    }
    return out;
  }

  // Appends what an escape sequence stands for, and returns its length.
  size_t escape(std::string_view text, std::string& out) {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeant = "\\'\"\a\b\f\n\r\t\v";
    const char c = text[1];
    if (c == '\n') return 2;
    if (const size_t known = kLetters.find(c); known != kLetters.npos) {
      out += kMeant[known];
      return 2;
    }
    if (c >= '0' && c <= '7') return octal(text, out);
    const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') fail(place_, "the escape \\N{...} is not supported");
    if (count == 0) {
      out += '\\';
      return 1;
    }
    const std::string_view hex = text.substr(2, count);
    uint32_t value = 0;
    for (const char digit : hex) {
      const size_t nibble = std::string_view("0123456789abcdef").find(char(digit | 0x20));
      if ((!is_digit(digit) && !begins_name(digit)) || nibble == std::string_view::npos)
        value = ~0u;
      else if (value != ~0u)
        value = value << 4 | static_cast<uint32_t>(nibble);
    }
    if (hex.size() < count || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
      fail(place_, fmt::format("\\{}{} is no character", c, printable(std::string(hex))));
    append_code_point(out, value);
    return 2 + count;
  }

  static size_t octal(std::string_view text, std::string& out) {
    uint32_t value = 0;
    size_t at = 1;
    for (; at < text.size() && at <= 3 && text[at] >= '0' && text[at] <= '7'; ++at)
      value = value << 3 | static_cast<uint32_t>(text[at] - '0');
    append_code_point(out, value);
    return at;
  }

  const std::string source_;
  std::string_view rest_;
  const std::string& name_;
  SourcePlace place_;
  bool line_begins_ = true;  // the last token ended a line
  std::vector<TemplateToken> tokens_;
};

}  // namespace

void fail_at(const std::string& name, SourcePlace place, std::string_view message) {
  throw Error(ErrorKind::kData,
              fmt::format("{} line {} column {}: {}", name, place.line, place.column, message));
}

std::vector<TemplateToken> tokens_of(std::string_view source, const std::string& name) {
  ASHLAR_REQUIRE(source.size() <= kMaxTemplateBytes, kData,
                 "{}: the template has {} bytes; expected at most {}", name, source.size(),
                 kMaxTemplateBytes);
  const Utf8Report report = check_utf8(source);
  ASHLAR_REQUIRE(report.num_invalid == 0, kData, "{}: byte {} is not UTF-8", name,
                 report.first_invalid);
  return Lexer(source, name).run();
}

}  // namespace ashlar::data::jinja
