#include "ashlar/data/hf/unicode.h"

#include <unicode/brkiter.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/utext.h>

#include <algorithm>
#include <array>
#include <memory>

#include "ashlar/core/error.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/unicode_additions.h"

namespace ashlar::data {
namespace {

constexpr uint32_t kNumCodePoints = 0x110000;

// In the order of ICU's numbers.
constexpr std::array<const char*, 30> kCategories = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Me", "Mc", "Nd", "Nl", "No", "Zs", "Zl", "Zp",
    "Cc", "Cf", "Co", "Cs", "Pd", "Ps", "Pe", "Pc", "Po", "Sm", "Sc", "Sk", "So", "Pi", "Pf"};

const UnicodeAddition* addition_of(uint32_t value) {
  const UnicodeAddition* end = kUnicodeAdditions + kNumUnicodeAdditions;
  const auto* found = std::lower_bound(
      kUnicodeAdditions, end, value,
      [](const UnicodeAddition& addition, uint32_t other) { return addition.last < other; });
  return found != end && found->first <= value ? found : nullptr;
}

bool is_older(uint32_t value, int version) {
  UVersionInfo age;
  u_charAge(UChar32(value), age);
  return age[0] > 0 && (age[0] < version || (age[0] == version && age[1] == 0));
}

// Characters that had another category in version 8 or 9.
constexpr uint32_t kOnceAccents[] = {0x1734}, kLaterAccents[] = {0x1885, 0x1886, 0xA9BD, 0x111C9};
constexpr uint32_t kOnceMarks[] = {0x1CF2, 0x1CF3};
constexpr uint32_t kOncePunctuation[] = {0x166D, 0x111C9};
constexpr std::string_view kAsciiSymbols = "$+<=>^`|~";

uint8_t classes_of(uint32_t value) {
  const UnicodeAddition* addition = addition_of(value);
  const std::string_view category =
      addition ? addition->category : kCategories[size_t(u_charType(UChar32(value)))];
  const std::string_view category_16 = addition && addition->version > 16 ? "Cn" : category;
  const auto among = [&](const auto& list) {
    return std::ranges::find(list, value) != std::end(list);
  };
  const bool older = !addition && is_older(value, 8);
  const char group = category[0];
  uint8_t classes = 0;
  const auto set = [&](CharClass which, bool holds) {
    if (holds) classes = uint8_t(classes | which);
  };
  set(kSpaceChar, u_isUWhiteSpace(UChar32(value)));
  set(kNumberChar, group == 'N');
  set(kWordChar, category_16[0] == 'L' || category_16[0] == 'M' || category_16 == "Nd" ||
                     category_16 == "Nl" || category_16 == "Pc" || value == 0x200C ||
                     value == 0x200D ||
                     (!addition && u_hasBinaryProperty(UChar32(value), UCHAR_ALPHABETIC)));
  set(kPunctuationChar, (group == 'P' && older) || among(kOncePunctuation) ||
                            (value < 0x80 && kAsciiSymbols.find(char(value)) != std::string::npos));
  set(kBertAccentChar, (category == "Mn" && older && !among(kLaterAccents)) || among(kOnceAccents));
  set(kMarkChar,
      (group == 'M' && !addition && is_older(value, 9) && value != 0x111C9) || among(kOnceMarks));
  set(kBertControlChar, older && (category == "Cc" || category == "Cf" || category == "Co") &&
                            value != '\t' && value != '\n' && value != '\r');
  set(kReplacedChar, addition || value == 0x180E || value == 0x1171E);
  return classes;
}

const std::vector<uint8_t>& char_classes() {
  static const std::vector<uint8_t> classes = [] {
    std::vector<uint8_t> all(kNumCodePoints);
    for (uint32_t value = 0; value < kNumCodePoints; ++value) all[value] = classes_of(value);
    return all;
  }();
  return classes;
}

struct StandIn {
  std::string_view category;
  uint32_t three_bytes, four_bytes;
};
constexpr StandIn kStandIns[] = {
    {"Lu", 0x1E00, 0x10400}, {"Ll", 0x1E01, 0x10428}, {"Lm", 0x1D2C, 0x16F93},
    {"Lo", 0xA000, 0x10000}, {"Mn", 0x0900, 0x11001}, {"Mc", 0x0903, 0x11000},
    {"Nd", 0x0966, 0x104A0}, {"Nl", 0x2160, 0x10140}, {"No", 0x2460, 0x10107},
    {"Pd", 0x2010, 0x10EAD}, {"Po", 0x2020, 0x10100}, {"Sc", 0x20A0, 0x1E2FF},
    {"Sm", 0x2200, 0x1D6C1}, {"So", 0x2300, 0x1D100}, {"Cf", 0x200B, 0x110BD},
    {"Cn", 0xFDD0, 0x1FFFE}};

const icu::Normalizer2& whole_form(NormalForm form, UErrorCode& status) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  return *icu::Normalizer2::getInstance(nullptr, compatible ? "nfkc" : "nfc",
                                        composed ? UNORM2_COMPOSE : UNORM2_DECOMPOSE, status);
}

