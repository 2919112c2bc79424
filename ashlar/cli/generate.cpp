// ashlar generate --model DIR (--prompt TEXT ... | --prompt-file FILE | --ids ...) [--max-tokens N
// --temperature X --top-k K --top-p P --seed S]
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/cli/compute_flags.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/text.h"
#include "ashlar/data/stream_decoder.h"
#include "ashlar/eval/generation_config.h"
#include "ashlar/eval/prompts.h"
#include "ashlar/eval/slots.h"
#include "ashlar/nn/precision.h"

namespace ashlar::cli {
namespace {

constexpr int64_t kPrefillChunk = 1024;
constexpr std::string_view kJsonLines = ".jsonl";

struct GenerateFlags {
  std::string model, ids, prompt_file, weights = "full";
  eval::ComputeFlags compute;
  std::vector<std::string> prompts;
  int64_t num_slots = 16;
  std::optional<int64_t> max_tokens, top_k;
  std::optional<double> temperature, top_p;
  int64_t seed = int64_t(eval::SamplingSpec{}.seed);
  bool json = false, ignore_eos = false;
};

// The settings of the flags and, where they are not given, of the model's files.
eval::GenerateSpec spec_of(const GenerateFlags& flags, const eval::GenerationConfig& config,
                           int64_t num_prompt_ids, uint64_t prompt) {
  eval::GenerateSpec spec;
  if (config.max_length)
    spec.max_tokens =
        std::max<int64_t>(1, std::min(spec.max_tokens, *config.max_length - num_prompt_ids));
  spec.max_tokens = flags.max_tokens.value_or(config.max_new_tokens.value_or(spec.max_tokens));
  spec.sampling = config.sampling;
  eval::SamplingSpec& sampling = spec.sampling;
  sampling.temperature = flags.temperature.value_or(sampling.temperature);
  sampling.top_k = flags.top_k.value_or(sampling.top_k);
  sampling.top_p = flags.top_p.value_or(sampling.top_p);
  sampling.seed = uint64_t(flags.seed);
  sampling.prompt = prompt;
  if (!flags.ignore_eos) spec.stop_ids = config.stop_ids;
  return spec;
}

void say_what_holds(const eval::GenerationConfig& config, const eval::GenerateSpec& spec,
                    Log& log) {
  if (config.path.empty()) return;
  const eval::SamplingSpec& sampling = spec.sampling;
  std::string how = "greedy";
  if (sampling.temperature > 0) {
    how = fmt::format("temperature {}", sampling.temperature);
    if (sampling.top_k > 0) how += fmt::format(", top-k {}", sampling.top_k);
    if (sampling.top_p < 1) how += fmt::format(", top-p {}", sampling.top_p);
  }
  const std::string stops = spec.stop_ids.empty()
                                ? "nothing stops it"
                                : fmt::format("stops at {}", fmt::join(spec.stop_ids, ", "));
  log.info("{}, and flags: {}, at most {} tokens, {}", config.path, how, spec.max_tokens, stops);
  if (!config.unfollowed.empty())
    log.warn("{}: not followed: {}", config.path, fmt::join(config.unfollowed, ", "));
}

void check(const GenerateFlags& flags) {
  const int given = !flags.prompts.empty() + !flags.prompt_file.empty() + !flags.ids.empty();
  ASHLAR_REQUIRE(given == 1, kConfig, "give one of --prompt, --prompt-file and --ids");
  // Larger numbers are read as the largest.
  ASHLAR_REQUIRE(flags.seed >= 0 && flags.seed < INT64_MAX, kConfig,
                 "--seed is {}; expected 0 to {}", flags.seed, INT64_MAX - 1);
  const auto max_tokens = flags.max_tokens.value_or(1);
  ASHLAR_REQUIRE(max_tokens > 0 && max_tokens <= eval::kMaxTokens, kConfig,
                 "--max-tokens is {}; expected 1 to {}", max_tokens, eval::kMaxTokens);
  ASHLAR_REQUIRE(flags.num_slots > 0, kConfig, "--slots is {}; expected 1 or more",
                 flags.num_slots);
  eval::check(flags.compute);
  eval::validate({.temperature = flags.temperature.value_or(0),
                  .top_k = flags.top_k.value_or(0),
                  .top_p = flags.top_p.value_or(1)});
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

// A prompt and the settings under which it is continued.
struct Request {
  std::vector<int32_t> ids;
  eval::GenerateSpec spec;
  int64_t length() const { return int64_t(ids.size()) + spec.max_tokens; }
};

void check_length(const Request& request) {
  ASHLAR_REQUIRE(request.length() <= eval::kMaxTokens, kConfig,
                 "--max-tokens is {} after {} tokens of the prompt; expected at most {} together",
                 request.spec.max_tokens, request.ids.size(), eval::kMaxTokens);
}

// The files that text is encoded and shown with.
struct TextTools {
  std::unique_ptr<data::Tokenizer> tokenizer;  // null: the model has none
  data::TextFiles files;
};

std::vector<eval::Prompt> read_prompts(const GenerateFlags& flags, FileSystem& files) {
  std::vector<eval::Prompt> prompts;
  for (const std::string& text : flags.prompts)
    prompts.push_back({text, fmt::format("--prompt {}", prompts.size() + 1)});
  if (flags.prompt_file.empty()) return prompts;
  const std::string text = read_text(files, flags.prompt_file);
  if (flags.prompt_file.ends_with(kJsonLines)) return eval::parse_prompts(text, flags.prompt_file);
  return {{text, flags.prompt_file}};
}

bool has_many(const GenerateFlags& flags) {
  return flags.prompts.size() > 1 || flags.prompt_file.ends_with(kJsonLines);
}

// The ids of all prompts.  Of several, none may be longer than the model is meant for.
std::vector<std::vector<int32_t>> read_ids(const GenerateFlags& flags,
                                           const std::vector<eval::Prompt>& prompts,
                                           const eval::ModelSource& source, const TextTools& tools,
                                           Log& log) {
  std::vector<std::vector<int32_t>> all;
  if (!flags.ids.empty()) {
    all.push_back(parse_ids(flags.ids));
  } else {
    const int64_t positions = source.spec.max_positions;
    for (const eval::Prompt& prompt : prompts) {
      if (!tools.tokenizer->reads_added_tokens())
        warn_of_added_tokens(prompt.text, tools.files, log);
      all.push_back(eval::encode_text(prompt.text, *tools.tokenizer, tools.files));
      ASHLAR_REQUIRE(!has_many(flags) || int64_t(all.back().size()) <= positions, kData,
                     "{}: the prompt has {} tokens; {} is meant for {} (max_position_embeddings)",
                     prompt.place, all.back().size(), source.path, positions);
    }
  }
  for (const std::vector<int32_t>& ids : all) eval::check_ids(ids, source);
  return all;
}

// Text of a model, for a terminal: no control character but line ends and tabs.
std::string without_controls(const std::string& text) {
  std::vector<std::string> parts = split(text, '\t');
  for (std::string& part : parts) part = printable(part, NewLines::kKeep);
  return fmt::format("{}", fmt::join(parts, "\t"));
}

// Prints what is generated as it comes, unless JSON is wanted: as text where there is a tokenizer,
// else as ids.
class Printer {
 public:
  Printer(const data::Tokenizer* tokenizer, std::span<const data::AddedToken> added, bool json)
      : json_(json), terminal_(isatty(STDOUT_FILENO) == 1) {
    if (tokenizer) stream_.emplace(*tokenizer, added);
  }
  void prompt(std::span<const int32_t> ids) {
    if (!stream_) return;
    std::string text;
    for (const int32_t id : ids) text += stream_->push(id);
    show(text);
  }
  void token(int32_t id) { show(stream_ ? stream_->push(id) : fmt::format("{} ", id)); }
  // index: the prompt's, where several are given.
  void finish(const std::vector<int32_t>& ids, std::optional<int64_t> index) {
    if (stream_) show(stream_->finish());
    if (!json_) return print_part("\n");
    nlohmann::ordered_json line;
    if (index) line["index"] = *index;
    line["ids"] = ids;
    line["text"] = stream_ ? text_ : "";
    print_json(line.dump());
  }

 private:
  void show(const std::string& text) {
    text_ += text;
    if (!json_) print(text);
  }
  // Into a file or a pipe everything goes as it is.
  void print(const std::string& text) { print_part(terminal_ ? without_controls(text) : text); }
  std::optional<data::StreamDecoder> stream_;
  std::string text_;
  bool json_, terminal_;
};

// Prints the results of all prompts in their order: that of the first which has not ended as it
// comes, those behind it when their turn comes.
class Results {
 public:
  Results(const std::vector<Request>& requests, const TextTools& tools, bool json, bool many)
      : requests_(requests),
        tools_(tools),
        json_(json),
        many_(many),
        made_(requests.size()),
        ended_(requests.size(), false) {
    begin();
  }
  void add(const eval::PromptSlots::NewToken& token) {
    const auto number = size_t(token.request);
    made_[number].push_back(token.id);
    ended_[number] = token.last;
    if (number == current_) print(token.id);
    while (current_ < requests_.size() && ended_[current_]) end();
  }

 private:
  void begin() {
    if (many_ && !json_)
      print_part(fmt::format("{}==> {} of {} <==\n", current_ > 0 ? "\n" : "", current_ + 1,
                             requests_.size()));
    printer_.emplace(tools_.tokenizer.get(), tools_.files.added, json_);
    printer_->prompt(requests_[current_].ids);
  }
  void print(int32_t id) {
    if (!requests_[current_].spec.stops_at(id) || !tools_.tokenizer) printer_->token(id);
  }
  void end() {
    std::vector<int32_t> ids = requests_[current_].ids;
    ids.insert(ids.end(), made_[current_].begin(), made_[current_].end());
    printer_->finish(ids, many_ ? std::optional(int64_t(current_)) : std::nullopt);
    if (++current_ == requests_.size()) return;
    begin();
    for (const int32_t id : made_[current_]) print(id);
  }
  const std::vector<Request>& requests_;
  const TextTools& tools_;
  bool json_, many_;
  std::vector<std::vector<int32_t>> made_;
  std::vector<bool> ended_;
  size_t current_ = 0;
  std::optional<Printer> printer_;
};

int generate(const GenerateFlags& flags, Log& log) {
  check(flags);
  const bool int8_weights =
      eval::parse_int8_weights(flags.weights, nn::parse_precision(flags.compute.dtype));
  const auto files = posix_files();
  const std::vector<eval::Prompt> prompts = read_prompts(flags, *files);
  const auto source = eval::find_model(*files, flags.model, log);
  const models::Companions companions = models::companions_of(*files, source);
  const eval::GenerationConfig config = eval::read_generation_config(companions, source);
  // With --ids a model without a tokenizer can still be used; its text is then empty.
  TextTools tools;
  tools.tokenizer = flags.ids.empty() ? eval::read_tokenizer(*files, source)
                                      : eval::find_readable_tokenizer(*files, source, log);
  tools.files = eval::read_text_files(companions, source, tools.tokenizer.get());
  std::vector<Request> requests;
  int64_t length = 0, first_tokens = 0, num_made = 0;
  for (std::vector<int32_t>& ids : read_ids(flags, prompts, source, tools, log)) {
    const auto count = int64_t(ids.size());
    requests.push_back({std::move(ids), spec_of(flags, config, count, requests.size())});
    check_length(requests.back());
    length = std::max(length, requests.back().length());
    first_tokens = std::max(first_tokens, count);
  }
  say_what_holds(config, requests.front().spec, log);
  const int64_t num_slots = std::min(flags.num_slots, int64_t(requests.size()));
  const eval::Calls calls{.max_positions = length,
                          .max_call = std::min(length, kPrefillChunk),
                          .cached = true,
                          .num_places = num_slots,
                          .first_tokens = first_tokens,
                          .int8_weights = int8_weights};
  const eval::Computing computing = eval::choose_computing(flags.compute, source.spec, calls, log);
  eval::Runtime runtime(*files, source, computing.compute, calls, flags.compute.threads,
                        computing.gpu);
  eval::warn_past_positions(source, length, log);
  eval::PromptSlots slots(
      runtime.ctx, runtime.allocator, runtime.model,
      {.num_slots = num_slots, .max_tokens = length, .max_chunk = kPrefillChunk});
  Results results(requests, tools, flags.json, has_many(flags));
  const auto start = Clock::now();
  for (const Request& request : requests) slots.submit(request.ids, request.spec);
  while (slots.num_left() > 0)
    for (const auto& token : slots.step()) results.add(token), ++num_made;
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
  sub->add_option("--prompt", flags->prompts,
                  "text to continue; empty: a text of the model's own; given several times: each")
      ->type_name(kFreeText)
      ->allow_extra_args(false);
  sub->add_option("--prompt-file", flags->prompt_file,
                  "a file with the text to continue; FILE.jsonl: one {\"prompt\": TEXT} a line");
  sub->add_option("--ids", flags->ids, "token ids to continue, such as 3,7,1,9");
  sub->add_option("--max-tokens", flags->max_tokens,
                  fmt::format("new tokens at most (default: max_new_tokens of the model's "
                              "generation_config.json, else {})",
                              eval::GenerateSpec{}.max_tokens));
  sub->add_option("--temperature", flags->temperature,
                  "0: greedy (default: as that file says, else 0)");
  sub->add_option("--top-k", flags->top_k,
                  "draw among the K likeliest; 0: all (default: as that file says, else 0)");
  sub->add_option("--top-p", flags->top_p,
                  "draw among the likeliest that reach P together (default: as that file says, "
                  "else 1)");
  sub->add_option("--seed", flags->seed,
                  "draws are a function of seed, position and, of several prompts, the prompt's "
                  "index")
      ->capture_default_str();
  sub->add_option("--slots", flags->num_slots, "the most prompts that are continued at a time")
      ->capture_default_str();
  add_compute_flags(*sub, flags->compute);
  sub->add_option("--weights", flags->weights,
                  "full: as --dtype says; int8: 8 bits an element and a scale for each row")
      ->capture_default_str();
  sub->add_flag("--ignore-eos", flags->ignore_eos, "do not stop at an id that ends a text");
  sub->add_flag("--json", flags->json,
                "print {\"ids\": prompt included, \"text\"} instead of streaming text; of several "
                "prompts a line each, with its \"index\"");
  sub->callback([flags, &action] { action = [flags](Log& log) { return generate(*flags, log); }; });
}

}  // namespace ashlar::cli
