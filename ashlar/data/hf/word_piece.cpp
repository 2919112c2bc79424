#include <nlohmann/json.hpp>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/token_model.h"

namespace ashlar::data {
namespace {

// The longest token first; a part that has a rest without one is unknown as a whole.
class WordPieceModel : public TokenModel {
 public:
  WordPieceModel(const Fields& fields, const std::string& place)
      : prefix_(fields.text("continuing_subword_prefix")),
        most_characters_(fields.count("max_input_chars_per_word")) {
    vocabulary_ = parse_vocabulary(fields.at("vocab"), place);
    unk_id_ = vocabulary_.id_of(fields.text("unk_token"));
    if (unk_id_ < 0)
      fields.fail("unk_token {} is not in the vocabulary", shown(fields.at("unk_token")));
    for (int32_t id = 0; id < vocabulary_.end_id(); ++id)
      if (const std::string* text = vocabulary_.text_of(id))
        longest_ = std::max(longest_, text->size());
  }

  void encode(std::string_view part, std::vector<int32_t>& ids) const override {
    const size_t before = ids.size();
    if (num_characters(part) <= most_characters_) {
      size_t begin = 0;
      while (begin < part.size() && add_longest(part, begin, ids)) {
      }
      if (begin == part.size()) return;
    }
    ids.resize(before);
    ids.push_back(unk_id_);
  }

 private:
  bool add_longest(std::string_view part, size_t& begin, std::vector<int32_t>& ids) const {
    std::string text = begin > 0 ? prefix_ : "";
    const size_t prefix = text.size();
    text += part.substr(begin, longest_);
    size_t end = text.size();
    // A cut inside a character has no token: those are valid UTF-8.
    for (; end > prefix; --end) {
      const int32_t id = vocabulary_.id_of(std::string_view(text).substr(0, end));
      if (id < 0) continue;
      ids.push_back(id);
      begin += end - prefix;
      return true;
    }
    return false;
  }

  std::string prefix_;
  int64_t most_characters_;
  size_t longest_ = 0;  // bytes
};

}  // namespace

std::unique_ptr<TokenModel> parse_word_piece(const Json& json, const std::string& place) {
  return std::make_unique<WordPieceModel>(Fields(json, place, ErrorKind::kData), place);
}

}  // namespace ashlar::data
