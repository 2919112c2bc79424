// ashlar tokenizer train --input FILE... --vocab N --out tok.model | encode|decode --tokenizer FILE
#include "ashlar/data/tokenizer.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ashlar/cli/text_flags.h"
#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"
#include "ashlar/core/output.h"
#include "ashlar/core/text.h"
#include "ashlar/core/threads.h"
#include "ashlar/data/byte_level_train.h"
#include "ashlar/data/hf_tokenizer.h"
#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/text_files.h"
#include "ashlar/data/text_source.h"

namespace ashlar::cli {
namespace {

// Rows are read, converted on all threads and written this many bytes, or rows, at a time.
constexpr size_t kBatchRowBytes = 4 << 20, kBatchRows = 4096;

struct ConversionFlags {
  std::string tokenizer;
  bool special = false, skip_special = false;
  int threads = 0;
};

// The id that files beside a sentencepiece model put in front of every text; -1: none.
int32_t beginning_of(FileSystem& files, const data::Tokenizer& tokenizer,
                     const ConversionFlags& flags) {
  if (!flags.special || flags.tokenizer == "byte" || tokenizer.reads_added_tokens()) return -1;
  const data::TextFiles said = data::text_files_beside(files, tokenizer);
  return said.adds_bos ? said.bos_id : -1;
}

std::string encoded_row(const Fields& row, const data::Tokenizer& tokenizer, bool special,
                        int32_t beginning) {
  const std::string& text = row.text("text");
  std::vector<int32_t> ids = special ? tokenizer.encode_with_special(text) : tokenizer.encode(text);
  if (beginning >= 0) ids.insert(ids.begin(), beginning);
  return fmt::format("{{\"ids\":[{}]}}", fmt::join(ids, ","));
}

std::string decoded_row(const Fields& row, const data::Tokenizer& tokenizer, bool skip_special) {
  std::vector<int32_t> ids;
  for (const Json& id : row.array("ids")) {
    const auto number = integer_of(id);
    if (!number || *number < 0 || *number > INT32_MAX)
      row.fail("ids holds {}; expected numbers from 0 on", shown(id));
    ids.push_back(int32_t(*number));
  }
  return one_line({{"text", tokenizer.decode(ids, skip_special)}});
}

// Reads a line of stdin without its end; false: there is none.
bool next_line(std::string& line, int64_t number) {
  constexpr int kEnd = std::char_traits<char>::eof();
  std::streambuf& in = *std::cin.rdbuf();
  line.clear();
  int c = in.sbumpc();
  const bool found = c != kEnd;
  for (; c != kEnd && c != '\n'; c = in.sbumpc()) {
    ASHLAR_REQUIRE(int64_t(line.size()) < data::kMaxDocumentBytes, kData,
                   "stdin line {}: it has more than {} bytes", number, data::kMaxDocumentBytes);
    line += char(c);
  }
  // The buffer reads through stdin, which alone keeps its errors.
  ASHLAR_REQUIRE(!std::ferror(stdin), kStorage, "stdin: line {} cannot be read", number);
  return found;
}

// Converts the JSON lines of stdin and prints a line for each.
template <typename Convert>  // std::string(const Fields& row)
int convert_rows(const ConversionFlags& flags, Convert convert) {
  Threads threads(flags.threads);
  std::vector<std::string> rows, results;
  int64_t num_done = 0;
  const auto flush = [&] {
    results.resize(rows.size());
    parallel_for(threads, int64_t(rows.size()), 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const std::string place = fmt::format("stdin line {}", num_done + i + 1);
        const Json json = parse_json(rows[size_t(i)], place, ErrorKind::kData);
        results[size_t(i)] = convert(Fields(json, place, ErrorKind::kData));
      }
    });
    num_done += int64_t(rows.size());
    for (const std::string& result : results) print_json(result);
    rows.clear();
  };
  size_t bytes = 0;
  for (std::string line; next_line(line, num_done + int64_t(rows.size()) + 1);) {
    bytes += line.size();
    rows.push_back(std::move(line));
    if (bytes < kBatchRowBytes && rows.size() < kBatchRows) continue;
    flush();
    bytes = 0;
  }
  flush();
  return 0;
}

int encode_rows(const ConversionFlags& flags) {
  const auto files = posix_files();
  const auto tokenizer = data::load_tokenizer(*files, flags.tokenizer);
  const int32_t beginning = beginning_of(*files, *tokenizer, flags);
  return convert_rows(flags, [&](const Fields& row) {
    return encoded_row(row, *tokenizer, flags.special, beginning);
  });
}

int decode_rows(const ConversionFlags& flags) {
  const auto files = posix_files();
  const auto tokenizer = data::load_tokenizer(*files, flags.tokenizer);
  return convert_rows(
      flags, [&](const Fields& row) { return decoded_row(row, *tokenizer, flags.skip_special); });
}

