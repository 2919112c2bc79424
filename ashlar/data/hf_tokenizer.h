// Writes a tokenizer in the form that AutoTokenizer of Hugging Face transformers loads.
//
// Ids are those of Tokenizer::encode for every text, "<s>" and the like included, and decoding
// restores the text.  A model that the tokenizers library cannot reproduce is written as closely as
// possible, and the settings that are lost are named.
//
// Source  docs/hugging-face.md, which has the form of each setting; the serialization of the
//         tokenizers library 0.22.
// Errors  kData if the tokenizer's bytes are not a model.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ashlar/core/json.h"
#include "ashlar/data/bpe_learner.h"
#include "ashlar/data/tokenizer.h"

namespace ashlar::data {

struct HfTokenizer {
  // Names and contents: tokenizer.json, tokenizer_config.json, special_tokens_map.json.
  std::vector<std::pair<std::string, std::string>> files;
  // Settings of the model that the files do not reproduce in every text, as spm_train names them:
  // "normalization_rule_name=nmt_nfkc"; and a bos_id that they cannot state.
  std::vector<std::string> unstated;
};

// bos_id: the token before every document of the training data; -1: none.
HfTokenizer to_hf_tokenizer(const Tokenizer& tokenizer, int32_t bos_id);

// The pre-tokenizer of byte_level_json(): words as Qwen's models cut them, then their bytes.
Ordered word_steps();
// tokenizer.json of a byte-level BPE, the first tokens of which are special.
std::string byte_level_json(const LearnedBpe& learned, int32_t num_special);

}  // namespace ashlar::data
