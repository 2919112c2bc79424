// Reads a model's chat template and the names of its special tokens from its directory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/data/chat_template.h"
#include "ashlar/data/tokenizer.h"

namespace ashlar::data {

// The template at `path`: a file, or a directory with chat_template.jinja or with chat_template in
// tokenizer_config.json (of several the one named "default").  kData if there is none.
ChatTemplate load_chat_template(FileSystem& files, const std::string& path);

// An object of bos_token, eos_token and the like, as tokenizer_config.json in `directory` names
// them.  Without that file, or with directory "": as a tokenizer.json was read with, and "<s>" and
// "</s>".
Ordered special_token_names(FileSystem& files, const std::string& directory,
                            const Tokenizer& tokenizer);

// Whether tokenizer.json in `directory` puts a space in front of the text behind special tokens,
// as of Llama 2, and not only of the whole text.  False without that file.
bool puts_space_behind_special_tokens(FileSystem& files, const std::string& directory);

// Encodes text in which names of special tokens stand for their ids, as templates write them.
class SpecialTokens {
 public:
  // names: of special_token_names.  added: tokens that files beside the tokenizer add.
  SpecialTokens(const Tokenizer& tokenizer, const Ordered& names,
                const std::vector<AddedToken>& added, bool space_behind);
  // One above the largest id.
  int64_t num_ids() const { return num_ids_; }
  // Appends the ids of a part of a document, of which `ids` are those so far.
  void append(std::string_view text, std::vector<int32_t>& ids) const;

 private:
  bool begins_section(const std::vector<int32_t>& ids) const;

  const Tokenizer& tokenizer_;
  std::vector<std::pair<std::string, int32_t>> tokens_;  // longest names first
  int64_t num_ids_;
  bool space_behind_;  // of puts_space_behind_special_tokens
};

}  // namespace ashlar::data
