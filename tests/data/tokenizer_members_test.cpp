// Members of tokenizer_config.json in files of well-known models, and those that are named.
#include "ashlar/data/tokenizer_members.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ashlar::data {
namespace {

using Names = std::vector<std::string>;

TEST(TokenizerMembers, OfUsualFilesNoneIsNamed) {
  const char* const kFiles[] = {
      // as Llama 3.1, Qwen 2.5, TinyLlama and transformers 5.24 write them
      R"({"added_tokens_decoder": {}, "bos_token": "<|begin_of_text|>", "chat_template": "{{ x }}",
          "clean_up_tokenization_spaces": false, "eos_token": "<|eot_id|>",
          "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072,
          "tokenizer_class": "PreTrainedTokenizerFast"})",
      R"({"add_bos_token": false, "add_prefix_space": true, "additional_special_tokens": ["<|x|>"],
          "bos_token": null, "errors": "replace", "pad_token": "<|endoftext|>",
          "split_special_tokens": true, "unk_token": null})",
      R"({"add_bos_token": true, "add_eos_token": false, "legacy": false, "sp_model_kwargs": {},
          "padding_side": "right", "use_default_system_prompt": false})",
      R"({"add_prefix_space": null, "backend": "tokenizers", "extra_special_tokens": ["<s>"],
          "is_local": true, "local_files_only": true, "tokenizer_class": "LlamaTokenizer"})"};
  for (const char* file : kFiles) EXPECT_EQ(unfollowed_members(Json::parse(file)), Names{}) << file;
}

TEST(TokenizerMembers, WhatChangesTextsIsNamed) {
  EXPECT_EQ(
      unfollowed_members(Json::parse(
          R"({"add_eos_token": true, "add_prefix_space": false, "do_lower_case": true,
                    "clean_up_tokenization_spaces": true, "sp_model_kwargs": {"alpha": 0.1},
                    "unheard\nof": 1, "tokenizer_class": "X"})")),
      (Names{"add_eos_token true", "add_prefix_space false", "clean_up_tokenization_spaces true",
             "do_lower_case true", "sp_model_kwargs {\"alpha\":0.1}", "unheard?of 1"}));
}

}  // namespace
}  // namespace ashlar::data
