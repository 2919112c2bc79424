// ashlar eval --model DIR --data PREFIX
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/core/text.h"
#include "ashlar/data/sources.h"
#include "ashlar/eval/load.h"
#include "ashlar/eval/perplexity.h"

namespace ashlar::cli {
namespace {

struct Flags {
  std::string model, data, part = "validation", dtype = "auto";
  double validation_fraction = DataSpec{}.validation_fraction;
  int64_t length = 512, max_samples = 0;
  bool json = false;
  int threads = 0;
};

std::vector<data::Source> sources(const Flags& flags, FileSystem& files, int64_t vocab_size) {
  if (flags.part == "all")
    return {
        data::open_source(files, flags.data, flags.length, Packing::kConcat, vocab_size, "--data")};
  ASHLAR_REQUIRE(flags.part == "validation", kConfig, "--part is {}; expected validation or all",
                 flags.part);
  DataSpec spec;
  spec.train = {{flags.data, 1.0}};
  spec.validation_fraction = flags.validation_fraction;
  spec.sequence_length = flags.length;
  return data::open_sources(files, spec, vocab_size, "--data").validation;
}

int evaluate(const Flags& flags, Log& log) {
  constexpr int64_t kRows = 4;
  ASHLAR_REQUIRE(flags.length > 0, kConfig, "--length is {}; expected 1 or more", flags.length);
  ASHLAR_REQUIRE(flags.max_samples >= 0, kConfig, "--max-samples is {}; expected 0 (all) or more",
                 flags.max_samples);
  const auto files = posix_files();
  const auto source = eval::find_model(*files, flags.model, log);
  auto data_sources = sources(flags, *files, source.spec.vocab_size);
  eval::Runtime runtime(*files, source, eval::parse_precision(flags.dtype), flags.length,
                        kRows * flags.length, flags.threads);
  const eval::Perplexity result =
      eval::perplexity(runtime.ctx, runtime.allocator, runtime.model, std::move(data_sources),
                       kRows, flags.max_samples, log);
  if (flags.json) {
    print_result(nlohmann::ordered_json{
        {"loss", result.loss},
        {"perplexity", result.value()},
        {"targets", result.num_targets},
        {"samples", result.num_samples},
        {"part",
         flags.part}}.dump());
  } else {
    print_result(fmt::format("{}: loss {:.4f}, perplexity {:.2f} over {} tokens of {} ({} part)",
                             source.resolved, result.loss, result.value(),
                             format_thousands(result.num_targets), flags.data, flags.part));
  }
  log.info("{} tokens/s", format_thousands(int64_t(double(result.num_targets) / result.seconds)));
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("eval", "loss and perplexity over a prepared dataset");
  sub->add_option("--model", flags->model, "Hugging Face directory, checkpoint root or step")
      ->required();
  sub->add_option("--data", flags->data, "prefix of a prepared dataset")->required();
  sub->add_option("--part", flags->part,
                  "validation: the tail that training held out; all: everything")
      ->capture_default_str();
  sub->add_option("--validation-fraction", flags->validation_fraction, "as in the training recipe")
      ->capture_default_str();
  sub->add_option("--length", flags->length, "tokens of a sample")->capture_default_str();
  sub->add_option("--max-samples", flags->max_samples, "0: all")->capture_default_str();
  sub->add_option("--dtype", flags->dtype, "auto, bf16, fp32 or fp64")->capture_default_str();
  sub->add_option("--threads", flags->threads, "0: one per CPU")->capture_default_str();
  sub->add_flag("--json", flags->json, "print JSON");
  sub->callback([flags, &action] { action = [flags](Log& log) { return evaluate(*flags, log); }; });
}

}  // namespace ashlar::cli
