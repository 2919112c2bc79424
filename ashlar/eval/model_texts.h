// Everything that the texts of a model need beside its weights: the tokenizer, how texts begin and
// end, and the template of its chats.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/json.h"
#include "ashlar/data/chat_files.h"
#include "ashlar/data/chat_template.h"
#include "ashlar/data/text_files.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/eval/generation_config.h"
#include "ashlar/eval/load.h"

namespace ashlar::eval {

// Renders chats and encodes them as models meet them in training (docs/chat.md).
//
// Errors   kData: no template beside the model; those of ChatTemplate.
// Threads  ids_of may be called from several at once.
class ChatPrompts {
 public:
  // template_path: a file or directory; "": the model's own.  The tokenizer must outlive it.
  ChatPrompts(FileSystem& files, const ModelSource& source, const data::Tokenizer& tokenizer,
              const data::TextFiles& text_files, const std::string& template_path);
  // The ids of the messages (an array of objects) and of what begins the assistant's answer.
  // tools: an array or null.
  std::vector<int32_t> ids_of(const Ordered& messages, const Ordered& tools) const;

 private:
  data::ChatTemplate template_;
  std::shared_ptr<const Ordered> names_;  // of special tokens, which the template reads
  data::SpecialTokens special_;
};

struct ModelTexts {
  std::unique_ptr<data::Tokenizer> tokenizer;  // null: the model has none
  data::TextFiles files;
  GenerationConfig config;
};

// need_text: kConfig if there is no tokenizer; otherwise one that cannot be read is a warning.
ModelTexts read_model_texts(FileSystem& files, const ModelSource& source, bool need_text, Log& log);

}  // namespace ashlar::eval
