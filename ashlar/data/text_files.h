// Reads how texts begin from the Hugging Face files beside a tokenizer: tokenizer.json,
// tokenizer_config.json, special_tokens_map.json, added_tokens.json.
//
// Source  transformers 5.24: if there is a tokenizer.json, its post-processor alone decides which
//         token begins a text; otherwise add_bos_token of tokenizer_config.json decides, and
//         without either there is none.
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
  int32_t bos_id = -1;  // the token that begins a text, whether it is added or not; -1: none
  std::string said_by;  // what decides: "tokenizer.json: post_processor"; "": no file does
  std::vector<AddedToken> added;   // by id
  bool splits_added = false;       // contents of added tokens in a text are plain characters
  int64_t num_ids = 0;             // one above the largest id in any file or the model
  std::vector<std::string> notes;  // a line for each setting that Ashlar does not follow
};

// `tokenizer`: tokenizer.model of the same directory, or null.  trained_bos: the id before every
// document that the model was trained on (-1: none), which counts where no file decides.
TextFiles read_text_files(const NamedFiles& files, const Tokenizer* tokenizer,
                          const std::string& place, std::optional<int32_t> trained_bos = {});

// The same for the files in the directory from which `tokenizer` was loaded.
TextFiles text_files_beside(FileSystem& files, const Tokenizer& tokenizer);

// The paths that these files would have.
std::map<std::string, std::string> text_file_paths(const Tokenizer& tokenizer);

// A message that the documents of a dataset begin differently from the texts of the model, and what
// to do; "" if they begin alike, or the model's files do not say.
std::string other_beginning(const Sidecar& sidecar, const TextFiles& model);

}  // namespace ashlar::data
