#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/token_model.h"

namespace ashlar::data {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
// Longer parts are merged with a queue, shorter ones by looking for the best pair again and again.
constexpr size_t kMostScannedSymbols = 48;

struct Merge {
  uint32_t rank = kNoRank;
  int32_t id = -1;  // of both, joined
};

// An open hash table from pairs of ids to their merge.
class MergeTable {
 public:
  explicit MergeTable(size_t count) {
    const size_t size = std::bit_ceil(count * 2 + 2);
    slots_.resize(size);
    mask_ = size - 1;
    shift_ = 64 - std::countr_zero(size);
  }
  void add(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = key_of(left, right);
    slots_[slot_of(key)] = {key, merge};
  }
  Merge find(int32_t left, int32_t right) const {
    return slots_[slot_of(key_of(left, right))].merge;
  }

 private:
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  }
  size_t slot_of(uint64_t key) const {
    size_t slot = size_t((key ^ key >> 29) * 0x9E3779B97F4A7C15ull >> shift_);
    while (slots_[slot].key != key && slots_[slot].key != kFree) slot = (slot + 1) & mask_;
    return slot;
  }
  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

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
    if (ids.size() - begin > kMostScannedSymbols)
      merge_by_queue(ids, begin);
    else
      merge_by_scan(ids, begin);
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
      const int32_t id = vocabulary_.id_of(left + right.substr(prefix_.size()));
      if (left_id < 0 || right_id < 0 || id < 0)
        fields.fail("merges holds {}, of which a part or the whole is not in the vocabulary",
                    shown(merge));
      merges_.add(left_id, right_id, {rank++, id});
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

  void merge_by_scan(std::vector<int32_t>& ids, size_t begin) const {
    size_t count = ids.size() - begin;
    if (count < 2) return;
    int32_t* symbols = ids.data() + begin;
    Merge pairs[kMostScannedSymbols];
    for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(symbols[i], symbols[i + 1]);
    while (count > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < count; ++i)
        if (pairs[i].rank < pairs[best].rank) best = i;
      if (pairs[best].rank == kNoRank) break;
      symbols[best] = pairs[best].id;
      std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
      if (best + 2 < count) std::copy(pairs + best + 2, pairs + count - 1, pairs + best + 1);
      --count;
      if (best > 0) pairs[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
      if (best + 1 < count) pairs[best] = merges_.find(symbols[best], symbols[best + 1]);
    }
    ids.resize(begin + count);
  }

  struct QueuedMerge {
    uint32_t rank;
    int32_t at, id;
    bool operator<(const QueuedMerge& other) const {  // the best is the greatest
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  void merge_by_queue(std::vector<int32_t>& ids, size_t begin) const {
    const auto count = int32_t(ids.size() - begin);
    int32_t* symbols = ids.data() + begin;
    std::vector<int32_t> before(size_t(count), 0), after(size_t(count), 0);
    for (int32_t i = 0; i < count; ++i) before[size_t(i)] = i - 1, after[size_t(i)] = i + 1;
    std::priority_queue<QueuedMerge> queue;
    const auto offer = [&](int32_t at) {
      if (at < 0 || after[size_t(at)] >= count) return;
      const Merge merge = merges_.find(symbols[at], symbols[after[size_t(at)]]);
      if (merge.rank != kNoRank) queue.push({merge.rank, at, merge.id});
    };
    for (int32_t i = 0; i < count; ++i) offer(i);
    while (!queue.empty()) {
      const QueuedMerge top = queue.top();
      queue.pop();
      const auto at = size_t(top.at);
      if (symbols[at] < 0 || after[at] >= count) continue;
      const int32_t right = after[at];
      if (merges_.find(symbols[at], symbols[right]).id != top.id) continue;  // it has changed since
      symbols[at] = top.id;
      symbols[right] = -1;
      after[at] = after[size_t(right)];
      if (after[at] < count) before[size_t(after[at])] = top.at;
      offer(before[at]);
      offer(top.at);
    }
    ids.erase(std::remove(ids.begin() + int64_t(begin), ids.end(), -1), ids.end());
  }

  MergeTable merges_;
  std::string prefix_, suffix_;
  bool fuses_unk_, whole_first_;
  std::vector<int32_t> byte_ids_;   // empty: no fallback
  std::vector<int32_t> short_ids_;  // of characters
};

}  // namespace

std::unique_ptr<TokenModel> parse_bpe(const Json& json, const std::string& place) {
  return std::make_unique<BpeModel>(Fields(json, place, ErrorKind::kData), place);
}

}  // namespace ashlar::data
