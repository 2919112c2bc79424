// ashlar generate --model DIR (-p TEXT ... | --prompt-file FILE | --chat FILE | --ids ...)
// [--num-samples N --max-tokens N --temperature X ...]
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/cli/answers.h"
#include "ashlar/cli/compute_flags.h"
#include "ashlar/cli/sampling_flags.h"
#include "ashlar/cli/stdin_text.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/text.h"
#include "ashlar/data/chat_row.h"
#include "ashlar/eval/model_texts.h"
#include "ashlar/eval/prompts.h"
#include "ashlar/nn/precision.h"

namespace ashlar::cli {
namespace {

constexpr int64_t kPrefillChunk = 1024;
const int64_t kUsualMaxTokens = eval::GenerateSpec{}.max_tokens;
constexpr int64_t kMaxSamples = 100'000;
constexpr std::string_view kJsonLines = ".jsonl";
constexpr std::string_view kStdin = "-";

struct GenerateFlags {
  std::string model, ids, prompt_file, chat, chat_template, weights = "full";
  eval::ComputeFlags compute;
  std::vector<std::string> prompts;
  int64_t num_slots = 16, num_samples = 1;
  SamplingFlags sampling;
  bool json = false;
};

void check_generate(const GenerateFlags& flags) {
  const int given = !flags.prompts.empty() + !flags.prompt_file.empty() + !flags.ids.empty() +
                    !flags.chat.empty();
  ASHLAR_REQUIRE(given == 1, kConfig, "give one of --prompt, --prompt-file, --chat and --ids");
  ASHLAR_REQUIRE(flags.chat_template.empty() || !flags.chat.empty(), kConfig,
                 "--chat-template goes with --chat");
  ASHLAR_REQUIRE(flags.num_slots > 0, kConfig, "--slots is {}; expected 1 or more",
                 flags.num_slots);
  ASHLAR_REQUIRE(flags.num_samples > 0 && flags.num_samples <= kMaxSamples, kConfig,
                 "--num-samples is {}; expected 1 to {}", flags.num_samples, kMaxSamples);
  check(flags.sampling);
  eval::check(flags.compute);
}

// transformers makes one id of each.
void warn_of_added_tokens(const std::string& prompt, const data::TextFiles& files, Log& log) {
  if (files.splits_added) return;
  for (const data::AddedToken& token : files.added)
    if (!token.content.empty() && prompt.find(token.content) != std::string::npos)
      return log.warn(
          "{} in the prompt is read as characters, not as token {} of the model; give --ids for it",
          printable(token.content), token.id);
}

void check_length(const PromptRequest& request) {
  ASHLAR_REQUIRE(request.length() <= eval::kMaxTokens, kConfig,
                 "--max-tokens is {} after {} tokens of the prompt; expected at most {} together",
                 request.spec.max_tokens, request.ids.size(), eval::kMaxTokens);
}

// The file of --prompt-file or --chat.
const std::string& prompts_file_of(const GenerateFlags& flags) {
  return flags.chat.empty() ? flags.prompt_file : flags.chat;
}

std::vector<eval::Prompt> read_prompts(const GenerateFlags& flags, FileSystem& files) {
  std::vector<eval::Prompt> prompts;
  for (const std::string& text : flags.prompts)
    prompts.push_back({text, fmt::format("--prompt {}", prompts.size() + 1)});
  const std::string& path = prompts_file_of(flags);
  if (path.empty()) return prompts;
  if (path == kStdin) return {{read_stdin(), "stdin"}};
  const std::string text = read_text(files, path);
  if (!path.ends_with(kJsonLines)) return {{text, path}};
  return flags.chat.empty() ? eval::parse_prompts(text, path)
                            : eval::lines_of(text, path, "{\"messages\": [...]}");
}

bool has_many(const GenerateFlags& flags) {
  return flags.prompts.size() > 1 || prompts_file_of(flags).ends_with(kJsonLines) ||
         flags.num_samples > 1;
}

// The ids of all prompts.  Of several, none may be longer than the model is meant for.
std::vector<std::vector<int32_t>> read_ids(const GenerateFlags& flags,
                                           const std::vector<eval::Prompt>& prompts,
                                           FileSystem& files, const eval::ModelSource& source,
                                           const eval::ModelTexts& texts, Log& log) {
  std::vector<std::vector<int32_t>> all;
  if (!flags.ids.empty()) all.push_back(parse_ids(flags.ids));
  std::optional<eval::ChatPrompts> chats;
  if (!flags.chat.empty())
    chats.emplace(files, source, *texts.tokenizer, texts.files, flags.chat_template);
  const int64_t positions = source.spec.max_positions;
  for (const eval::Prompt& prompt : prompts) {
    if (chats) {
      const Ordered chat = data::chat_of_row(eval::as_chat_row(prompt.text), prompt.place);
      all.push_back(chats->ids_of(chat.at("messages"), chat.at("tools")));
    } else {
      if (!texts.tokenizer->reads_added_tokens())
        warn_of_added_tokens(prompt.text, texts.files, log);
      all.push_back(eval::encode_text(prompt.text, *texts.tokenizer, texts.files));
    }
    ASHLAR_REQUIRE(!has_many(flags) || int64_t(all.back().size()) <= positions, kData,
                   "{}: the prompt has {} tokens; {} is meant for {} (max_position_embeddings)",
                   prompt.place, all.back().size(), source.path, positions);
  }
  for (const std::vector<int32_t>& ids : all) eval::check_ids(ids, source);
  return all;
}

// Every sample of every prompt.
std::vector<PromptRequest> requests_of(const GenerateFlags& flags,
                                       const std::vector<std::vector<int32_t>>& prompts,
                                       const eval::ModelTexts& texts) {
  std::vector<PromptRequest> requests;
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt)
    for (int64_t sample = 0; sample < flags.num_samples; ++sample) {
      requests.push_back({prompts[prompt],
                          spec_of(flags.sampling, texts, int64_t(prompts[prompt].size()),
                                  requests.size(), kUsualMaxTokens),
                          int64_t(prompt), sample});
      check_length(requests.back());
    }
  return requests;
}

int generate(const GenerateFlags& flags, Log& log) {
  check_generate(flags);
  const bool int8_weights =
      eval::parse_int8_weights(flags.weights, nn::parse_precision(flags.compute.dtype));
  const auto files = posix_files();
  const std::vector<eval::Prompt> prompts = read_prompts(flags, *files);
  const auto source = eval::find_model(*files, flags.model, log);
  // With --ids a model without a tokenizer can still be used; its text is then empty.
  const eval::ModelTexts texts = eval::read_model_texts(*files, source, flags.ids.empty(), log);
  ASHLAR_REQUIRE(texts.tokenizer || flags.sampling.stops.empty(), kConfig,
                 "{} has no tokenizer, so that --stop never comes", source.path);
  const std::vector<PromptRequest> requests =
      requests_of(flags, read_ids(flags, prompts, *files, source, texts, log), texts);
  int64_t length = 0, first_tokens = 0, num_made = 0;
  for (const PromptRequest& request : requests) {
    length = std::max(length, request.length());
    first_tokens = std::max(first_tokens, int64_t(request.ids.size()));
  }
  say_what_holds(texts.config, requests.front().spec, log);
  const int64_t num_slots = std::min(flags.num_slots, int64_t(requests.size()));
  const eval::Calls calls{.max_positions = length,
                          .max_call = std::min(length, kPrefillChunk),
                          .cached = true,
                          .num_places = num_slots,
                          .first_tokens = first_tokens,
                          .int8_weights = int8_weights};
  eval::Runtime runtime(*files, source, flags.compute, calls, log);
  eval::warn_past_positions(source, length, log);
  eval::PromptSlots slots(
      runtime.ctx, runtime.allocator, runtime.model,
      {.num_slots = num_slots, .max_tokens = length, .max_chunk = kPrefillChunk});
  Answers answers(requests, texts, flags.sampling.stops,
                  {.json = flags.json,
                   .many = has_many(flags),
                   .samples = flags.num_samples > 1,
                   .with_prompt = flags.chat.empty()});
  const auto start = Clock::now();
  for (const PromptRequest& request : requests) slots.submit(request.ids, request.spec);
  while (slots.num_left() > 0)
    for (const auto& token : slots.step()) {
      if (answers.add(token)) slots.cancel(token.request);
      ++num_made;
    }
  const double seconds = seconds_since(start);
  log.info("{} tokens in {:.3f} s, {:.0f} tokens/s", num_made, seconds, double(num_made) / seconds);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, CommandAction& action) {
  const auto flags = std::make_shared<GenerateFlags>();
  CLI::App* sub = app.add_subcommand("generate", "continue a prompt");
  sub->add_option("--model", flags->model, "Hugging Face directory, run, checkpoint root or step")
      ->required();
  sub->add_option("-p,--prompt", flags->prompts,
                  "text to continue; empty: a text of the model's own; given several times: each")
      ->type_name(kFreeText)
      ->allow_extra_args(false);
  sub->add_option("--prompt-file", flags->prompt_file,
                  "a file with the text to continue, - for stdin; FILE.jsonl: one {\"prompt\": "
                  "TEXT} a line");
  sub->add_option("--chat", flags->chat,
                  "a file with the messages of a chat to answer, - for stdin; FILE.jsonl: a chat a "
                  "line");
  sub->add_option("--chat-template", flags->chat_template,
                  "a template, or a directory with one; left out: the model's");
  sub->add_option("--ids", flags->ids, "token ids to continue, such as 3,7,1,9");
  add_sampling_flags(*sub, flags->sampling, kUsualMaxTokens);
  sub->add_option("--num-samples", flags->num_samples, "answers to each prompt")
      ->capture_default_str();
  sub->add_option("--slots", flags->num_slots, "the most prompts that are continued at a time")
      ->capture_default_str();
  add_compute_flags(*sub, flags->compute);
  sub->add_option("--weights", flags->weights,
                  "full: as --dtype says; int8: 8 bits an element and a scale for each row")
      ->capture_default_str();
  sub->add_flag("--json", flags->json,
                "print {\"ids\": prompt included, \"text\"} instead of streaming text; of several "
                "prompts a line each, with its \"index\"");
  sub->callback([flags, &action] { action = [flags](Log& log) { return generate(*flags, log); }; });
}

}  // namespace ashlar::cli
