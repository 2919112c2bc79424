#include "ashlar/eval/model_texts.h"

#include <ctime>
#include <nlohmann/json.hpp>

namespace ashlar::eval {
namespace {

std::tm time_here() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

bool has_space_behind_names(FileSystem& files, const ModelSource& source,
                            const data::Tokenizer& tokenizer) {
  return tokenizer.kind() == "sentencepiece" &&
         data::puts_space_behind_special_tokens(files, models::place_of_companions(source));
}

}  // namespace

ChatPrompts::ChatPrompts(FileSystem& files, const ModelSource& source,
                         const data::Tokenizer& tokenizer, const data::TextFiles& text_files,
                         const std::string& template_path)
    : template_(data::load_chat_template(
          files, template_path.empty() ? models::place_of_companions(source) : template_path)),
      names_(std::make_shared<const Ordered>(
          data::special_token_names(files, models::place_of_companions(source), tokenizer))),
      special_(tokenizer, *names_, text_files.added,
               has_space_behind_names(files, source, tokenizer)) {}

std::vector<int32_t> ChatPrompts::ids_of(const Ordered& messages, const Ordered& tools) const {
  data::ChatOptions options;
  if (!tools.is_null()) options.tools = &tools;
  options.variables = names_.get();
  options.add_generation_prompt = true;
  options.now = time_here();
  const data::RenderedChat chat = template_.render(messages, options);
  std::vector<int32_t> ids;
  special_.append(chat.text, ids);
  ASHLAR_REQUIRE(!ids.empty(), kData, "{}: it renders the chat as an empty text", template_.name());
  return ids;
}

ModelTexts read_model_texts(FileSystem& files, const ModelSource& source, bool need_text,
                            Log& log) {
  const models::Companions companions = models::companions_of(files, source);
  ModelTexts texts;
  texts.tokenizer =
      need_text ? read_tokenizer(files, source) : find_readable_tokenizer(files, source, log);
  texts.files = read_text_files(companions, source, texts.tokenizer.get());
  texts.config = read_generation_config(companions, source);
  return texts;
}

}  // namespace ashlar::eval
