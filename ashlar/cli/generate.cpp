// ashlar generate --model DIR (--prompt TEXT | --prompt-file FILE | --ids ...) [--max-tokens N
// --temperature X --top-k K --top-p P --seed S]
#include "ashlar/eval/generate.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/cli/command.h"
#include "ashlar/core/clock.h"
#include "ashlar/data/stream_decoder.h"
#include "ashlar/eval/load.h"
#include "ashlar/nn/precision.h"

namespace ashlar::cli {
namespace {

constexpr int64_t kPrefillChunk = 256;

struct Flags {
  std::string model, ids, prompt_file, dtype = "auto";
  std::optional<std::string> prompt;
  eval::GenerateSpec spec;
  int64_t seed = int64_t(eval::SamplingSpec{}.seed);
  bool json = false, ignore_eos = false;
  int threads = 0;
};

std::vector<int32_t> prompt_ids(const Flags& flags, FileSystem& files,
                                const data::Tokenizer* tokenizer) {
  if (!flags.ids.empty()) return parse_ids(flags.ids);
  std::vector<int32_t> ids =
      tokenizer->encode(flags.prompt ? *flags.prompt : read_text(files, flags.prompt_file));
  if (ids.empty()) ids.push_back(data::first_id(*tokenizer));
  return ids;
}

void check(const Flags& flags) {
  const int given = flags.prompt.has_value() + !flags.prompt_file.empty() + !flags.ids.empty();
  ASHLAR_REQUIRE(given == 1, kConfig, "give one of --prompt, --prompt-file and --ids");
  ASHLAR_REQUIRE(flags.spec.max_tokens > 0 && flags.spec.max_tokens <= eval::kMaxTokens, kConfig,
                 "--max-tokens is {}; expected 1 to {}", flags.spec.max_tokens, eval::kMaxTokens);
  // Larger numbers are read as the largest.
  ASHLAR_REQUIRE(flags.seed >= 0 && flags.seed < INT64_MAX, kConfig,
                 "--seed is {}; expected 0 to {}", flags.seed, INT64_MAX - 1);
  validate(flags.spec.sampling);
}

int64_t length_of(const std::vector<int32_t>& ids, const Flags& flags) {
  const int64_t length = int64_t(ids.size()) + flags.spec.max_tokens;
  ASHLAR_REQUIRE(length <= eval::kMaxTokens, kConfig,
                 "--max-tokens is {} after {} tokens of the prompt; expected at most {} together",
                 flags.spec.max_tokens, ids.size(), eval::kMaxTokens);
  return length;
}

// Prints what is generated as it comes, unless JSON is wanted: as text where there is a tokenizer,
// else as ids.
class Printer {
 public:
  Printer(const data::Tokenizer* tokenizer, bool json) : json_(json) {
    if (tokenizer) stream_.emplace(*tokenizer);
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
    if (!json_) print_part(text);
  }
  std::optional<data::StreamDecoder> stream_;
  std::string text_;
  bool json_;
};

int generate(const Flags& flags, Log& log) {
  check(flags);
  const auto files = posix_files();
  const auto source = eval::find_model(*files, flags.model, log);
  // With --ids a model without a tokenizer can still be used; its text is then empty.
  const auto tokenizer = flags.ids.empty() ? eval::read_tokenizer(*files, source)
                                           : eval::find_tokenizer(*files, source);
  std::vector<int32_t> ids = prompt_ids(flags, *files, tokenizer.get());
  eval::check_ids(ids, source);
  const int64_t length = length_of(ids, flags);
  eval::Runtime runtime(*files, source, nn::parse_precision(flags.dtype),
                        {.max_positions = length,
                         .max_call = std::min(length, kPrefillChunk),
                         .cached = true,
                         .first_tokens = int64_t(ids.size())},
                        flags.threads);
  eval::warn_past_positions(source, length, log);
  eval::Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, length, kPrefillChunk);
  eval::GenerateSpec spec = flags.spec;
  spec.sampling.seed = uint64_t(flags.seed);
  if (!flags.ignore_eos) spec.eos_id = int32_t(source.spec.eos_token_id);

  Printer printer(tokenizer.get(), flags.json);
  printer.prompt(ids);
  const auto start = Clock::now();
  const std::vector<int32_t> made = generate(decoder, ids, spec, [&](int32_t id) {
    if (id != spec.eos_id || !tokenizer) printer.token(id);
  });
  const double seconds = seconds_since(start);
  ids.insert(ids.end(), made.begin(), made.end());
  printer.finish(ids);
  log.info("{} tokens in {:.2f} s, {:.0f} tokens/s", made.size(), seconds,
           double(made.size()) / seconds);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  eval::SamplingSpec& sampling = flags->spec.sampling;
  CLI::App* sub = app.add_subcommand("generate", "continue a prompt");
  sub->add_option("--model", flags->model, "Hugging Face directory, run, checkpoint root or step")
      ->required();
  sub->add_option("--prompt", flags->prompt, "text to continue; empty: a text of the model's own")
      ->type_name(kFreeText);
  sub->add_option("--prompt-file", flags->prompt_file, "a file with the text to continue");
  sub->add_option("--ids", flags->ids, "token ids to continue, such as 3,7,1,9");
  sub->add_option("--max-tokens", flags->spec.max_tokens, "new tokens at most")
      ->capture_default_str();
  sub->add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
  sub->add_option("--top-k", sampling.top_k, "draw among the K likeliest; 0: all")
      ->capture_default_str();
  sub->add_option("--top-p", sampling.top_p, "draw among the likeliest that reach P together")
      ->capture_default_str();
  sub->add_option("--seed", flags->seed, "draws are a function of seed and position")
      ->capture_default_str();
  sub->add_option("--dtype", flags->dtype, "auto, bf16, fp32 or fp64")->capture_default_str();
  sub->add_option("--threads", flags->threads, "0: one per CPU")->capture_default_str();
  sub->add_flag("--ignore-eos", flags->ignore_eos, "do not stop at the end of a document");
  sub->add_flag("--json", flags->json,
                "print {\"ids\": prompt included, \"text\"} instead of streaming text");
  sub->callback([flags, &action] { action = [flags](Log& log) { return generate(*flags, log); }; });
}

}  // namespace ashlar::cli
