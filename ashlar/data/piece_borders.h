// Borders at which the pieces of a vocabulary always end: between two characters that stand beside
// each other in no piece.  Whether what is on their two sides is encoded independently is up to the
// model: sums of scores or runs of unknown characters may cross a border.
//
// Characters above U+007F count as one, but for U+2581, which counts as the space that it stands
// for.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ashlar::data {

class PieceBorders {
 public:
  void add(std::string_view piece);  // valid UTF-8, as all texts here
  // Calls `found` for the parts of a text, in order.
  template <typename Found>  // void(std::string_view part)
  void for_each_part(std::string_view text, Found found) const {
    size_t begin = 0, at = 0;
    uint32_t before = 0;
    while (at < text.size()) {
      const Step step = step_at(text, at);
      if (at > begin && !beside_[before * kClasses + step.kind]) {
        found(text.substr(begin, at - begin));
        begin = at;
      }
      before = step.kind;
      at += step.bytes;
    }
    if (begin < text.size()) found(text.substr(begin));
  }
  // Whether there is one between every letter of ASCII and a space behind it.
  bool end_words() const;
  // The last border in a text that more may follow; 0: there is none.
  size_t last_before_end(std::string_view text) const;

 private:
  static constexpr uint32_t kOther = 128, kClasses = 129;
  struct Step {
    uint32_t kind;
    size_t bytes;
  };
  static Step step_at(std::string_view text, size_t at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) return {byte, 1};
    if (byte < 0xE0) return {kOther, 2};
    if (byte >= 0xF0) return {kOther, 4};
    return {text.substr(at, 3) == "\xE2\x96\x81" ? uint32_t{' '} : kOther, 3};
  }
  std::bitset<kClasses * kClasses> beside_;  // by the class before and that behind
};

}  // namespace ashlar::data
