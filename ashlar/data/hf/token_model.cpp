#include "ashlar/data/hf/token_model.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/fields.h"

namespace ashlar::data {

std::unique_ptr<TokenModel> parse_token_model(const Json& json, const std::string& place) {
  const Fields fields(json, place, ErrorKind::kData);
  // Files of old versions name no type: of those only BPE has merges.
  const std::string type = fields.has("type")     ? fields.text("type")
                           : fields.has("merges") ? "BPE"
                                                  : "none";
  if (type == "BPE") return parse_bpe(json, place);
  if (type == "Unigram") return parse_unigram(json, place);
  if (type == "WordPiece") return parse_word_piece(json, place);
  fields.fail("the type {} of a model is not known; expected BPE, Unigram or WordPiece", type);
}

Vocabulary parse_vocabulary(const Json& json, const std::string& place) {
  const Fields fields(json, place + ": vocab", ErrorKind::kData);
  Vocabulary vocabulary;
  for (const auto& [text, value] : json.items()) {
    const auto id = integer_of(value);
    if (!id || *id < 0 || *id >= kMostTokens)
      fields.fail("the id of {} is {}; expected 0 to {}", shown(Json(text)), shown(value),
                  kMostTokens - 1);
    vocabulary.add(text, int32_t(*id));
  }
  return vocabulary;
}

std::vector<int32_t> byte_tokens(const Vocabulary& vocabulary) {
  std::vector<int32_t> ids(256);
  for (size_t byte = 0; byte < ids.size(); ++byte)
    ids[byte] = vocabulary.id_of(fmt::format("<0x{:02X}>", byte));
  return ids;
}

}  // namespace ashlar::data
