// ashlar score --model DIR (--ids 3,7,1,9 [--logits out.safetensors] | --input FILE.jsonl)
// [--dtype fp32|fp64|bf16]
#include "ashlar/eval/score.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/cli/ckpt.h"
#include "ashlar/cli/compute_flags.h"
#include "ashlar/core/fields.h"
#include "ashlar/eval/model_texts.h"
#include "ashlar/eval/prompts.h"

namespace ashlar::cli {
namespace {

std::string file_of(const eval::Scores& scores) {
  const Tensor& logits = scores.logits.tensor;
  const checkpoint::TensorSpec spec{"logits", logits.dtype, {logits.shape[0], logits.shape[1]}};
  const auto plan = checkpoint::plan_safetensors(std::span(&spec, 1), {{"format", "pt"}},
                                                 checkpoint::HeaderStyle::kPlain);
  return plan.header + logits_bytes(scores);
}

std::vector<std::string> files_of(FileSystem& files, const std::string& directory) {
  std::vector<std::string> paths = files.list(directory);
  for (std::string& path : paths) path = join(directory, path);
  return paths;
}

// By block and token: the number of its expert, or a list where there are several.
nlohmann::ordered_json experts_of(const eval::Scores& scores) {
  auto blocks = nlohmann::ordered_json::array();
  for (const auto& tokens : scores.experts) {
    auto& block = blocks.emplace_back(nlohmann::ordered_json::array());
    for (const std::vector<int32_t>& chosen : tokens)
      chosen.size() == 1 ? block.push_back(chosen[0]) : block.push_back(chosen);
  }
  return blocks;
}

struct ScoreFlags {
  std::string model, ids, input, logits;
  eval::ComputeFlags compute{.dtype = "fp32"};
  Existing existing;
};

// The ids of each line: {"text": ...} or {"ids": [...]}.
std::vector<std::vector<int32_t>> read_score_rows(const std::string& path, FileSystem& files,
                                                  const eval::ModelSource& source, Log& log) {
  const eval::ModelTexts texts = eval::read_model_texts(files, source, false, log);
  std::vector<std::vector<int32_t>> rows;
  for (const eval::Prompt& line :
       eval::lines_of(read_text(files, path), path, "{\"text\": \"...\"}")) {
    const Json json = parse_json(line.text, line.place, ErrorKind::kData);
    const Fields row(json, line.place, ErrorKind::kData);
    std::vector<int32_t>& ids = rows.emplace_back();
    if (row.has("ids") && row.has("text")) row.fail("both text and ids; expected one of them");
    if (row.has("ids")) {
      for (const int64_t id : row.counts("ids"))
        ids.push_back(int32_t(std::min<int64_t>(id, INT32_MAX)));
    } else {
      if (!row.has("text")) row.fail("neither text nor ids; expected one of them");
      if (!texts.tokenizer) row.fail("{} has no tokenizer; expected ids", source.path);
      ids = eval::encode_text(row.text("text"), *texts.tokenizer, texts.files);
    }
    if (ids.size() < 2)
      row.fail("{} token; expected at least 2 (the second is predicted)", ids.size());
    eval::check_ids(ids, source);
  }
  return rows;
}

std::string line_of(const eval::Scores& scores) {
  return nlohmann::ordered_json{{"loss", scores.loss},
                                {"logprobs", scores.logprobs},
                                {"argmax", scores.argmax},
                                {"experts", experts_of(scores)}}
      .dump();
}

int score_ids(const ScoreFlags& flags, Log& log) {
  const auto files = posix_files();
  ASHLAR_REQUIRE(flags.ids.empty() != flags.input.empty(), kConfig,
                 "give one of --ids and --input");
  ASHLAR_REQUIRE(flags.logits.empty() || flags.input.empty(), kConfig, "--logits goes with --ids");
  std::vector<std::vector<int32_t>> rows;
  if (!flags.ids.empty()) rows.push_back(parse_ids(flags.ids));
  eval::check(flags.compute);
  const auto source = eval::find_model(*files, flags.model, log);
  Outputs outputs(*files, {flags.logits}, files_of(*files, source.resolved), flags.existing);
  if (!flags.logits.empty()) require_outside_steps(*files, flags.logits);
  if (!flags.input.empty()) rows = read_score_rows(flags.input, *files, source, log);
  int64_t length = 1;
  for (const std::vector<int32_t>& ids : rows) {
    length = std::max(length, int64_t(ids.size()));
    eval::check_ids(ids, source);
  }
  const eval::Calls calls{.max_positions = length, .max_call = length, .all_logits = true};
  eval::Runtime runtime(*files, source, flags.compute, calls, log);
  for (const std::vector<int32_t>& ids : rows) {
    const eval::Scores scores = eval::score(runtime.ctx, runtime.allocator, runtime.model, ids);
    if (!flags.logits.empty()) {
      outputs.write(flags.logits, file_of(scores));
      outputs.publish();
    }
    print_json(line_of(scores));
  }
  eval::warn_past_positions(source, length, log);
  return 0;
}

}  // namespace

void add_score(CLI::App& app, CommandAction& action) {
  const auto flags = std::make_shared<ScoreFlags>();
  CLI::App* score =
      app.add_subcommand("score", "losses, log-probabilities and experts of given tokens, as JSON");
  score->add_option("--model", flags->model, "Hugging Face directory, run, checkpoint root or step")
      ->required();
  score->add_option("--ids", flags->ids, "token ids, such as 3,7,1,9");
  score->add_option("--input", flags->input,
                    "a file with a text {\"text\"} or its ids {\"ids\"} a line; each gets a line");
  add_compute_flags(*score, flags->compute);
  score->add_option("--logits", flags->logits, "write all logits to this safetensors file");
  add_force(*score, flags->existing);
  score->callback(
      [flags, &action] { action = [flags](Log& log) { return score_ids(*flags, log); }; });
}

}  // namespace ashlar::cli
