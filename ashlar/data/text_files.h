// What the Hugging Face files beside a tokenizer say of texts: tokenizer.json,
// tokenizer_config.json, special_tokens_map.json, added_tokens.json.
//
// Source  transformers 5.24: where tokenizer.json is there, its post-processor alone says what is
//         put in front of a text; else add_bos_token of tokenizer_config.json says it, and where
//         neither does, nothing is.
// Errors  kData, "PLACE/FILE: ...": not JSON, or a member of another type than transformers writes.
// Memory  the vocabulary of tokenizer.json is counted, not kept.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/data/sidecar.h"
#include "ashlar/data/tokenizer.h"

namespace ashlar::data {

using NamedFiles = std::map<std::string, std::string>;  // name -> content

struct TextFiles {
  bool adds_bos = false;
  int32_t bos_id = -1;  // of the token that begins a text, whether it is added or not; -1: none
  std::string said_by;  // "tokenizer.json: post_processor"; "": no file says whether it is added
  std::vector<AddedToken> added;   // by id
  bool splits_added = false;       // the contents of added tokens in a text are characters
  int64_t num_ids = 0;             // one above the largest id that any file or the model knows
  std::vector<std::string> notes;  // what Ashlar does not follow, a line each
};

// `tokenizer`: tokenizer.model of the same directory, or null.  trained_bos: the id in front of
// every document that the model was trained on (-1: none), which holds where no file says more.
TextFiles read_text_files(const NamedFiles& files, const Tokenizer* tokenizer,
                          const std::string& place, std::optional<int32_t> trained_bos = {});

// The same of the files in the directory of `tokenizer`, which was loaded from there.
TextFiles text_files_beside(FileSystem& files, const Tokenizer& tokenizer);

// Where these would be, by names.
std::map<std::string, std::string> text_file_paths(const Tokenizer& tokenizer);

// How the documents of a dataset begin otherwise than the texts of the model, with what to do,
// ready for a message; "": alike, or the model's files say nothing.
std::string other_beginning(const Sidecar& sidecar, const TextFiles& model);

}  // namespace ashlar::data
