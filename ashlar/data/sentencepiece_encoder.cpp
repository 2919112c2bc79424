#include "ashlar/data/sentencepiece_encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <unordered_map>

#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/byte_trie.h"
#include "ashlar/data/hf/part_cache.h"
#include "ashlar/data/pair_merges.h"
#include "ashlar/data/piece_borders.h"

namespace ashlar::data {
namespace {

using Type = SentencePieceModel::Type;

// A BPE piece takes time by the square of its size.
constexpr size_t kMostPieceBytes = 256;

// Parts, spaces and unknown characters, of both kinds of models.
class PartEncoder : public SentencePieceEncoder {
 public:
  explicit PartEncoder(const SentencePieceModel& model) {
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const SentencePieceModel::Piece& piece = model.pieces[id];
      piece_bytes_.push_back(piece.text.size());
      if (piece.type == Type::kNormal) borders_.add(piece.text);
      if (piece.type == Type::kUnknown) unk_ = int32_t(id);
      if (!model.byte_fallback || piece.type != Type::kByte) continue;
      byte_ids_.resize(256);
      byte_ids_[std::stoul(piece.text.substr(3, 2), nullptr, 16)] = int32_t(id);  // "<0x0A>"
    }
  }

  std::vector<int32_t> encode(std::string_view text, bool adds_space) const override {
    std::vector<int32_t> ids;
    if (text.empty()) return ids;
    std::string spaced;
    if (adds_space) text = spaced.append(" ").append(text);
    ids.reserve(text.size() / 3);
    PartCaches::Lease cache(caches_);
    float score = 0;
    borders_.for_each_part(text,
                           [&](std::string_view part) { encode_part(part, *cache, score, ids); });
    return ids;
  }

 protected:
  // Appends the pieces of a part, the unknown one for an unknown character.  score: the sum of the
  // parts before, to which those of the part are added.  Returns how much worse the best other cut
  // is.
  virtual float cut(std::string_view part, float& score, std::vector<int32_t>& pieces) const = 0;
  // Adds the scores of the pieces of a part; false if a cut that is worse by `margin` might win by
  // the roundings of the sum.
  virtual bool add_scores(const PartCache::Known& known, size_t bytes, float& score) const = 0;
  int32_t unk() const { return unk_; }
  bool spells_unknown() const { return !byte_ids_.empty(); }
  const PieceBorders& borders() const { return borders_; }

 private:
  void encode_part(std::string_view part, PartCache& cache, float& score,
                   std::vector<int32_t>& ids) const {
    const PartCache::Known known = cache.find(part);
    if (!known.ids.empty() && add_scores(known, part.size(), score)) {
      ids.insert(ids.end(), known.ids.begin(), known.ids.end());
      return;
    }
    std::string escaped;
    for (const char c : part)
      if (c == ' ')
        escaped += kPieceSpace;
      else
        escaped += c;
    std::vector<int32_t> pieces;
    const float margin = cut(escaped, score, pieces);
    if (std::ranges::find(pieces, unk_) != pieces.end()) return add_unknown(escaped, pieces, ids);
    cache.add(part, pieces, margin);
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  // Unknown characters are spelled in bytes; without bytes, several in a row are one.
  void add_unknown(std::string_view part, std::span<const int32_t> pieces,
                   std::vector<int32_t>& ids) const {
    size_t at = 0;
    for (const int32_t piece : pieces) {
      const bool unknown = piece == unk_;
      const size_t bytes = unknown ? code_point_at(part, at).length : piece_bytes_[size_t(piece)];
      if (unknown && spells_unknown())
        for (const char c : part.substr(at, bytes))
          ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      else if (!unknown || ids.empty() || ids.back() != unk_)
        ids.push_back(piece);
      at += bytes;
    }
  }

  int32_t unk_ = -1;
  std::vector<int32_t> byte_ids_;  // empty: unknown characters are not spelled
  std::vector<size_t> piece_bytes_;
  PieceBorders borders_;
  mutable PartCaches caches_;
};

// Joins the neighbours whose union is the piece with the highest score.
class BpeEncoder : public PartEncoder {
 public:
  explicit BpeEncoder(const SentencePieceModel& model)
      : PartEncoder(model), num_pieces_(int32_t(model.pieces.size())), merges_(count_cuts(model)) {
    std::unordered_map<std::string_view, int32_t> pieces;
    std::map<float, uint32_t, std::greater<>> ranks;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const SentencePieceModel::Piece& piece = model.pieces[id];
      if (piece.type != Type::kNormal) continue;
      pieces.emplace(piece.text, int32_t(id));
      ranks.emplace(piece.score, 0);
      if (code_point_at(piece.text, 0).length == piece.text.size())
        characters_.emplace(code_point_at(piece.text, 0).value, int32_t(id));
    }
    uint32_t rank = 0;
    for (auto& [score, number] : ranks) number = rank++;
    for (const auto& [text, id] : pieces)
      add_merges(text, id, ranks[model.pieces[size_t(id)].score], pieces);
  }

