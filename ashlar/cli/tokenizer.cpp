// ashlar tokenizer train --input FILE... --vocab N --out tok.model
#include <CLI/CLI.hpp>

#include "ashlar/cli/text_flags.h"
#include "ashlar/core/output.h"
#include "ashlar/core/text.h"
#include "ashlar/data/sentencepiece.h"

namespace ashlar::cli {

void add_tokenizer(CLI::App& app, CommandAction& action) {
  CLI::App* group = app.add_subcommand("tokenizer", "train a tokenizer");
  group->require_subcommand(1);
  CLI::App* train = group->add_subcommand("train", "learn a sentencepiece model from text");
  struct Flags {
    TextFlags text;
    std::string out, kind = "bpe";
    Existing existing;
    data::TokenizerTraining training;
  };
  const auto flags = std::make_shared<Flags>();
  add_text_flags(*train, flags->text);
  train->add_option("--vocab", flags->training.vocab_size, "number of ids")->required();
  train->add_option("--out", flags->out, "model file to write")->required()->type_name("FILE");
  train->add_option("--kind", flags->kind, "bpe or unigram")->capture_default_str();
  train->add_option("--max-lines", flags->training.max_lines, "sample larger inputs evenly")
      ->capture_default_str();
  add_force(*train, flags->existing);
  train->callback([flags, &action] {
    action = [flags](Log& log) {
      ASHLAR_REQUIRE(flags->kind == "bpe" || flags->kind == "unigram", kConfig,
                     "--kind is {}; expected bpe or unigram", flags->kind);
      flags->training.kind = flags->kind == "bpe" ? data::TokenizerTraining::Kind::kBpe
                                                  : data::TokenizerTraining::Kind::kUnigram;
      check_out(flags->out);
      flags->training.text = options_of(flags->text);
      const auto files = posix_files();
      Outputs outputs(*files, {flags->out}, flags->text.inputs, flags->existing);
      const std::string model =
          data::train_sentencepiece(*files, flags->text.inputs, flags->training, log);
      outputs.write(flags->out, model);
      outputs.publish();
      print_result(fmt::format("{}: {} ids, {}", flags->out, flags->training.vocab_size,
                               format_bytes(int64_t(model.size()))));
      return 0;
    };
  });
}

}  // namespace ashlar::cli
