// The tokens of a model: texts and ids, each found from the other.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ashlar::data {

inline constexpr int64_t kMostTokens = int64_t(1) << 24;  // of a tokenizer

class Vocabulary {
 public:
  // A text that is there already gets the new id; an id, the new text.
  void add(std::string text, int32_t id);
  int32_t id_of(std::string_view text) const {  // -1: none
    const auto found = ids_.find(text);
    return found == ids_.end() ? -1 : found->second;
  }
  const std::string* text_of(int32_t id) const {  // null: none
    const auto found = texts_.find(id);
    return found == texts_.end() ? nullptr : found->second;
  }
  bool is_one_to_one() const { return ids_.size() == texts_.size(); }
  size_t size() const { return ids_.size(); }
  int32_t end_id() const { return end_id_; }  // one above the largest

 private:
  std::deque<std::string> storage_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<int32_t, const std::string*> texts_;
  int32_t end_id_ = 0;
};

}  // namespace ashlar::data
