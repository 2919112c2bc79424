#include <sentencepiece_processor.h>

#include <mutex>

#include "ashlar/core/error.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/sentencepiece_encoder.h"
#include "ashlar/data/sentencepiece_model.h"

namespace ashlar::data {
namespace {

std::string with_spaces(std::string_view piece) {
  std::string out;
  for (size_t at = 0; at < piece.size();) {
    const bool space = piece.substr(at).starts_with(kPieceSpace);
    out += space ? ' ' : piece[at];
    at += space ? kPieceSpace.size() : 1;
  }
  return out;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& what)
      : name_(what), bytes_(std::move(model)) {
    ASHLAR_REQUIRE(load(processor_, bytes_) && processor_.GetPieceSize() > 0, kData,
                   "{}: its {} bytes are not a sentencepiece model; expected the .model file that "
                   "`ashlar tokenizer train` or spm_train writes",
                   what, bytes_.size());
    ASHLAR_REQUIRE(
        eos_id() >= 0 && unk_id() >= 0, kData,
        "{}: the model's eos id is {} and its unk id {}; expected both in its vocabulary "
        "of {} pieces (train it with eos_id and unk_id)",
        what, eos_id(), unk_id(), vocab_size());
    const SentencePieceModel read = read_sentencepiece_model(bytes_, name_);
    adds_prefix_ = read.add_dummy_prefix;
    encoder_ = make_sentencepiece_encoder(read);
    read_pieces();
    leading_space_ = find_leading_space();
  }

  std::string_view kind() const override { return "sentencepiece"; }
  const std::string& name() const override { return name_; }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t eos_id() const override { return processor_.eos_id(); }
  int32_t bos_id() const override { return processor_.bos_id(); }
  int32_t unk_id() const override { return processor_.unk_id(); }
  int32_t pad_id() const override {
    return processor_.pad_id() >= 0 ? processor_.pad_id() : eos_id();
  }
  const std::string& bytes() const override { return bytes_; }
  LeadingSpace leading_space() const override { return leading_space_; }
  int32_t id_of(std::string_view name) const override {
    const int id = processor_.PieceToId({name.data(), name.size()});
    return id >= 0 && id < processor_.GetPieceSize() && processor_.IdToPiece(id) == name ? id : -1;
  }
  bool starts_word(int32_t id) const override {
    return is_text(id) && processor_.IdToPiece(id).starts_with(kPieceSpace);
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    return is_own(text) ? encoder_->encode(text, adds_prefix_) : encode(processor_, text);
  }

  // A space that the library would add must replace the text's own, or be left out.
  std::vector<int32_t> encode_more(std::string_view text) const override {
    if (is_own(text)) return encoder_->encode(text, false);
    std::call_once(loaded_other_, [&] { load_other(); });
    const bool follows_space = text.size() > 1 && text[0] == ' ' && text[1] != ' ';
    if (follows_space) text.remove_prefix(1);
    return encode(follows_space == adds_prefix_ ? processor_ : other_, text);
  }

  size_t independent_part(std::string_view text) const override {
    return is_own(text) ? encoder_->independent_part(text) : 0;
  }

  std::string piece(int32_t id) const override {
    ASHLAR_REQUIRE(id >= 0 && id < vocab_size(), kData,
                   "{}: token id {} is outside its vocabulary; expected 0 to {}", name_, id,
                   vocab_size() - 1);
    return pieces_[static_cast<size_t>(id)];
  }

 private:
  bool is_own(std::string_view text) const { return encoder_ && check_utf8(text).num_invalid == 0; }
  bool is_text(int id) const {
    return !processor_.IsControl(id) && !processor_.IsUnknown(id) && !processor_.IsByte(id);
  }

  void read_pieces() {
    pieces_.reserve(static_cast<size_t>(vocab_size()));
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      if (processor_.IsControl(id)) {
        pieces_.emplace_back();
      } else if (processor_.IsByte(id)) {  // "<0x0A>"
        pieces_.emplace_back(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
      } else if (processor_.IsUnknown(id)) {
        pieces_.push_back(decoded({id}));  // the model's own sign for it
      } else {
        pieces_.push_back(with_spaces(piece));
      }
    }
  }

  // The library gives no access to the model's settings: ask it what it does with a space in front.
  LeadingSpace find_leading_space() const {
    int spaced = -1, space = -1;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (!starts_word(id)) continue;
      if (spaced < 0) spaced = id;
      if (processor_.IdToPiece(id) == kPieceSpace) space = id;
    }
    if (spaced < 0 || decoded({spaced}) == pieces_[static_cast<size_t>(spaced)])
      return LeadingSpace::kKeep;
    if (space < 0 || decoded({space, space}) == " ") return LeadingSpace::kDropOne;
    return LeadingSpace::kDropAll;
  }

  std::string decoded(const std::vector<int>& ids) const {
    std::string text;
    const auto status = processor_.Decode(ids, &text);
    ASHLAR_REQUIRE(status.ok(), kData, "{}: piece {} of the tokenizer cannot be decoded: {}", name_,
                   ids.front(), status.message());
    return text;
  }

  static bool load(sentencepiece::SentencePieceProcessor& processor, const std::string& bytes) {
    try {
      return processor.LoadFromSerializedProto(bytes).ok();
    } catch (const std::exception&) {  // the library's trie refuses texts that begin with NUL
      return false;
    }
  }

  // Loads the same model with the other setting of add_dummy_prefix.  A repeated message is merged
  // with the first, so a second normalizer_spec (field 3) with that one flag (field 3) is enough.
  void load_other() const {
    const std::string changed = bytes_ + "\x1A\x02\x18" + (adds_prefix_ ? '\0' : '\1');
    ASHLAR_REQUIRE(load(other_, changed), kData,
                   "{}: the model cannot be used without its own dummy prefix; give texts of less "
                   "than {} bytes",
                   name_, kPartBytes);
  }

  std::vector<int32_t> encode(const sentencepiece::SentencePieceProcessor& processor,
                              std::string_view text) const {
    std::vector<int> ids;
    const auto status = processor.Encode({text.data(), text.size()}, &ids);
    ASHLAR_REQUIRE(status.ok(), kData, "{}: a text of {} bytes cannot be tokenized: {}", name_,
                   text.size(), status.message());
    return ids;
  }

  std::string name_, bytes_;
  sentencepiece::SentencePieceProcessor processor_;
  std::unique_ptr<SentencePieceEncoder> encoder_;  // null: the library encodes
  bool adds_prefix_ = false;                       // processor_, not other_
  mutable std::once_flag loaded_other_;
  mutable sentencepiece::SentencePieceProcessor other_;  // for parts of a text
  std::vector<std::string> pieces_;
  LeadingSpace leading_space_;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string model, const std::string& what) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), what);
}

}  // namespace ashlar::data
