// ashlar eval --model DIR (--data PREFIX | --tasks FILE | --text FILE), or eval --compare A B
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "ashlar/cli/compute_flags.h"
#include "ashlar/cli/eval_judge.h"
#include "ashlar/core/text.h"
#include "ashlar/eval/input.h"
#include "ashlar/eval/perplexity.h"
#include "ashlar/nn/precision.h"

namespace ashlar::cli {
namespace {

constexpr int64_t kRows = 4;  // evaluated together
constexpr int64_t kUsualLength = 512;

struct EvalFlags {
  std::string model, part = "validation", weights = "full";
  eval::ComputeFlags compute;
  eval::InputSpec input;
  JudgeFlags judge;
  std::optional<int64_t> length;
  int64_t max_samples = 0;
  bool beyond_positions = false, one_sequence = false, json = false;
};

// The input with its length: --length, else the usual one or what the model is meant for.
eval::InputSpec input_of(const EvalFlags& flags, const eval::ModelSource& source) {
  const int64_t positions = source.spec.max_positions;
  eval::InputSpec input = flags.input;
  input.all = flags.part == "all";
  input.length = flags.length.value_or(std::min(kUsualLength, positions));
  ASHLAR_REQUIRE(input.length <= positions || flags.beyond_positions, kConfig,
                 "--length is {} but {} is meant for {} tokens (max_position_embeddings), and is "
                 "worse after them; choose at most {}, or give --beyond-positions",
                 input.length, source.path, positions, positions);
  return input;
}

void print(const EvalFlags& flags, const std::string& model, const data::Source& source,
           const eval::Perplexity& result) {
  if (flags.json)
    return print_json(nlohmann::ordered_json{
        {"loss", result.loss},
        {"perplexity", result.value()},
        {"targets", result.num_targets},
        {"samples", result.num_samples},
        {"length", source.samples.sequence_length()},
        {"counting", flags.one_sequence ? "one sequence" : "documents apart"},
        {"part", flags.part},
        {"begin", result.tokens.begin},
        {"end", result.tokens.end}}
                          .dump());
  print_result(
      fmt::format("{}: loss {:.4f}, perplexity {:.2f} over {} tokens of {} (windows of {}, {}; {}: "
                  "tokens {} to "
                  "{} of {})",
                  model, result.loss, result.value(), format_thousands(result.num_targets),
                  source.prefix(), format_thousands(source.samples.sequence_length()),
                  flags.one_sequence ? "each one sequence" : "documents apart",
                  flags.part == "all" ? "all parts" : "validation part",
                  format_thousands(result.tokens.begin), format_thousands(result.tokens.end - 1),
                  format_thousands(source.dataset->index().num_tokens())));
}

int evaluate(const EvalFlags& flags, Log& log) {
  ASHLAR_REQUIRE(flags.part == "validation" || flags.part == "all", kConfig,
                 "--part is {}; expected validation or all", flags.part);
  ASHLAR_REQUIRE(flags.length.value_or(1) > 0, kConfig, "--length is {}; expected 1 or more",
                 *flags.length);
  ASHLAR_REQUIRE(flags.max_samples >= 0, kConfig, "--max-samples is {}; expected 0 (all) or more",
                 flags.max_samples);
  eval::check(flags.compute);
  const bool int8_weights =
      eval::parse_int8_weights(flags.weights, nn::parse_precision(flags.compute.dtype));
  const auto files = posix_files();
  const auto source = eval::find_model(*files, flags.model, log);
  const eval::InputSpec spec = input_of(flags, source);
  const eval::Input input = eval::open_input(*files, source, spec);
  const int64_t length = input.source.samples.sequence_length();
  const int64_t rows = std::min(kRows, input.source.samples.size());
  const eval::Calls calls{
      .max_positions = length, .max_call = rows * length, .int8_weights = int8_weights};
  eval::Runtime runtime(*files, source, flags.compute, calls, log);
  const eval::Perplexity result = eval::perplexity(
      runtime.ctx, runtime.allocator, runtime.model, source.resolved, input.source,
      flags.one_sequence ? eval::Counting::kOneSequence : eval::Counting::kDocumentsApart, rows,
      flags.max_samples, log);
  print(flags, source.resolved, input.source, result);
  log.info("{} tokens/s", format_thousands(int64_t(double(result.num_targets) / result.seconds)));
  eval::warn_past_positions(source, length, log);
  if (!input.doubt.empty())
    log.warn("{}: nothing says that its tokenizer is the model's: {}", spec.data, input.doubt);
  if (!input.beginning.empty()) log.warn("{}: {}", spec.data, input.beginning);
  return 0;
}

// kConfig for a flag that is given though `mode` does not read it.
void refuse_unread(const CLI::App& sub, std::string_view mode,
                   const std::vector<std::string>& of_mode) {
  std::vector<std::string> read{"model", "device", "dtype", "threads", "weights", "json"};
  read.insert(read.end(), of_mode.begin(), of_mode.end());
  for (const CLI::Option* option : sub.get_options()) {
    const std::string& name = option->get_single_name();
    ASHLAR_REQUIRE(option->count() == 0 || std::ranges::find(read, name) != read.end(), kConfig,
                   "--{} does not go with --{}", name, mode);
  }
}

void refuse_unread(const CLI::App& sub, const EvalFlags& flags) {
  if (!flags.input.data.empty())
    refuse_unread(sub, "data",
                  {"data", "part", "validation-fraction", "length", "one-sequence",
                   "beyond-positions", "any-tokenizer", "max-samples"});
  else if (!flags.judge.text.empty())
    refuse_unread(sub, "text", {"text", "length", "beyond-positions", "out", "force"});
  else
    refuse_unread(sub, "tasks", {"tasks", "limit", "shots", "shots-from", "out", "force"});
}

int run_eval(const CLI::App& sub, EvalFlags& flags, Log& log) {
  JudgeFlags& judge = flags.judge;
  if (!judge.compare.empty()) {
    const auto given = [&](const CLI::Option* option) { return option->count() > 0; };
    const int64_t most = sub.count("--json") > 0 ? 2 : 1;
    ASHLAR_REQUIRE(std::ranges::count_if(sub.get_options(), given) <= most, kConfig,
                   "--compare takes two files that eval --out wrote, and --json, and nothing else");
    return compare_judged(judge.compare, flags.json);
  }
  ASHLAR_REQUIRE(!flags.model.empty(), kConfig, "--model is required");
  const int given = !flags.input.data.empty() + !judge.tasks.empty() + !judge.text.empty();
  ASHLAR_REQUIRE(given == 1, kConfig, "give one of --data, --tasks and --text");
  refuse_unread(sub, flags);
  if (!flags.input.data.empty()) return evaluate(flags, log);
  judge.model = flags.model, judge.compute = flags.compute, judge.weights = flags.weights;
  judge.length = flags.length, judge.beyond_positions = flags.beyond_positions;
  judge.json = flags.json;
  return judge_model(judge, log);
}

}  // namespace

void add_eval(CLI::App& app, CommandAction& action) {
  const auto flags = std::make_shared<EvalFlags>();
  eval::InputSpec& input = flags->input;
  CLI::App* sub = app.add_subcommand(
      "eval", "loss and perplexity over a prepared dataset or a text; answers to tasks");
  sub->add_option("--model", flags->model, "Hugging Face directory, run, checkpoint root or step");
  sub->add_option("--data", input.data, "prefix of a prepared dataset");
  add_judge_flags(*sub, flags->judge);
  sub->add_option("--part", flags->part,
                  "validation: the tail that training held out; all: everything")
      ->capture_default_str();
  sub->add_option("--validation-fraction", input.validation_fraction,
                  fmt::format("the tail; left out: as the checkpoint's recipe says, or {}",
                              DataSpec{}.validation_fraction));
  sub->add_option(
      "--length", flags->length,
      fmt::format("tokens of a window; left out: {}, or what the model is meant for; the "
                  "last window is shorter",
                  kUsualLength));
  sub->add_flag("--one-sequence", flags->one_sequence,
                "let tokens see the documents before their own, as lm-eval and transformers count; "
                "else documents are apart, as in training");
  sub->add_flag("--beyond-positions", flags->beyond_positions,
                "allow samples longer than the model is meant for");
  sub->add_flag("--any-tokenizer", input.any_tokenizer,
                "allow data of another tokenizer than the model's");
  sub->add_option("--max-samples", flags->max_samples, "0: all")->capture_default_str();
  add_compute_flags(*sub, flags->compute);
  sub->add_option("--weights", flags->weights,
                  "full: as --dtype says; int8: 8 bits an element and a scale for each row")
      ->capture_default_str();
  sub->add_flag("--json", flags->json, "print JSON");
  sub->callback([flags, sub, &action] {
    action = [flags, sub](Log& log) { return run_eval(*sub, *flags, log); };
  });
}

}  // namespace ashlar::cli