  size_t independent_part(std::string_view text) const override {
    return spells_unknown() ? borders().last_before_end(text) : 0;
  }

 private:
  static size_t count_cuts(const SentencePieceModel& model) {
    size_t bytes = 0;
    for (const SentencePieceModel::Piece& piece : model.pieces) bytes += piece.text.size();
    return bytes;
  }

  void add_merges(std::string_view text, int32_t id, uint32_t rank,
                  const std::unordered_map<std::string_view, int32_t>& pieces) {
    // Characters of pieces may be no pieces themselves.
    const auto symbol_of = [&](std::string_view part) {
      const CodePoint first = code_point_at(part, 0);
      if (first.length == part.size())
        return characters_.emplace(first.value, num_pieces_ + int32_t(characters_.size()))
            .first->second;
      const auto found = pieces.find(part);
      return found == pieces.end() ? -1 : found->second;
    };
    for (size_t at = code_point_at(text, 0).length; at < text.size();
         at += code_point_at(text, at).length) {
      const int32_t left = symbol_of(text.substr(0, at)), right = symbol_of(text.substr(at));
      if (left >= 0 && right >= 0) merges_.add(left, right, rank, id);
    }
  }

  float cut(std::string_view part, float&, std::vector<int32_t>& pieces) const override {
    for (size_t at = 0; at < part.size();) {
      const CodePoint point = code_point_at(part, at);
      const auto found = characters_.find(point.value);
      pieces.push_back(found == characters_.end() ? unk() : found->second);
      at += point.length;
    }
    merges_.apply(pieces, 0);
    for (int32_t& piece : pieces)
      if (piece >= num_pieces_) piece = unk();
    return 0;
  }
  bool add_scores(const PartCache::Known&, size_t, float&) const override { return true; }

  int32_t num_pieces_;
  std::unordered_map<uint32_t, int32_t> characters_;  // symbols of single characters
  PairMerges merges_;
};

// Finds the cut with the highest sum of scores.
class UnigramEncoder : public PartEncoder {
 public:
  explicit UnigramEncoder(const SentencePieceModel& model)
      : PartEncoder(model), trie_(count_bytes(model)) {
    float least = std::numeric_limits<float>::max();
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const SentencePieceModel::Piece& piece = model.pieces[id];
      scores_.push_back(piece.score);
      if (piece.type != Type::kNormal) continue;
      trie_.add(piece.text, int32_t(id));
      least = std::min(least, piece.score);
      largest_ = std::max(largest_, std::abs(piece.score));
    }
    unknown_score_ = least - kUnknownPenalty;
    largest_ = std::max(largest_, std::abs(unknown_score_));
    scores_[size_t(unk())] = unknown_score_;
  }

  // Roundings of earlier sums decide between cuts.
  size_t independent_part(std::string_view) const override { return 0; }

