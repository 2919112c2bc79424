// ashlar chat MODEL: a conversation in the terminal, a line of stdin for each message.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/cli/answers.h"
#include "ashlar/cli/compute_flags.h"
#include "ashlar/cli/sampling_flags.h"
#include "ashlar/cli/stdin_text.h"
#include "ashlar/core/utf8.h"
#include "ashlar/eval/model_texts.h"
#include "ashlar/nn/precision.h"

namespace ashlar::cli {
namespace {

constexpr int64_t kChatChunk = 1024;
constexpr int64_t kChatContext = 4096, kUsualAnswer = 512;

struct ChatFlags {
  std::string model, system, chat_template, weights = "full";
  eval::ComputeFlags compute;
  std::optional<int64_t> context;
  SamplingFlags sampling;
};

// The messages so far, and the model that answers them.
class Conversation {
 public:
  Conversation(const ChatFlags& flags, const eval::ModelSource& source,
               const eval::ModelTexts& texts, const eval::ChatPrompts& prompts,
               eval::PromptSlots& slots, int64_t context)
      : flags_(flags),
        source_(source),
        texts_(texts),
        prompts_(prompts),
        slots_(slots),
        context_(context) {
    begin();
  }

  void begin() {
    messages_ = Ordered::array();
    if (!flags_.system.empty()) add("system", replace_invalid_utf8(flags_.system));
  }

  // Prints the answer as it comes.  A message for which there is no room is taken back.
  void answer(const std::string& message, Log& log) {
    add("user", message);
    const std::vector<int32_t> ids = prompts_.ids_of(messages_, nullptr);
    eval::check_ids(ids, source_);
    const int64_t room = context_ - int64_t(ids.size());
    if (room < 1) {
      messages_.erase(messages_.size() - 1);
      return log.warn("the chat has {} tokens, and --context is {}; /clear begins a new one",
                      ids.size(), context_);
    }
    eval::GenerateSpec spec =
        spec_of(flags_.sampling, texts_, int64_t(ids.size()), num_answers_++, kUsualAnswer);
    spec.max_tokens = std::min(spec.max_tokens, room);
    add("assistant", generate(ids, spec));
  }

 private:
  void add(const char* role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }

  std::string generate(const std::vector<int32_t>& ids, const eval::GenerateSpec& spec) {
    eval::AnswerText stream(*texts_.tokenizer, texts_.files.added, flags_.sampling.stops);
    stream.follow(ids);
    const int64_t number = slots_.submit(ids, spec);
    std::string text;
    const auto show = [&](const std::string& piece) {
      text += piece;
      print_part(terminal_ ? without_controls(piece) : piece);
    };
    while (slots_.num_left() > 0)
      for (const auto& token : slots_.step()) {
        if (!spec.stops_at(token.id)) show(stream.push(token.id));
        if (stream.stopped()) slots_.cancel(number);
      }
    show(stream.finish());
    print_part("\n");
    return text;
  }

  const ChatFlags& flags_;
  const eval::ModelSource& source_;
  const eval::ModelTexts& texts_;
  const eval::ChatPrompts& prompts_;
  eval::PromptSlots& slots_;
  const int64_t context_;
  const bool terminal_ = isatty(STDOUT_FILENO) == 1;
  Ordered messages_;
  uint64_t num_answers_ = 0;
};

// A line for each message; "/clear" begins a new chat, "/exit" and the end of stdin leave.
void converse(Conversation& conversation, Log& log) {
  const bool asks = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  for (std::string line;;) {
    if (asks) print_part("> ");
    if (!read_stdin_line(line)) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line == "/exit") break;
    if (line == "/clear")
      conversation.begin();
    else if (line.find_first_not_of(" \t") != line.npos)
      conversation.answer(replace_invalid_utf8(line), log);
  }
}

int chat(const ChatFlags& flags, Log& log) {
  check(flags.sampling);
  eval::check(flags.compute);
  const bool int8_weights =
      eval::parse_int8_weights(flags.weights, nn::parse_precision(flags.compute.dtype));
  const auto files = posix_files();
  const auto source = eval::find_model(*files, flags.model, log);
  const int64_t context = flags.context.value_or(std::min(kChatContext, source.spec.max_positions));
  ASHLAR_REQUIRE(context >= 2 && context <= eval::kMaxTokens, kConfig,
                 "--context is {}; expected 2 to {}", context, eval::kMaxTokens);
  const eval::ModelTexts texts = eval::read_model_texts(*files, source, true, log);
  const eval::ChatPrompts prompts(*files, source, *texts.tokenizer, texts.files,
                                  flags.chat_template);
  say_what_holds(texts.config, spec_of(flags.sampling, texts, 0, 0, kUsualAnswer), log);
  const eval::Calls calls{.max_positions = context,
                          .max_call = std::min(context, kChatChunk),
                          .cached = true,
                          .first_tokens = 1,
                          .int8_weights = int8_weights};
  eval::Runtime runtime(*files, source, flags.compute, calls, log);
  eval::warn_past_positions(source, context, log);
  eval::PromptSlots slots(runtime.ctx, runtime.allocator, runtime.model,
                          {.num_slots = 1, .max_tokens = context, .max_chunk = kChatChunk});
  Conversation conversation(flags, source, texts, prompts, slots, context);
  converse(conversation, log);
  return 0;
}

}  // namespace

void add_chat(CLI::App& app, CommandAction& action) {
  const auto flags = std::make_shared<ChatFlags>();
  CLI::App* sub = app.add_subcommand(
      "chat", "talk to a model: a line of stdin is a message; /clear begins anew, /exit ends");
  sub->add_option("--model,model", flags->model,
                  "Hugging Face directory, run, checkpoint root or step")
      ->required();
  sub->add_option("--system", flags->system, "the message of the system before all others")
      ->type_name(kFreeText);
  sub->add_option("--chat-template", flags->chat_template,
                  "a template, or a directory with one; left out: the model's");
  sub->add_option("--context", flags->context,
                  fmt::format("tokens of the whole chat; left out: {}, or what the model is meant "
                              "for",
                              kChatContext));
  add_sampling_flags(*sub, flags->sampling, kUsualAnswer);
  add_compute_flags(*sub, flags->compute);
  sub->add_option("--weights", flags->weights,
                  "full: as --dtype says; int8: 8 bits an element and a scale for each row")
      ->capture_default_str();
  sub->callback([flags, &action] { action = [flags](Log& log) { return chat(*flags, log); }; });
}

}  // namespace ashlar::cli