void require_icu(UErrorCode status) {
  ASHLAR_REQUIRE(U_SUCCESS(status), kDevice,
                 "ICU, the library of Unicode, answers {}; is its data package installed?",
                 u_errorName(status));
}

const icu::Normalizer2& form_of_unicode_9(NormalForm form) {
  struct Forms {
    std::array<std::unique_ptr<icu::FilteredNormalizer2>, 4> by_form;
    icu::UnicodeSet characters;
  };
  static const std::unique_ptr<const Forms> forms = [] {
    auto all = std::make_unique<Forms>();
    UErrorCode status = U_ZERO_ERROR;
    all->characters.applyPattern(u"[:age=9.0:]", status).freeze();
    for (size_t i = 0; i < all->by_form.size(); ++i)
      all->by_form[i] = std::make_unique<icu::FilteredNormalizer2>(
          whole_form(NormalForm(i), status), all->characters);
    require_icu(status);
    return all;
  }();
  return *forms->by_form[size_t(form)];
}

// The text with an older mark of as many bytes in place of every one that ICU's rules of clusters
// may not know.
std::string with_known_marks(std::string_view text) {
  std::string out(text);
  for (size_t at = 0; at < out.size();) {
    const CodePoint point = code_point_at(text, at);
    if (const UnicodeAddition* addition = addition_of(point.value);
        addition && addition->category[0] == 'M') {
      std::string mark;
      append_code_point(mark, point.length == 3 ? 0x0900 : 0x11001);
      out.replace(at, point.length, mark);
    }
    at += point.length;
  }
  return out;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// Rules that Unicode 16 and 17 added to the lower case of version 15.
struct LowerCase {
  uint32_t first, last, step;
  int32_t distance;
};
constexpr LowerCase kLowerCase[] = {
    {0x1C89, 0x1C89, 1, 1},      {0xA7CB, 0xA7CB, 1, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CE, 2, 1},      {0xA7D2, 0xA7D4, 2, 1},
    {0xA7DA, 0xA7DA, 1, 1},      {0xA7DC, 0xA7DC, 1, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 1, 0x20}, {0x16EA0, 0x16EB8, 1, 27}};

uint32_t lower_case_of(uint32_t value) {
  for (const LowerCase& rule : kLowerCase)
    if (value >= rule.first && value <= rule.last && (value - rule.first) % rule.step == 0)
      return uint32_t(int32_t(value) + rule.distance);
  return uint32_t(u_tolower(UChar32(value)));
}

}  // namespace

bool has_class(uint32_t value, uint8_t classes) {
  return (char_classes()[value] & classes) != 0;
}

uint32_t stand_in(uint32_t value) {
  const UnicodeAddition* addition = addition_of(value);
  std::string_view category = addition ? addition->category : value == 0x180E ? "Cf" : "Mc";
  if (addition && addition->version > 16) category = "Cn";
  const auto* found = std::ranges::find(kStandIns, category, &StandIn::category);
  ASHLAR_ASSERT(found != std::end(kStandIns));
  return value < 0x10000 ? found->three_bytes : found->four_bytes;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    at += point.length;
    if (point.value < 0x80) {
      out += char(point.value >= 'A' && point.value <= 'Z' ? point.value + 32 : point.value);
    } else if (point.value == 0x130) {
      out += "i\xCC\x87";
    } else {
      append_code_point(out, lower_case_of(point.value));
    }
  }
  return out;
}

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  UErrorCode status = U_ZERO_ERROR;
  form_of_unicode_9(form).normalizeUTF8(0, icu::StringPiece(text.data(), int32_t(text.size())),
                                        sink, nullptr, status);
  require_icu(status);
  return out;
}

void for_each_grapheme(std::string_view text, function_ref<void(std::string_view)> found) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  const std::string known = with_known_marks(text);
  const icu::LocalUTextPointer source(
      utext_openUTF8(nullptr, known.data(), int64_t(known.size()), &status));
  if (U_SUCCESS(status)) breaks->setText(source.getAlias(), status);
  size_t begin = 0;
  while (U_SUCCESS(status) && begin < text.size()) {
    const int32_t end = breaks->next();
    if (end == icu::BreakIterator::DONE) break;
    found(text.substr(begin, size_t(end) - begin));
    begin = size_t(end);
  }
  require_icu(status);
}

}  // namespace ashlar::data
