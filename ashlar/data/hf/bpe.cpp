#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/token_model.h"
#include "ashlar/data/pair_merges.h"

namespace ashlar::data {
namespace {

std::string text_or_none(const Fields& fields, const char* key) {
  return fields.has(key) && !fields.at(key).is_null() ? fields.text(key) : "";
}
bool flag_of(const Fields& fields, const char* key) {
  return fields.has(key) && !fields.at(key).is_null() && fields.boolean(key);
}

// "a b" as old files write them, or ["a", "b"].
std::pair<std::string, std::string> pair_of(const Json& merge, const Fields& fields) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    fields.fail("merges holds {}; expected pairs of tokens", shown(merge));
  return {text.substr(0, space), text.substr(space + 1)};
}

class BpeModel : public TokenModel {
 public:
  BpeModel(const Fields& fields, const std::string& place)
      : merges_(fields.array("merges").size()),
        prefix_(text_or_none(fields, "continuing_subword_prefix")),
        suffix_(text_or_none(fields, "end_of_word_suffix")),
        fuses_unk_(flag_of(fields, "fuse_unk")),
        whole_first_(flag_of(fields, "ignore_merges")) {
    vocabulary_ = parse_vocabulary(fields.at("vocab"), place);
    if (fields.has("dropout") && !fields.at("dropout").is_null() && fields.number("dropout") != 0)
      fields.fail("dropout is {}; expected null or 0", shown(fields.at("dropout")));
    if (const std::string unk = text_or_none(fields, "unk_token"); !unk.empty()) {
      unk_id_ = vocabulary_.id_of(unk);
      if (unk_id_ < 0) fields.fail("unk_token {} is not in the vocabulary", shown(Json(unk)));
    }
    if (flag_of(fields, "byte_fallback")) byte_ids_ = byte_tokens(vocabulary_);
    add_merges(fields);
    for (uint32_t c = 0; c < kNumShortCharacters; ++c) {
      std::string text;
      append_code_point(text, c);
      short_ids_.push_back(vocabulary_.id_of(text));
    }
  }

  void encode(std::string_view part, std::vector<int32_t>& ids) const override {
    if (whole_first_)
      if (const int32_t id = vocabulary_.id_of(part); id >= 0) return ids.push_back(id);
    const size_t begin = ids.size();
    add_characters(part, ids);
    merges_.apply(ids, begin);
  }

  const PieceBorders* borders() const override {
    // Unknown characters in a row may be one token, and if they are dropped, what is on their two
    // sides may be joined.
    const bool spells_all =
        !byte_ids_.empty() && std::ranges::find(byte_ids_, -1) == byte_ids_.end();
    const bool isolates_unknown = (spells_all || (unk_id_ >= 0 && !fuses_unk_)) && !merges_unknown_;
    const bool is_plain = prefix_.empty() && suffix_.empty() && vocabulary_.is_one_to_one();
    return is_plain && isolates_unknown && !whole_first_ ? &borders_ : nullptr;
  }

 private:
  static constexpr uint32_t kNumShortCharacters = 0x800;  // of one or two bytes

  void add_merges(const Fields& fields) {
    uint32_t rank = 0;
    for (const Json& merge : fields.array("merges")) {
      if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version"))
        continue;
      const auto [left, right] = pair_of(merge, fields);
      const int32_t left_id = vocabulary_.id_of(left), right_id = vocabulary_.id_of(right);
      if (!right.starts_with(prefix_))
        fields.fail("merges holds {}, whose second does not begin with {}", shown(merge),
                    shown(Json(prefix_)));
      const std::string joined = left + right.substr(prefix_.size());
      const int32_t id = vocabulary_.id_of(joined);
      if (left_id < 0 || right_id < 0 || id < 0)
        fields.fail("merges holds {}, of which a part or the whole is not in the vocabulary",
                    shown(merge));
      merges_.add(left_id, right_id, rank++, id);
      borders_.add(joined);
      for (const int32_t part : {left_id, right_id})
        if (part == unk_id_ || std::ranges::find(byte_ids_, part) != byte_ids_.end())
          merges_unknown_ = true;
    }
  }

  int32_t id_of_character(std::string_view character, uint32_t value, bool first, bool last) const {
    const bool plain = (first || prefix_.empty()) && (!last || suffix_.empty());
    if (plain && value < kNumShortCharacters) return short_ids_[value];
    if (plain) return vocabulary_.id_of(character);
    std::string text;
    if (!first) text += prefix_;
    text += character;
    if (last) text += suffix_;
    return vocabulary_.id_of(text);
  }

  void add_characters(std::string_view part, std::vector<int32_t>& ids) const {
    bool unk = false;  // the last character was unknown, and its id is still to be added
    for (size_t at = 0; at < part.size();) {
      const CodePoint point = code_point_at(part, at);
      const std::string_view character = part.substr(at, point.length);
      const bool first = at == 0, last = at + point.length == part.size();
      at += point.length;
      const int32_t id = id_of_character(character, point.value, first, last);
      if (id >= 0) {
        if (unk) ids.push_back(unk_id_);
        unk = false;
        ids.push_back(id);
      } else if (!add_bytes(character, first, last, ids) && unk_id_ >= 0) {
        if (unk && !fuses_unk_) ids.push_back(unk_id_);
        unk = true;
      }
    }
    if (unk) ids.push_back(unk_id_);
  }

  // Whether all bytes of a character, with the model's prefix and suffix, are tokens.
  bool add_bytes(std::string_view character, bool first, bool last,
                 std::vector<int32_t>& ids) const {
    if (byte_ids_.empty()) return false;
    std::string bytes = first ? "" : prefix_;
    bytes += character;
    if (last) bytes += suffix_;
    const auto id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (std::ranges::any_of(bytes, [&](char byte) { return id(byte) < 0; })) return false;
    for (const char byte : bytes) ids.push_back(id(byte));
    return true;
  }

  PairMerges merges_;
  PieceBorders borders_;
  std::string prefix_, suffix_;
  bool fuses_unk_, whole_first_;
  bool merges_unknown_ = false;     // a rule joins what stands for unknown characters
  std::vector<int32_t> byte_ids_;   // empty: no fallback
  std::vector<int32_t> short_ids_;  // of characters
};

}  // namespace

std::unique_ptr<TokenModel> parse_bpe(const Json& json, const std::string& place) {
  return std::make_unique<BpeModel>(Fields(json, place, ErrorKind::kData), place);
}

}  // namespace ashlar::data
