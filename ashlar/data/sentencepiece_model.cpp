#include "ashlar/data/sentencepiece_model.h"

#include <cstring>

#include "ashlar/core/error.h"

namespace ashlar::data {
namespace {

// The fields of one message, one after the other.
class Message {
 public:
  Message(std::string_view rest, const std::string& what) : rest_(rest), what_(what) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    number_ = key >> 3;
    wire_ = key & 7;
    if (wire_ == kVarint) {
      value_ = varint();
    } else {
      check(wire_ == kFixed64 || wire_ == kBytes || wire_ == kFixed32);
      const uint64_t length = wire_ == kFixed64 ? 8 : wire_ == kFixed32 ? 4 : varint();
      check(length <= rest_.size());
      data_ = rest_.substr(0, length);
      rest_.remove_prefix(length);
    }
    return true;
  }

  uint64_t number() const { return number_; }
  std::string text() const {
    check(wire_ == kBytes);
    return std::string(data_);
  }
  Message message() const {
    check(wire_ == kBytes);
    return {data_, what_};
  }
  bool flag() const {
    check(wire_ == kVarint);
    return value_ != 0;
  }
  template <typename Enum>
  Enum choice(Enum last) const {
    check(wire_ == kVarint && value_ >= 1 && value_ <= static_cast<uint64_t>(last));
    return static_cast<Enum>(value_);
  }
  float number32() const {
    check(wire_ == kFixed32);
    float value;
    std::memcpy(&value, data_.data(), sizeof(value));
    return value;
  }

 private:
  static constexpr uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

  void check(bool holds) const {
    ASHLAR_REQUIRE(holds, kData,
                   "{}: not a sentencepiece model (field {}, {} bytes before its message ends); "
                   "expected the .model file that `ashlar tokenizer train` or spm_train writes",
                   what_, number_, rest_.size());
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      check(!rest_.empty());
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    check(false);
    return 0;
  }

  std::string_view rest_, data_;
  const std::string& what_;
  uint64_t number_ = 0, wire_ = 0, value_ = 0;
};

SentencePieceModel::Piece read_piece(Message message) {
  SentencePieceModel::Piece piece;
  while (message.next()) {
    if (message.number() == 1) piece.text = message.text();
    if (message.number() == 2) piece.score = message.number32();
    if (message.number() == 3) piece.type = message.choice(SentencePieceModel::Type::kByte);
  }
  return piece;
}

void read_trainer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    if (message.number() == 3)
      model.algorithm = message.choice(SentencePieceModel::Algorithm::kChar);
    if (message.number() == 24) model.treat_whitespace_as_suffix = message.flag();
    if (message.number() == 35) model.byte_fallback = message.flag();
  }
}

void read_normalizer(Message message, SentencePieceModel& model) {
  while (message.next()) {
    if (message.number() == 1) model.normalization_rule_name = message.text();
    if (message.number() == 2) model.precompiled_charsmap = message.text();
    if (message.number() == 3) model.add_dummy_prefix = message.flag();
    if (message.number() == 4) model.remove_extra_whitespaces = message.flag();
    if (message.number() == 5) model.escape_whitespaces = message.flag();
  }
}

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& what) {
  SentencePieceModel model;
  Message message(bytes, what);
  while (message.next()) {
    if (message.number() == 1) model.pieces.push_back(read_piece(message.message()));
    if (message.number() == 2) read_trainer(message.message(), model);
    if (message.number() == 3) read_normalizer(message.message(), model);
  }
  return model;
}

}  // namespace ashlar::data
