// A Tokenizer that does what tokenizer.json says, with the ids and texts of the tokenizers library
// 0.23, which calls the steps normalizer, pre-tokenizer, model, post-processor and decoder.
//
// The file does not say which tokens begin, end and fill texts.  Their names stand in
// tokenizer_config.json or special_tokens_map.json beside it; where neither states one, usual names
// among the special tokens count ("</s>", "<|endoftext|>").  Its bytes() are one line with these
// names, "ashlar tokenizer.json 1 {"bos_token": "<s>", ...}", before the file as it is.
//
// Errors  kData, "WHAT: ...", naming every type and member that is not known.
// Memory  some 20 times the file's size while it is read, about as much as the file afterwards, and
//         up to 8 MiB for each thread that encodes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "ashlar/core/files.h"
#include "ashlar/data/tokenizer.h"

namespace ashlar::data {

// Whether bytes are a tokenizer.json, or bytes() of one.
bool is_json_tokenizer(std::string_view bytes);
std::unique_ptr<Tokenizer> parse_json_tokenizer(std::string bytes, const std::string& what);

// The bytes of a tokenizer.json together with the names of special tokens that the other files of
// its directory state, by name -> content.
std::string with_roles(std::string tokenizer_json, const std::map<std::string, std::string>& others,
                       const std::string& place);
// The same for files beside `path`.
std::string with_roles_beside(FileSystem& files, const std::string& path,
                              std::string tokenizer_json);

// tokenizer.json of a tokenizer's bytes(), and tokenizer_config.json with its special tokens.
std::map<std::string, std::string> json_tokenizer_files(const Tokenizer& tokenizer);

}  // namespace ashlar::data
