#include "ashlar/data/json_row.h"

#include <array>

#include "ashlar/core/utf8.h"

namespace ashlar::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Bytes at which a run of plain characters of a string ends.
constexpr std::array<bool, 256> ends_run() {
  std::array<bool, 256> ends{};
  for (size_t c = 0; c < 0x20; ++c) ends[c] = true;
  ends['"'] = ends['\\'] = true;
  return ends;
}
constexpr std::array<bool, 256> kEndsRun = ends_run();

// Every function starts at the first byte of what it reads and moves past it.  If it returns false,
// expected() is what is missing at at().
class Scanner {
 public:
  Scanner(std::string_view text, std::string_view member) : text_(text), member_(member) {}

  bool row(JsonRow& row, std::vector<std::string>* keys, size_t most_keys) {
    space();
    row.kind = kind_here();
    if (!(row.kind == JsonKind::kObject ? object(row, keys, most_keys) : value())) return false;
    space();
    return at_ == text_.size() || missing("nothing after the value");
  }
  size_t at() const { return at_; }
  std::string_view expected() const { return expected_; }

 private:
  char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool missing(std::string_view what) {
    expected_ = what;
    return false;
  }
  bool take(char c, std::string_view what) {
    if (here() != c) return missing(what);
    ++at_;
    return true;
  }
  void space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' || text_[at_] == '\n'))
      ++at_;
  }

  JsonKind kind_here() const {
    switch (here()) {
      case '{':
        return JsonKind::kObject;
      case '[':
        return JsonKind::kArray;
      case '"':
        return JsonKind::kString;
      case 't':
      case 'f':
        return JsonKind::kBoolean;
      case 'n':
        return JsonKind::kNull;
      default:
        return JsonKind::kNumber;
    }
  }

  bool object(JsonRow& row, std::vector<std::string>* keys, size_t most_keys) {
    ++at_;
    space();
    if (here() == '}') return ++at_, true;
    for (std::string key;;) {
      const size_t begin = at_ + 1;
      if (!string(nullptr, nullptr)) return false;
      std::string_view name = text_.substr(begin, at_ - begin - 1);
      if (name.find('\\') != name.npos) {  // written with escapes
        at_ = begin - 1;
        key.clear();
        string(&key, nullptr);
        name = key;
      }
      if (keys && keys->size() < most_keys) keys->emplace_back(name);
      space();
      if (!take(':', "a colon")) return false;
      space();
      if (name == member_) {
        row.member = kind_here();
        row.text.clear();
        row.num_replaced = 0;
      }
      const bool wanted = name == member_ && row.member == JsonKind::kString;
      if (!(wanted ? string(&row.text, &row.num_replaced) : value())) return false;
      space();
      if (here() == '}') return ++at_, true;
      if (!take(',', "a comma or the end of the object")) return false;
      space();
    }
  }

  // Any value, with everything inside it.
  bool value() {
    open_.clear();
    for (;;) {
      space();
      if (here() == '{' || here() == '[') {
        open_ += here();
        ++at_;
        space();
        if (here() != closing()) {
          if (!key()) return false;
          continue;
        }
      } else if (!scalar()) {
        return false;
      }
      // A value or a list of members ends here, and perhaps enclosing ones too.
      for (;;) {
        if (open_.empty()) return true;
        space();
        if (here() != closing()) break;
        ++at_;
        open_.pop_back();
      }
      if (!take(',', open_.back() == '{' ? "a comma or the end of the object"
                                         : "a comma or the end of the array"))
        return false;
      space();
      if (!key()) return false;
    }
  }
  char closing() const { return open_.back() == '{' ? '}' : ']'; }
  // The key before a value of an object.
  bool key() {
    if (open_.back() == '[') return true;
    if (!string(nullptr, nullptr)) return false;
    space();
    return take(':', "a colon");
  }

  bool scalar() {
    switch (here()) {
      case '"':
        return string(nullptr, nullptr);
      case 't':
        return word("true");
      case 'f':
        return word("false");
      case 'n':
        return word("null");
      case 'N':
        return word("NaN");
      case 'I':
        return word("Infinity");
      default:
        return number();
    }
  }
  bool word(std::string_view expected) {
    for (const char c : expected)
      if (!take(c, expected)) return false;
    return true;
  }
  bool number() {
    if (here() == '-') {
      ++at_;
      if (here() == 'I') return word("Infinity");
    }
    if (here() == '0')
      ++at_;
    else if (!digits("a value"))
      return false;
    if (here() == '.') {
      ++at_;
      if (!digits("a digit")) return false;
    }
    if (here() != 'e' && here() != 'E') return true;
    ++at_;
    if (here() == '+' || here() == '-') ++at_;
    return digits("a digit");
  }
  bool digits(std::string_view what) {
    if (!is_digit(here())) return missing(what);
    while (is_digit(here())) ++at_;
    return true;
  }

  // Its characters go to `out`, unless that is null.
  bool string(std::string* out, int64_t* num_replaced) {
    if (!take('"', "a quotation mark")) return false;
    for (;;) {
      const size_t begin = at_;
      while (at_ < text_.size() && !kEndsRun[static_cast<unsigned char>(text_[at_])]) ++at_;
      if (out) out->append(text_, begin, at_ - begin);
      if (here() == '"') return ++at_, true;
      if (here() != '\\') return missing("the string's end, or an escape for a control character");
      ++at_;
      if (!escape(out, num_replaced)) return false;
    }
  }

  bool escape(std::string* out, int64_t* num_replaced) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (here() == 'u') {
      ++at_;
      uint32_t code;
      return hex(code) && unicode(code, out, num_replaced);
    }
    const size_t which = at_ < text_.size() ? kNames.find(here()) : kNames.npos;
    if (which == kNames.npos) return missing("one of \" \\ / b f n r t u");
    if (out) *out += kMeanings[which];
    ++at_;
    return true;
  }
  bool unicode(uint32_t code, std::string* out, int64_t* num_replaced) {
    const bool high = code >= 0xD800 && code < 0xDC00, low = code >= 0xDC00 && code < 0xE000;
    if (high && text_.substr(at_).starts_with("\\u")) {
      const size_t second = at_;
      uint32_t other;
      at_ += 2;
      if (!hex(other)) return false;
      if (other >= 0xDC00 && other < 0xE000) {
        if (out) append_code_point(*out, 0x10000 + ((code - 0xD800) << 10) + (other - 0xDC00));
        return true;
      }
      at_ = second;  // a character of its own
    }
    if (!out) return true;
    if (!high && !low) {
      append_code_point(*out, code);
    } else {
      *out += kReplacement;
      if (num_replaced) ++*num_replaced;
    }
    return true;
  }
  bool hex(uint32_t& code) {
    code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = here(), lower = static_cast<char>(c | 0x20);
      const bool letter = lower >= 'a' && lower <= 'f';
      if (!is_digit(c) && !letter) return missing("four hexadecimal digits");
      code = code * 16 + static_cast<uint32_t>(letter ? lower - 'a' + 10 : c - '0');
    }
    return true;
  }

  std::string_view text_, member_, expected_;
  size_t at_ = 0;
  std::string open_;  // the brackets around this place, below the row
};

}  // namespace

std::string_view name_of(JsonKind kind) {
  constexpr std::string_view kNames[] = {"nothing", "a string", "a number", "a boolean",
                                         "null",    "an array", "an object"};
  return kNames[static_cast<size_t>(kind)];
}

void read_json_row(std::string_view line, std::string_view member, JsonRow& row) {
  row.member = JsonKind::kAbsent;
  row.text.clear();
  row.num_replaced = 0;
  row.cut = false;
  Scanner scanner(line, member);
  if (scanner.row(row, nullptr, 0)) return;
  row.kind = JsonKind::kAbsent;
  row.error_at = scanner.at();
  row.expected = scanner.expected();
  row.cut = row.error_at == line.size();
}

std::vector<std::string> keys_of_row(std::string_view line, size_t most) {
  std::vector<std::string> keys;
  JsonRow row;
  Scanner(line, "").row(row, &keys, most);
  return keys;
}

}  // namespace ashlar::data
