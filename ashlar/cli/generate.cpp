// ashlar generate --model DIR (--prompt TEXT | --ids ...) [--max-tokens N --temperature X --top-k K
// --top-p P --seed S]
#include "ashlar/eval/generate.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/data/stream_decoder.h"
#include "ashlar/eval/load.h"

namespace ashlar::cli {
namespace {

constexpr int64_t kPrefillChunk = 256;

struct Flags {
  std::string model, ids, dtype = "auto";
  std::optional<std::string> prompt;
  eval::GenerateSpec spec;
  bool json = false, ignore_eos = false;
  int threads = 0;
};

std::vector<int32_t> prompt_ids(const Flags& flags, const data::Tokenizer* tokenizer) {
  if (!flags.ids.empty()) return parse_ids(flags.ids);
  std::vector<int32_t> ids = tokenizer->encode(*flags.prompt);
  if (ids.empty()) ids.push_back(data::first_id(*tokenizer));
  return ids;
}

int generate(const Flags& flags, Log& log) {
  ASHLAR_REQUIRE(flags.prompt.has_value() == flags.ids.empty(), kConfig,
                 "give either --prompt or --ids");
  ASHLAR_REQUIRE(flags.spec.max_tokens > 0, kConfig, "--max-tokens is {}; expected 1 or more",
                 flags.spec.max_tokens);
  validate(flags.spec.sampling);
  const auto files = posix_files();
  const auto source = eval::find_model(*files, flags.model, log);
  // With --ids a model without a tokenizer can still be used; its text is then empty.
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (flags.ids.empty()) {
    tokenizer = eval::read_tokenizer(*files, source);
  } else {
    try {
      tokenizer = eval::read_tokenizer(*files, source);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kConfig) throw;
    }
  }
  std::vector<int32_t> ids = prompt_ids(flags, tokenizer.get());
  check_ids(ids, source.spec.vocab_size, flags.model);
  const int64_t length = int64_t(ids.size()) + flags.spec.max_tokens;
  eval::Runtime runtime(*files, source, eval::parse_precision(flags.dtype), length,
                        std::min(length, kPrefillChunk), flags.threads);
  eval::Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, length, kPrefillChunk);
  eval::GenerateSpec spec = flags.spec;
  if (!flags.ignore_eos) spec.eos_id = int32_t(source.spec.eos_token_id);

  std::unique_ptr<data::StreamDecoder> stream;
  if (tokenizer) {
    stream = std::make_unique<data::StreamDecoder>(*tokenizer);
    std::string shown;
    for (const int32_t id : ids) shown += stream->push(id);
    if (!flags.json) print_part(shown);
  }
  const auto show = [&](const std::string& text) {
    if (!flags.json) print_part(text);
  };
  const auto start = std::chrono::steady_clock::now();
  const std::vector<int32_t> made = generate(decoder, ids, spec, [&](int32_t id) {
    if (id != spec.eos_id && stream) show(stream->push(id));
    if (!stream) show(fmt::format("{} ", id));
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ids.insert(ids.end(), made.begin(), made.end());
  if (flags.json) {
    print_result(
        nlohmann::ordered_json{{"ids", ids}, {"text", tokenizer ? tokenizer->decode(ids) : ""}}
            .dump());
  } else {
    if (stream) show(stream->finish());
    print_result("");
  }
  log.info("{} tokens in {:.2f} s, {:.0f} tokens/s", made.size(), seconds,
           double(made.size()) / seconds);
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  eval::SamplingSpec& sampling = flags->spec.sampling;
  CLI::App* sub = app.add_subcommand("generate", "continue a prompt");
  sub->add_option("--model", flags->model, "Hugging Face directory, checkpoint root or step")
      ->required();
  sub->add_option("--prompt", flags->prompt, "text to continue; empty: a text of the model's own")
      ->type_name(kFreeText);
  sub->add_option("--ids", flags->ids, "token ids to continue, such as 3,7,1,9");
  sub->add_option("--max-tokens", flags->spec.max_tokens, "new tokens at most")
      ->capture_default_str();
  sub->add_option("--temperature", sampling.temperature, "0: greedy")->capture_default_str();
  sub->add_option("--top-k", sampling.top_k, "draw among the K likeliest; 0: all")
      ->capture_default_str();
  sub->add_option("--top-p", sampling.top_p, "draw among the likeliest that reach P together")
      ->capture_default_str();
  sub->add_option("--seed", sampling.seed, "draws are a function of seed and position")
      ->capture_default_str();
  sub->add_option("--dtype", flags->dtype, "auto, bf16, fp32 or fp64")->capture_default_str();
  sub->add_option("--threads", flags->threads, "0: one per CPU")->capture_default_str();
  sub->add_flag("--ignore-eos", flags->ignore_eos, "do not stop at the end of a document");
  sub->add_flag("--json", flags->json,
                "print {\"ids\": prompt included, \"text\"} instead of streaming text");
  sub->callback([flags, &action] { action = [flags](Log& log) { return generate(*flags, log); }; });
}

}  // namespace ashlar::cli
