// ashlar data prepare --input FILE... --tokenizer tok.model --out PREFIX | info PREFIX | verify
// PREFIX...
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "ashlar/cli/text_flags.h"
#include "ashlar/core/text.h"
#include "ashlar/data/prepare.h"
#include "ashlar/data/text_files.h"
#include "ashlar/data/verify.h"

namespace ashlar::cli {
namespace {

// A dataset may come from tens of thousands of files: the first few and the sum of the others.
void print_inputs(const std::vector<data::Sidecar::Input>& inputs) {
  constexpr size_t kShown = 8;
  data::Sidecar::Input others;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i >= kShown) {
      others.bytes += inputs[i].bytes;
      others.documents += inputs[i].documents;
      continue;
    }
    print_result(fmt::format("  from       {} ({}, {} documents)", inputs[i].path,
                             format_bytes(inputs[i].bytes), format_thousands(inputs[i].documents)));
  }
  if (inputs.size() > kShown)
    print_result(fmt::format("  and from   {} more files ({}, {} documents)",
                             format_thousands(int64_t(inputs.size() - kShown)),
                             format_bytes(others.bytes), format_thousands(others.documents)));
}

// On one line, with line ends as \\n.
std::string quoted(const std::string& text) {
  return printable(
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_info(const data::DatasetInfo& info) {
  print_result(info.prefix);
  print_lines(fmt::format(
      "  documents  {:>14}\n  tokens     {:>14}\n"
      "  longest    {:>14} tokens\n  mean       {:>14.1f} tokens\n"
      "  type       {:>14}\n  size       {:>14}",
      format_thousands(info.documents), format_thousands(info.tokens),
      format_thousands(info.longest_document), double(info.tokens) / double(info.documents),
      data::name_of(info.token_type), format_bytes(info.bin_bytes)));
  if (!info.sidecar) return print_result("  no sidecar: a dataset of another program");
  print_result(fmt::format("  tokenizer  {:>14}, {} ids, end of document {}",
                           info.sidecar->tokenizer_kind, info.sidecar->vocab_size,
                           info.sidecar->eos_id));
  if (info.sidecar->bos_id >= 0)
    print_result(fmt::format("  begins     {:>14}, the id in front of every document",
                             info.sidecar->bos_id));
  if (info.sidecar->mask)
    print_result(
        fmt::format("  learned    {:>14} tokens", format_thousands(info.sidecar->mask->learned)));
  print_inputs(info.sidecar->inputs);
  if (!info.beginning.empty()) print_result("  begins     " + quoted(info.beginning));
}

enum class Bos : uint8_t { kAsFilesSay, kYes, kNo };

// The id in front of every document; -1: none.  beside: the tokenizer is a file, which may have
// others beside it.
int32_t bos_of(FileSystem& files, const data::Tokenizer& tokenizer, bool beside, Bos bos,
               Log& log) {
  if (bos == Bos::kNo) return -1;
  data::TextFiles said;
  said.bos_id = tokenizer.bos_id();
  if (beside) said = data::text_files_beside(files, tokenizer);
  if (bos == Bos::kYes) {
    ASHLAR_REQUIRE(said.bos_id >= 0, kConfig,
                   "--bos: {} has no token that begins a text; leave the flag out",
                   tokenizer.name());
    return said.bos_id;
  }
  if (!said.adds_bos) return -1;
  log.info("every document begins with id {}, as {} says; --no-bos leaves it out", said.bos_id,
           said.said_by);
  return said.bos_id;
}

// Sets the content of rows, and the options that depend on it.
void set_rows(const std::string& format, bool bos, data::PrepareOptions& options) {
  ASHLAR_REQUIRE(format == "text" || format == "chat" || format == "completion", kConfig,
                 "--format is {}; expected text, chat or completion", format);
  data::RowOptions& rows = options.rows;
  if (format == "chat") rows.format = data::RowFormat::kChat;
  if (format == "completion") rows.format = data::RowFormat::kCompletion;
  ASHLAR_REQUIRE(rows.chat_template.empty() || format == "chat", kConfig,
                 "--chat-template is for --format chat, not {}", format);
  ASHLAR_REQUIRE(!rows.train_on_input || format != "text", kConfig,
                 "--train-on-input is for --format chat and completion: all of a text is learned");
  if (format == "text") return;
  ASHLAR_REQUIRE(!bos || format != "chat", kConfig,
                 "--bos: the chat template says how a chat begins; leave the flag out");
  ASHLAR_REQUIRE(options.text.format != data::InputFormat::kText, kConfig,
                 "--input-format is text, but --format {} reads rows of JSON", format);
  options.text.format = data::InputFormat::kJsonLines;
  options.text.whole_rows = true;
}

// One line a dataset.  Whether nothing is wrong.
bool print_report(const std::string& prefix, const data::DatasetReport& report) {
  std::string verdict = report.finding;
  if (verdict.empty()) {
    verdict = fmt::format("good ({} documents, {} tokens, {})", format_thousands(report.documents),
                          format_thousands(report.tokens), format_bytes(report.bytes));
    if (!report.has_checksum)
      verdict += fmt::format(" as far as can be told: no {}.json holds a checksum", prefix);
  }
  print_result(fmt::format("{}: {}", prefix, verdict));
  return report.finding.empty();
}

}  // namespace

void add_data(CLI::App& app, CommandAction& action) {
  CLI::App* group = app.add_subcommand("data", "prepare and inspect datasets");
  group->require_subcommand(1);

  struct Flags {
    std::vector<std::string> prefixes;
    TextFlags text;
    std::string tokenizer, out, prefix, rows = "text";
    int threads = 0;
    bool bos = false, no_bos = false;
    data::PrepareOptions options;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* prepare =
      group->add_subcommand("prepare", "tokenize text into PREFIX.bin and PREFIX.idx");
  add_text_flags(*prepare, flags->text);
  prepare
      ->add_option("--tokenizer", flags->tokenizer,
                   "sentencepiece model, tokenizer.json, a directory with either, or byte")
      ->required();
  prepare->add_option("--out", flags->out, "prefix of the files to write")
      ->required()
      ->type_name("PREFIX");
  prepare->add_option("--threads", flags->threads, "0: one per CPU")->capture_default_str();
  prepare->add_flag("--bos", flags->bos,
                    "put the tokenizer's id of beginning in front of every document (default: as "
                    "tokenizer.json or tokenizer_config.json beside the tokenizer say, else not)");
  prepare
      ->add_option("--format", flags->rows,
                   "what a row holds: text; chat (messages, conversations, instruction and "
                   "output, or prompt and completion) or completion (prompt and completion, or "
                   "instruction and output), of which the answers are learned")
      ->capture_default_str();
  prepare->add_option("--chat-template", flags->options.rows.chat_template,
                      "of chats: a Jinja file, or a model's directory (default: that of the "
                      "tokenizer)");
  prepare->add_flag("--train-on-input", flags->options.rows.train_on_input,
                    "learn the prompts of chats and completions, too");
  prepare->add_flag("--no-bos", flags->no_bos, "put nothing there")->excludes("--bos");
  add_force(*prepare, flags->options.existing);
  prepare->callback([flags, &action] {
    action = [flags](Log& log) {
      check_out(flags->out);
      const auto files = posix_files();
      const auto tokenizer = data::load_tokenizer(*files, flags->tokenizer);
      flags->options.text = options_of(flags->text);
      set_rows(flags->rows, flags->bos, flags->options);
      const bool chat = flags->options.rows.format == data::RowFormat::kChat;
      const Bos bos = flags->bos ? Bos::kYes : flags->no_bos || chat ? Bos::kNo : Bos::kAsFilesSay;
      const int32_t bos_id = bos_of(*files, *tokenizer, flags->tokenizer != "byte", bos, log);
      Threads threads(flags->threads);
      flags->options.bos_id = bos_id;
      print_info(data::prepare(*files, flags->text.inputs, *tokenizer, flags->out, threads, log,
                               flags->options));
      return 0;
    };
  });

  CLI::App* info = group->add_subcommand("info", "what a prepared dataset holds");
  info->add_option("PREFIX", flags->prefix, "prefix of the dataset")->required();
  info->callback([flags, &action] {
    action = [flags](Log&) {
      const auto files = posix_files();
      print_info(data::inspect_dataset(*files, flags->prefix));
      return 0;
    };
  });

  CLI::App* verify = group->add_subcommand(
      "verify", "compare whole datasets with their checksums; exit code 1 if anything is wrong");
  verify->add_option("PREFIX", flags->prefixes, "prefixes of datasets")->required();
  verify->callback([flags, &action] {
    action = [flags](Log& log) {
      const auto files = posix_files();
      bool good = true;
      for (const std::string& prefix : flags->prefixes)
        good = print_report(prefix, data::verify_dataset(*files, prefix, log)) && good;
      return good ? 0 : 1;
    };
  });
}

}  // namespace ashlar::cli