 private:
  static constexpr float kUnknownPenalty = 10;
  struct Node {
    float score = 0;
    int32_t id = -1;
    size_t begin = 0;  // of the piece that ends here
    // The sums of the best two cuts of the part up to here, without roundings.
    double best = -std::numeric_limits<double>::infinity(), second = best;
  };

  static size_t count_bytes(const SentencePieceModel& model) {
    size_t bytes = 0;
    for (const SentencePieceModel::Piece& piece : model.pieces) bytes += piece.text.size();
    return bytes;
  }

  static void offer_sum(Node& node, double sum) {
    node.second = std::max(node.second, std::min(node.best, sum));
    node.best = std::max(node.best, sum);
  }

  // candidate: the sum to compare, which is stored in single precision.
  void offer(std::vector<Node>& nodes, size_t at, size_t bytes, int32_t id,
             double candidate) const {
    Node& node = nodes[at + bytes];
    const double more = scores_[size_t(id)];
    offer_sum(node, nodes[at].best + more);
    offer_sum(node, nodes[at].second + more);
    if (node.id >= 0 && candidate <= double(node.score)) return;
    node.score = float(candidate);
    node.id = id;
    node.begin = at;
  }

  float cut(std::string_view part, float& score, std::vector<int32_t>& pieces) const override {
    std::vector<Node> nodes(part.size() + 1);
    nodes[0].score = score;
    nodes[0].best = 0;
    for (size_t at = 0; at < part.size();) {
      const size_t length = code_point_at(part, at).length;
      const float here = nodes[at].score;
      bool has_one = false;
      trie_.find(part.substr(at), [&](size_t bytes, int32_t id) {
        offer(nodes, at, bytes, id, double(scores_[size_t(id)]) + double(here));
        has_one = has_one || bytes == length;
      });
      if (!has_one) offer(nodes, at, length, unk(), unknown_score_ + here);
      at += length;
    }
    for (size_t end = part.size(); end > 0; end = nodes[end].begin) pieces.push_back(nodes[end].id);
    std::ranges::reverse(pieces);
    score = nodes.back().score;
    return float(nodes.back().best - nodes.back().second);
  }

  bool add_scores(const PartCache::Known& known, size_t bytes, float& score) const override {
    // A cut has at most a piece a byte; each adds one rounding to either sum and one where two cuts
    // meet.
    constexpr float kHalfUnit = 0x1p-24f;
    const auto most = float(bytes);
    if (known.margin <= 3 * most * (std::abs(score) + most * largest_) * kHalfUnit) return false;
    for (const int32_t id : known.ids) score = float(double(scores_[size_t(id)]) + double(score));
    return true;
  }

  ByteTrie trie_;
  std::vector<float> scores_;  // by id
  float unknown_score_ = 0, largest_ = 0;
};

bool is_plain(const SentencePieceModel& model) {
  const bool known_pieces = std::ranges::all_of(model.pieces, [](const auto& piece) {
    const bool sound = !piece.text.empty() && piece.text.size() <= kMostPieceBytes &&
                       check_utf8(piece.text).num_invalid == 0 && std::isfinite(piece.score);
    // The library finds a single character among all pieces, even the control ones.
    return sound && (piece.type == Type::kNormal ||
                     (num_characters(piece.text) > 1 && piece.type != Type::kUserDefined &&
                      piece.type != Type::kUnused));
  });
  return known_pieces && model.precompiled_charsmap.empty() && !model.remove_extra_whitespaces &&
         model.escape_whitespaces && !model.treat_whitespace_as_suffix;
}

}  // namespace

std::unique_ptr<SentencePieceEncoder> make_sentencepiece_encoder(const SentencePieceModel& model) {
  if (!is_plain(model)) return nullptr;
  if (model.algorithm == SentencePieceModel::Algorithm::kBpe)
    return std::make_unique<BpeEncoder>(model);
  if (model.algorithm == SentencePieceModel::Algorithm::kUnigram)
    return std::make_unique<UnigramEncoder>(model);
  return nullptr;
}

}  // namespace ashlar::data
