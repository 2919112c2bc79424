// ashlar generate --model DIR (--prompt TEXT | --prompt-file FILE | --ids ...) [--max-tokens N
// --temperature X --top-k K --top-p P --seed S]
#include "ashlar/eval/generate.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/cli/command.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/text.h"
#include "ashlar/data/stream_decoder.h"
#include "ashlar/eval/generation_config.h"
#include "ashlar/eval/load.h"
#include "ashlar/nn/precision.h"

namespace ashlar::cli {
namespace {

constexpr int64_t kPrefillChunk = 256;

struct GenerateFlags {
  std::string model, ids, prompt_file, dtype = "auto";
  std::optional<std::string> prompt;
  std::optional<int64_t> max_tokens, top_k;
  std::optional<double> temperature, top_p;
  int64_t seed = int64_t(eval::SamplingSpec{}.seed);
  bool json = false, ignore_eos = false;
  int threads = 0;
};

// The settings of the flags and, where they are not given, of the model's files.
eval::GenerateSpec spec_of(const GenerateFlags& flags, const eval::GenerationConfig& config,
                           int64_t num_prompt_ids) {
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
  const int given = flags.prompt.has_value() + !flags.prompt_file.empty() + !flags.ids.empty();
  ASHLAR_REQUIRE(given == 1, kConfig, "give one of --prompt, --prompt-file and --ids");
  // Larger numbers are read as the largest.
  ASHLAR_REQUIRE(flags.seed >= 0 && flags.seed < INT64_MAX, kConfig,
                 "--seed is {}; expected 0 to {}", flags.seed, INT64_MAX - 1);
  const auto max_tokens = flags.max_tokens.value_or(1);
  ASHLAR_REQUIRE(max_tokens > 0 && max_tokens <= eval::kMaxTokens, kConfig,
                 "--max-tokens is {}; expected 1 to {}", max_tokens, eval::kMaxTokens);
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

int64_t length_of(const std::vector<int32_t>& ids, int64_t max_tokens) {
  const int64_t length = int64_t(ids.size()) + max_tokens;
  ASHLAR_REQUIRE(length <= eval::kMaxTokens, kConfig,
                 "--max-tokens is {} after {} tokens of the prompt; expected at most {} together",
                 max_tokens, ids.size(), eval::kMaxTokens);
  return length;
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
  void finish(const std::vector<int32_t>& ids) {
    if (stream_) show(stream_->finish());
    if (!json_) return print_part("\n");
    print_json(nlohmann::ordered_json{{"ids", ids}, {"text", stream_ ? text_ : ""}}.dump());
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

int generate(const GenerateFlags& flags, Log& log) {
  check(flags);
  const auto files = posix_files();
  const auto source = eval::find_model(*files, flags.model, log);
  const models::Companions companions = models::companions_of(*files, source);
  const eval::GenerationConfig config = eval::read_generation_config(companions, source);
  // With --ids a model without a tokenizer can still be used; its text is then empty.
  const bool wants_text = flags.ids.empty();
  const auto tokenizer =
      wants_text ? eval::read_tokenizer(*files, source) : eval::find_tokenizer(*files, source);
  const data::TextFiles text_files = eval::read_text_files(companions, source, tokenizer.get());
  std::vector<int32_t> ids;
  if (wants_text) {
    const std::string text = flags.prompt ? *flags.prompt : read_text(*files, flags.prompt_file);
    warn_of_added_tokens(text, text_files, log);
    ids = eval::encode_text(text, *tokenizer, text_files);
  } else {
    ids = parse_ids(flags.ids);
  }
  eval::check_ids(ids, source);
  const eval::GenerateSpec spec = spec_of(flags, config, int64_t(ids.size()));
  const int64_t length = length_of(ids, spec.max_tokens);
  say_what_holds(config, spec, log);
  eval::Runtime runtime(*files, source, nn::parse_precision(flags.dtype),
                        {.max_positions = length,
                         .max_call = std::min(length, kPrefillChunk),
                         .cached = true,
                         .first_tokens = int64_t(ids.size())},
                        flags.threads);
  eval::warn_past_positions(source, length, log);
  eval::Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, length, kPrefillChunk);

  Printer printer(tokenizer.get(), text_files.added, flags.json);
  printer.prompt(ids);
  const auto start = Clock::now();
  const std::vector<int32_t> made = generate(decoder, ids, spec, [&](int32_t id) {
    if (!spec.stops_at(id) || !tokenizer) printer.token(id);
  });
  const double seconds = seconds_since(start);
  ids.insert(ids.end(), made.begin(), made.end());
  printer.finish(ids);
  log.info("{} tokens in {:.2f} s, {:.0f} tokens/s", made.size(), seconds,
           double(made.size()) / seconds);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, CommandAction& action) {
  const auto flags = std::make_shared<GenerateFlags>();
  CLI::App* sub = app.add_subcommand("generate", "continue a prompt");
  sub->add_option("--model", flags->model, "Hugging Face directory, run, checkpoint root or step")
      ->required();
  sub->add_option("--prompt", flags->prompt, "text to continue; empty: a text of the model's own")
      ->type_name(kFreeText);
  sub->add_option("--prompt-file", flags->prompt_file, "a file with the text to continue");
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
  sub->add_option("--seed", flags->seed, "draws are a function of seed and position")
      ->capture_default_str();
  sub->add_option("--dtype", flags->dtype, "auto, bf16, fp32 or fp64")->capture_default_str();
  sub->add_option("--threads", flags->threads, "0: one per CPU")->capture_default_str();
  sub->add_flag("--ignore-eos", flags->ignore_eos, "do not stop at an id that ends a text");
  sub->add_flag("--json", flags->json,
                "print {\"ids\": prompt included, \"text\"} instead of streaming text");
  sub->callback([flags, &action] { action = [flags](Log& log) { return generate(*flags, log); }; });
}

}  // namespace ashlar::cli
