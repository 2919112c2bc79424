// The character map of sentencepiece: a double array of the texts it replaces, as darts-clone
// stores it, and the replacements, each ended by a zero byte.
//
// Source  the crate spm-precompiled 0.1.4; normalizer.cc of sentencepiece; darts.h of darts-clone
//         0.32.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/normalizer.h"
#include "ashlar/data/hf/pattern.h"
#include "ashlar/data/hf/unicode.h"

namespace ashlar::data {
namespace {

// nullopt for what is not base64.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string::npos) return std::nullopt;
    bits = bits << 6 | uint32_t(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += char(bits >> count & 0xFF);
  }
  return out;
}

// A unit of the double array.
struct CharMapUnit {
  uint32_t bits;
  bool has_leaf() const { return bits >> 8 & 1; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & 0x800000FF; }
  uint32_t offset() const { return bits >> 10 << ((bits & 1 << 9) >> 6); }
};

class PrecompiledNormalizer : public TextNormalizer {
 public:
  PrecompiledNormalizer(const std::string& map, const Fields& fields) {
    uint32_t trie_bytes = 0;
    if (map.size() >= 4) std::memcpy(&trie_bytes, map.data(), 4);
    if (map.size() < 4 || trie_bytes % 4 != 0 || trie_bytes < 4 || trie_bytes > map.size() - 4)
      fields.fail("precompiled_charsmap has {} bytes, which are no map of characters", map.size());
    units_.resize(trie_bytes / 4);
    std::memcpy(units_.data(), map.data() + 4, trie_bytes);
    texts_ = map.substr(4 + trie_bytes);
    if (check_utf8(texts_).num_invalid > 0)
      fields.fail("precompiled_charsmap has replacements that are not UTF-8");
  }

  void apply(std::string& text, size_t& /*origin*/) const override {
    std::string out;
    out.reserve(text.size());
    const auto append = [&](std::string_view piece) {
      require_text_size(out.size() + piece.size());
      out += piece;
    };
    for_each_grapheme(text, [&](std::string_view cluster) {
      constexpr size_t kMostClusterBytes = 5;
      if (cluster.size() <= kMostClusterBytes)
        if (const auto replacement = find(cluster)) {
          append(*replacement);
          return;
        }
      for (size_t at = 0; at < cluster.size();) {
        const std::string_view one = cluster.substr(at, code_point_at(cluster, at).length);
        append(find(one).value_or(one));
        at += one.size();
      }
    });
    text = std::move(out);
  }

 private:
  // The replacement of the shortest text of the map that `key` begins with.
  std::optional<std::string_view> find(std::string_view key) const {
    uint32_t at = CharMapUnit{units_[0]}.offset();
    for (const char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) return std::nullopt;
      at ^= byte;
      if (at >= units_.size()) return std::nullopt;
      const CharMapUnit unit{units_[at]};
      if (unit.label() != byte) return std::nullopt;
      at ^= unit.offset();
      if (at >= units_.size()) return std::nullopt;
      if (unit.has_leaf()) return text_at(CharMapUnit{units_[at]}.value());
    }
    return std::nullopt;
  }

  std::optional<std::string_view> text_at(uint32_t begin) const {
    if (begin >= texts_.size() || continues_character(texts_[begin])) return std::nullopt;
    const std::string_view rest = std::string_view(texts_).substr(begin);
    return rest.substr(0, std::min(rest.find('\0'), rest.size()));
  }

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace

std::unique_ptr<TextNormalizer> parse_precompiled(const Json& json, const std::string& place) {
  const Fields fields(json, place, ErrorKind::kData);
  const auto map = from_base64(fields.text("precompiled_charsmap"));
  if (!map) fields.fail("precompiled_charsmap is not base64");
  return std::make_unique<PrecompiledNormalizer>(*map, fields);
}

}  // namespace ashlar::data
