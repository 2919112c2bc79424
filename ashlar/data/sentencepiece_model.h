// The content of a serialized sentencepiece model: its pieces, and the settings that the library
// does not expose.
//
// Source  sentencepiece_model.proto of sentencepiece 0.1.97, in the wire format of Protocol
//         Buffers.
// Errors  kData for bytes that are not such a message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::data {

inline constexpr std::string_view kPieceSpace = "\xE2\x96\x81";  // U+2581: a space in pieces

struct SentencePieceModel {
  enum class Algorithm : uint8_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  enum class Type : uint8_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };

  std::vector<Piece> pieces;  // by id
  Algorithm algorithm = Algorithm::kUnigram;
  bool byte_fallback = false, treat_whitespace_as_suffix = false;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  std::string normalization_rule_name;
  std::string precompiled_charsmap;  // empty: characters stay as they are
};

// `what` names the source in messages.
SentencePieceModel read_sentencepiece_model(std::string_view bytes, const std::string& what);

}  // namespace ashlar::data