std::string tokenizer_json_of(const std::string& model, const std::string& out, Log& log) {
  const data::HfTokenizer written =
      data::to_hf_tokenizer(*data::parse_sentencepiece(model, out), -1);
  for (const std::string& setting : written.unstated)
    log.warn("{}: a tokenizer.json cannot follow {}", out, setting);
  return std::ranges::find(written.files, "tokenizer.json",
                           [](const auto& file) { return file.first; })
      ->second;
}

void add_conversions(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<ConversionFlags>();
  const auto add = [&](const char* name, const char* what, int (*convert)(const ConversionFlags&)) {
    CLI::App* verb = group.add_subcommand(name, what);
    verb->add_option("--tokenizer", flags->tokenizer,
                     "sentencepiece model, tokenizer.json, a directory with either, or byte")
        ->required();
    verb->add_option("--threads", flags->threads, "0: one per CPU")->capture_default_str();
    verb->callback([=, &action] { action = [=](Log&) { return convert(*flags); }; });
    return verb;
  };
  add("encode", "turn JSON lines {\"text\"} of stdin into {\"ids\"}", encode_rows)
      ->add_flag("--special", flags->special,
                 "with the special ids that its files put around a text");
  add("decode", "turn JSON lines {\"ids\"} of stdin into {\"text\"}", decode_rows)
      ->add_flag("--skip-special", flags->skip_special, "leave special tokens out");
}

struct TrainFlags {
  TextFlags text;
  std::string out, kind = "bpe", format = "sentencepiece";
  const CLI::Option* max_lines = nullptr;
  Existing existing;
  data::TokenizerTraining training;
};

std::string trained(const TrainFlags& flags, FileSystem& files, Log& log) {
  const std::vector<std::string>& inputs = flags.text.inputs;
  if (flags.format == "hf" && flags.kind == "bpe") {
    ASHLAR_REQUIRE(flags.max_lines->empty(), kConfig,
                   "--max-lines is for sentencepiece; --format hf learns BPE from all words: leave "
                   "it out");
    Threads threads(0);
    return data::train_byte_level(files, inputs, flags.training.vocab_size, flags.training.text,
                                  threads, log);
  }
  const std::string model = data::train_sentencepiece(files, inputs, flags.training, log);
  return flags.format == "hf" ? tokenizer_json_of(model, flags.out, log) : model;
}

int train_tokenizer(TrainFlags& flags, Log& log) {
  ASHLAR_REQUIRE(flags.kind == "bpe" || flags.kind == "unigram", kConfig,
                 "--kind is {}; expected bpe or unigram", flags.kind);
  flags.training.kind = flags.kind == "bpe" ? data::TokenizerTraining::Kind::kBpe
                                            : data::TokenizerTraining::Kind::kUnigram;
  ASHLAR_REQUIRE(flags.format == "sentencepiece" || flags.format == "hf", kConfig,
                 "--format is {}; expected sentencepiece or hf", flags.format);
  check_out(flags.out);
  flags.training.text = options_of(flags.text);
  const auto files = posix_files();
  Outputs outputs(*files, {flags.out}, flags.text.inputs, flags.existing);
  const std::string model = trained(flags, *files, log);
  outputs.write(flags.out, model);
  outputs.publish();
  print_result(fmt::format("{}: {} ids, {}", flags.out, flags.training.vocab_size,
                           format_bytes(int64_t(model.size()))));
  return 0;
}

void add_training(CLI::App& group, CommandAction& action) {
  CLI::App* train = group.add_subcommand("train", "learn a tokenizer from text");
  const auto flags = std::make_shared<TrainFlags>();
  add_text_flags(*train, flags->text);
  train->add_option("--vocab", flags->training.vocab_size, "number of ids")->required();
  train->add_option("--out", flags->out, "file to write")->required()->type_name("FILE");
  train->add_option("--kind", flags->kind, "bpe or unigram")->capture_default_str();
  train
      ->add_option("--format", flags->format,
                   "sentencepiece, or hf: a tokenizer.json, of which BPE is byte-level")
      ->capture_default_str();
  flags->max_lines = train
                         ->add_option("--max-lines", flags->training.max_lines,
                                      "sample larger inputs of sentencepiece evenly")
                         ->capture_default_str();
  add_force(*train, flags->existing);
  train->callback(
      [flags, &action] { action = [flags](Log& log) { return train_tokenizer(*flags, log); }; });
}

}  // namespace

void add_tokenizer(CLI::App& app, CommandAction& action) {
  CLI::App* group = app.add_subcommand("tokenizer", "train a tokenizer, encode, decode");
  group->require_subcommand(1);
  add_conversions(*group, action);
  add_training(*group, action);
}

}  // namespace ashlar::cli
