// Converts text to token ids and back.
//
// Three implementations: a sentencepiece model (BPE or unigram; see sentencepiece.h), a
// tokenizer.json of Hugging Face (hf/json_tokenizer.h), and the byte tokenizer, which needs no
// training:
//
//   byte tokenizer, 260 ids:   0 pad   1 eos   2 bos   3 unk   4 + b  the byte b
//
// Threads  encode, decode and piece may be called from several threads at once.
// Errors   kData: ids outside the vocabulary, model bytes that are not a model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::data {

// The spaces that decoding drops at the start of a text, because encoding put them there.
enum class LeadingSpace : uint8_t { kKeep, kDropOne, kDropAll };

// Decodes one text id by id; the results of push and finish, joined, are the whole.
class TextStream {
 public:
  virtual ~TextStream() = default;
  virtual std::string push(int32_t id) = 0;
  virtual std::string finish() = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view kind() const = 0;    // "sentencepiece", "tokenizer.json", "byte"
  virtual const std::string& name() const = 0;  // its file, for messages
  virtual int64_t vocab_size() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t bos_id() const = 0;  // -1: the model has none
  virtual int32_t pad_id() const = 0;  // eos where the model has none
  virtual int32_t unk_id() const = 0;  // -1: the model has none
  // The file that load_tokenizer reads back; the fingerprint is a hash of it.
  virtual const std::string& bytes() const = 0;
  uint64_t fingerprint() const;

  // Adds no special ids; but see reads_added_tokens.  Accepts any bytes; invalid UTF-8 may decode
  // as U+FFFD.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Encodes the parts of a long text after the first, which encode() takes.  The ids are those of
  // the whole text where part_of() cut it at a space, for models whose pieces have spaces only at
  // their beginning; otherwise ids around the cut may differ.
  virtual std::vector<int32_t> encode_more(std::string_view text) const { return encode(text); }
  // The number of bytes of a text, of which more will follow, that are encoded independently of the
  // rest: encode() of them and encode_more() of the rest give the ids of the whole.  0: none.
  virtual size_t independent_part(std::string_view /*text*/) const { return 0; }
  // Encodes text that goes on behind the id `before`: behind an added token some tokenizers put a
  // space in front of it.
  virtual std::vector<int32_t> encode_behind(int32_t /*before*/, std::string_view text) const {
    return encode_more(text);
  }
  // The ids of a text together with the special ones that the tokenizer's file puts around it.
  virtual std::vector<int32_t> encode_with_special(std::string_view text) const {
    return encode(text);
  }
  // Whether the names of special and added tokens in a text become their ids.
  virtual bool reads_added_tokens() const { return false; }
  // The bytes that an id stands for inside a text, perhaps a part of a character; "" for pad, eos,
  // bos and numbers that no token has.
  virtual std::string piece(int32_t id) const = 0;
  // The id of a piece by its name in the model, as "<s>" or "<|user|>"; -1 if there is none.
  virtual int32_t id_of(std::string_view name) const = 0;
  virtual LeadingSpace leading_space() const = 0;
  // Whether the piece begins with a space that leading_space() may drop; a byte piece does not.
  virtual bool starts_word(int32_t id) const = 0;
  // Null: the pieces are joined (stream_decoder.h).  skip_special: special tokens are left out.
  virtual std::unique_ptr<TextStream> text_stream(bool /*skip_special*/) const { return nullptr; }
  // By stream_decoder.h; invalid UTF-8 becomes U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
};

// A token that files beside the model add: "<|im_end|>".
struct AddedToken {
  int32_t id = -1;
  std::string content;
  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};
// The number of bytes of `text`, of which more will follow, that encode() should take as a part: up
// to its last space between words, else up to the border between two characters.
size_t part_of(std::string_view text);

// The id that begins an empty text: bos or, if the model has none, eos, which ends the document
// before it.  kData if it has neither.
int32_t first_id(const Tokenizer& tokenizer);

std::unique_ptr<Tokenizer> byte_tokenizer(std::string name = "the byte tokenizer");

// Makes a tokenizer from the result of bytes(); `what` becomes its name.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string bytes, const std::string& what);
// Makes one of the files of a model, by name -> content: tokenizer.model or else tokenizer.json,
// whose special tokens tokenizer_config.json and special_tokens_map.json name.  Null if there is
// neither.  `place`: their directory, for messages.
std::unique_ptr<Tokenizer> tokenizer_among(const std::map<std::string, std::string>& files,
                                           const std::string& place);
// The same for work that needs no text: null, with a warning, for a tokenizer.json with a step that
// Ashlar does not have.
std::unique_ptr<Tokenizer> readable_tokenizer_among(const std::map<std::string, std::string>& files,
                                                    const std::string& place, Log& log);
// Loads "byte", the file at the path `name`, or, if that is a directory, tokenizer.model or else
// tokenizer.json in it.  Of a tokenizer.json, tokenizer_config.json and special_tokens_map.json
// beside it say which tokens begin, end and fill texts.
std::unique_ptr<Tokenizer> load_tokenizer(FileSystem& files, const std::string& name);

}  // namespace ashlar::data
