#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/byte_trie.h"
#include "ashlar/data/hf/token_model.h"

namespace ashlar::data {
namespace {

constexpr double kUnknownPenalty = 10;

// The number that the library reads from the shortest decimal form of a score: its parser divides
// its digits by a power of ten, which may round twice.  Cuts of a text that score nearly alike are
// chosen by that.
double score_as_rust_reads(double score) {
  char text[32];
  const auto written =
      std::to_chars(text, text + sizeof(text), std::abs(score), std::chars_format::scientific);
  uint64_t digits = 0;
  int exponent = 0;
  const char* at = text;
  for (bool fraction = false; at < written.ptr && *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
      continue;
    }
    digits = digits * 10 + uint64_t(*at - '0');
    exponent -= fraction;
  }
  int written_exponent = 0;
  std::from_chars(at + 1 + (at[1] == '+'), written.ptr, written_exponent);
  exponent += written_exponent;
  double power = 0;
  const std::string power_text = fmt::format("1e{}", std::abs(exponent));
  std::from_chars(power_text.data(), power_text.data() + power_text.size(), power);
  const double read = exponent < 0 ? double(digits) / power : double(digits) * power;
  return std::signbit(score) ? -read : read;
}

size_t count_bytes(const Json& vocab) {
  size_t bytes = 0;
  for (const Json& entry : vocab)
    if (entry.is_array() && !entry.empty() && entry[0].is_string())
      bytes += entry[0].get_ref<const std::string&>().size();
  return bytes;
}

class UnigramModel : public TokenModel {
 public:
  UnigramModel(const Fields& fields) : trie_(count_bytes(fields.array("vocab"))) {
    double least = std::numeric_limits<double>::infinity();
    for (const Json& entry : fields.array("vocab")) {
      const bool whole =
          entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
      if (!whole) fields.fail("vocab holds {}; expected a token and its score", shown(entry));
      const auto id = int32_t(scores_.size());
      scores_.push_back(score_as_rust_reads(entry[1].get<double>()));
      least = std::min(least, scores_.back());
      vocabulary_.add(entry[0].get<std::string>(), id);
      if (const std::string& text = *vocabulary_.text_of(id); !text.empty()) trie_.add(text, id);
    }
    unknown_score_ = least - kUnknownPenalty;
    if (fields.has("unk_id") && !fields.at("unk_id").is_null())
      unk_id_ = int32_t(fields.integer("unk_id", 0, int64_t(scores_.size()) - 1));
    if (fields.has("byte_fallback") && fields.boolean("byte_fallback"))
      byte_ids_ = byte_tokens(vocabulary_);
  }

  // The cut with the highest sum of scores; of equals, that whose last token is longest.
  void encode(std::string_view part, std::vector<int32_t>& ids) const override {
    std::vector<Node> best(part.size() + 1);
    for (size_t at = 0; at < part.size();) {
      const double score = best[at].score;
      const size_t length = code_point_at(part, at).length;
      bool has_one = false;
      const auto offer = [&](size_t bytes, double more, int32_t id) {
        Node& node = best[at + bytes];
        if (node.begin != kNowhere && score + more <= node.score) return;
        node = {score + more, at, id};
      };
      trie_.find(part.substr(at), [&](size_t bytes, int32_t id) {
        offer(bytes, scores_[size_t(id)], id);
        has_one = has_one || bytes == length;
      });
      if (!has_one) {
        ASHLAR_REQUIRE(unk_id_ >= 0, kData,
                       "the tokenizer has no token for a character of the text and no unk_id");
        offer(length, unknown_score_, unk_id_);
      }
      at += length;
    }
    add_path(part, best, ids);
  }

 private:
  static constexpr size_t kNowhere = size_t(-1);
  struct Node {
    double score = 0;
    size_t begin = kNowhere;  // of the token that ends here
    int32_t id = -1;
  };

  // Unknown tokens in a row are one.
  void add_path(std::string_view part, const std::vector<Node>& best,
                std::vector<int32_t>& ids) const {
    std::vector<size_t> ends;
    for (size_t end = part.size(); end > 0; end = best[end].begin) ends.push_back(end);
    size_t begin = 0;
    for (size_t i = ends.size(); i-- > 0;) {
      const bool unknown = best[ends[i]].id == unk_id_;
      if (unknown && i > 0 && best[ends[i - 1]].id == unk_id_) continue;
      if (unknown)
        add_unknown(part.substr(begin, ends[i] - begin), ids);
      else
        ids.push_back(best[ends[i]].id);
      begin = ends[i];
    }
  }

  void add_unknown(std::string_view text, std::vector<int32_t>& ids) const {
    if (const int32_t id = vocabulary_.id_of(text); id >= 0) return ids.push_back(id);
    const auto id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (byte_ids_.empty() || std::ranges::any_of(text, [&](char byte) { return id(byte) < 0; }))
      return ids.push_back(unk_id_);
    for (const char byte : text) ids.push_back(id(byte));
  }

  ByteTrie trie_;
  std::vector<double> scores_;  // by id
  double unknown_score_ = 0;
  std::vector<int32_t> byte_ids_;  // empty: no fallback
};

}  // namespace

std::unique_ptr<TokenModel> parse_unigram(const Json& json, const std::string& place) {
  return std::make_unique<UnigramModel>(Fields(json, place, ErrorKind::kData));
}

}  // namespace ashlar::data
