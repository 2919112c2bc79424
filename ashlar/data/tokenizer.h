// Text to token ids and back.
//
// Two implementations: a sentencepiece model (BPE or unigram; see sentencepiece.h) and the byte
// tokenizer, which needs no training:
//
//   byte tokenizer, 260 ids:   0 pad   1 eos   2 bos   3 unk   4 + b  the byte b
//
// Threads  encode, decode and piece may be called from several threads at once.
// Errors   kData: ids outside the vocabulary, model bytes that are not a model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"

namespace ashlar::data {

// The spaces that decoding drops at the start of a text, because encoding put them there.
enum class LeadingSpace : uint8_t { kKeep, kDropOne, kDropAll };

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view kind() const = 0;    // "sentencepiece", "byte"
  virtual const std::string& name() const = 0;  // the file it came from, for messages
  virtual int64_t vocab_size() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t bos_id() const = 0;  // -1: the model has none
  virtual int32_t pad_id() const = 0;  // eos where the model has none
  virtual int32_t unk_id() const = 0;
  // The file that load_tokenizer reads back; the fingerprint is a hash of it.
  virtual const std::string& bytes() const = 0;
  uint64_t fingerprint() const;

  // No special ids are added.  Any bytes are accepted; what is not UTF-8 may come back as U+FFFD.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // A text too long for one call is encoded in parts: the first by encode(), the others by this.
  // The ids are those of the whole text where part_of() cut it at a space, for all models whose
  // pieces have spaces at their beginning only; elsewhere those around the cut may differ.
  virtual std::vector<int32_t> encode_more(std::string_view text) const { return encode(text); }
  // The bytes that an id stands for inside a text (part of a character, perhaps); "" for pad, eos,
  // bos.
  virtual std::string piece(int32_t id) const = 0;
  // The id of a piece by its name in the model, "<s>", "<|user|>"; -1: it has none.
  virtual int32_t id_of(std::string_view name) const = 0;
  virtual LeadingSpace leading_space() const = 0;
  // The piece begins with a space that leading_space() may drop; a byte that is a space does not.
  virtual bool starts_word(int32_t id) const = 0;
  // The pieces, joined (stream_decoder.h); invalid UTF-8 becomes U+FFFD.
  std::string decode(std::span<const int32_t> ids) const;
};

// A token that stands in files beside the model: "<|im_end|>".
struct AddedToken {
  int32_t id = -1;
  std::string content;
  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};
// Bytes of `text`, of which more will follow, that are a good part for encode(): up to its last
// space between words, else between two characters.
size_t part_of(std::string_view text);

// What a text that is still empty begins with: bos, or eos, which ends the document before it,
// where the model has no bos.  kData if it has neither.
int32_t first_id(const Tokenizer& tokenizer);

std::unique_ptr<Tokenizer> byte_tokenizer(std::string name = "the byte tokenizer");

// Makes a tokenizer of what bytes() gave; `what` becomes its name.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string bytes, const std::string& what);
// `name` is "byte" or the path of a model file.
std::unique_ptr<Tokenizer> load_tokenizer(FileSystem& files, const std::string& name);

}  // namespace ashlar::data
