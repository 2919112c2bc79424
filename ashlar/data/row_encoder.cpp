#include "ashlar/data/row_encoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/data/chat_files.h"
#include "ashlar/data/chat_row.h"
#include "ashlar/data/chat_text.h"
#include "ashlar/data/text_files.h"

namespace ashlar::data {
namespace {

// Where the files beside the tokenizer are; "" for the byte tokenizer.
std::string directory_of(FileSystem& files, const Tokenizer& tokenizer) {
  const auto info = files.stat(tokenizer.name(), LinkPolicy::kFollow);
  if (!info) return "";
  return info->type == FileInfo::Type::kDirectory ? tokenizer.name() : parent_of(tokenizer.name());
}

std::vector<AddedToken> added_beside(FileSystem& files, const Tokenizer& tokenizer) {
  return tokenizer.kind() == "sentencepiece" ? text_files_beside(files, tokenizer).added
                                             : std::vector<AddedToken>();
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace

// Members that point at each other, so that it never moves.
struct RowEncoder::Chats {
  Chats(FileSystem& files, const Tokenizer& tokenizer, const RowOptions& options)
      : directory(directory_of(files, tokenizer)),
        names(special_token_names(files, directory, tokenizer)),
        special(tokenizer, names, added_beside(files, tokenizer),
                tokenizer.kind() == "sentencepiece" &&
                    puts_space_behind_special_tokens(files, directory)) {
    if (options.format != RowFormat::kChat) return;
    const std::string& path = options.chat_template.empty() ? directory : options.chat_template;
    ASHLAR_REQUIRE(!path.empty(), kConfig,
                   "the byte tokenizer has no chat template; name one with --chat-template");
    chat_template.emplace(load_chat_template(files, path));
    texts.emplace(*chat_template, ChatOptions{.variables = &names, .now = local_time()});
  }
  Chats(const Chats&) = delete;
  Chats& operator=(const Chats&) = delete;

  const std::string directory;
  const Ordered names;
  const SpecialTokens special;
  std::optional<ChatTemplate> chat_template;
  std::optional<ChatTexts> texts;
};

RowEncoder::RowEncoder(FileSystem& files, const Tokenizer& tokenizer, const RowOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      chats_(std::make_unique<const Chats>(files, tokenizer, options)) {
  ASHLAR_ASSERT(options.format != RowFormat::kText);
}

RowEncoder::~RowEncoder() = default;

int64_t RowEncoder::num_ids() const {
  return chats_->special.num_ids();
}

void RowEncoder::append(std::string_view text, bool learned, EncodedRow& row) const {
  chats_->special.append(text, row.ids);
  row.learned.resize(row.ids.size(), learned || options_.train_on_input);
}

void RowEncoder::append_chat(const Ordered& chat, EncodedRow& row) const {
  const TrainingText text = chats_->texts->text_of(chat);
  if (text.asked_for_time) asked_for_time_ = true;
  const std::string_view all = text.text;
  size_t at = 0;
  for (const auto& [begin, end] : text.learned) {
    append(all.substr(at, begin - at), false, row);
    append(all.substr(begin, end - begin), true, row);
    at = end;
  }
  append(all.substr(at), false, row);
}

EncodedRow RowEncoder::encode(std::string_view line, const std::string& where) const {
  const bool completion = options_.format == RowFormat::kCompletion;
  const CompletionRow texts = completion ? completion_of_row(line, where) : CompletionRow();
  const Ordered chat = completion ? Ordered() : chat_of_row(line, where);
  EncodedRow row;
  try {
    if (completion) {
      append(texts.prompt, false, row);
      append(texts.completion, true, row);
    } else {
      append_chat(chat, row);
    }
  } catch (const Error& error) {
    throw Error(error.kind(), where + ": " + error.what());
  }
  if (completion || row.ids.empty() || row.ids.back() != tokenizer_.eos_id()) {
    row.ids.push_back(tokenizer_.eos_id());
    row.learned.push_back(completion || options_.train_on_input);
  }
  return row;
}

}  // namespace ashlar::data
