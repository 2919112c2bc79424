#include "ashlar/cli/eval_judge.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/cli/ckpt.h"
#include "ashlar/cli/sampling_flags.h"
#include "ashlar/core/text.h"
#include "ashlar/eval/compare.h"
#include "ashlar/eval/generation_config.h"
#include "ashlar/eval/judge.h"
#include "ashlar/nn/precision.h"

namespace ashlar::cli {
namespace {

constexpr int64_t kJudgeChunk = 1024, kJudgeSlots = 16;
constexpr int64_t kUsualWindow = 2048;

// Tokens of a window of a text.
int64_t window_of(const JudgeFlags& flags, const eval::ModelSource& source) {
  const int64_t positions = source.spec.max_positions;
  const int64_t length = flags.length.value_or(std::min(kUsualWindow, positions));
  ASHLAR_REQUIRE(length >= 1 && length <= eval::kMaxTokens, kConfig,
                 "--length is {}; expected 1 to {}", length, eval::kMaxTokens);
  ASHLAR_REQUIRE(
      length <= positions || flags.beyond_positions, kConfig,
      "--length is {} but {} is meant for {} tokens (max_position_embeddings); choose at "
      "most {}, or give --beyond-positions",
      length, source.path, positions, positions);
  return length;
}

void print_judged_task(const eval::JudgedTask& judged, bool json) {
  nlohmann::ordered_json line{{"task", judged.task}, {"rows", judged.rows.size()}};
  std::string words;
  for (const auto& [name, result] : judged.results) {
    line[name] = result.value;
    words += fmt::format(", {} {:.{}f}", name, result.value, name == "tokens" ? 0 : 4);
    if (result.error < 0) continue;
    line[name + "_stderr"] = result.error;
    words += fmt::format(" +- {:.4f}", result.error);
  }
  if (json) return print_json(line.dump());
  print_result(fmt::format("{}: {} {}{}", judged.task,
                           format_thousands(int64_t(judged.rows.size())),
                           judged.task == "text" ? "windows" : "questions", words));
}

eval::Task read_task(const JudgeFlags& flags, FileSystem& files) {
  eval::Task task = eval::parse_task(read_text(files, flags.tasks), flags.tasks);
  if (flags.limit > 0 && flags.limit < int64_t(task.questions.size()))
    task.questions.resize(size_t(flags.limit));
  if (flags.shots > 0)
    eval::add_shots(task, eval::parse_task(read_text(files, flags.shots_from), flags.shots_from),
                    flags.shots, flags.shots_from);
  return task;
}

void check_judge(const JudgeFlags& flags) {
  ASHLAR_REQUIRE(flags.limit >= 0, kConfig, "--limit is {}; expected 0 (all) or more", flags.limit);
  ASHLAR_REQUIRE(flags.shots >= 0, kConfig, "--shots is {}; expected 0 or more", flags.shots);
  ASHLAR_REQUIRE((flags.shots > 0) == !flags.shots_from.empty(), kConfig,
                 "--shots N, of at least 1, and --shots-from FILE go together");
  eval::check(flags.compute);
}

// The questions of a task, or a text that is read in windows.
struct JudgeInput {
  std::optional<eval::Task> task;
  std::string text;
  int64_t length = 0;  // of the longest sequence, or of a window
  bool generates() const { return task && task->kind == eval::TaskKind::kGsm8k; }
  int64_t num_places() const {
    if (generates()) return std::min(kJudgeSlots, int64_t(task->questions.size()));
    return task ? eval::places_for(*task) : 1;
  }
};

eval::JudgedTask judge(const JudgeInput& input, eval::Runtime& runtime,
                       const eval::TextEncoding& encoding, std::span<const int32_t> stop_ids,
                       Log& log) {
  if (input.generates()) {
    eval::PromptSlots slots(
        runtime.ctx, runtime.allocator, runtime.model,
        {.num_slots = input.num_places(), .max_tokens = input.length, .max_chunk = kJudgeChunk});
    return eval::judge_answers(slots, encoding, *input.task, stop_ids, log);
  }
  eval::Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, input.length, kJudgeChunk,
                        input.num_places());
  return input.task ? eval::judge_likelihoods(decoder, encoding, *input.task, log)
                    : eval::judge_text(decoder, encoding, input.text, input.length, log);
}

}  // namespace

void add_judge_flags(CLI::App& app, JudgeFlags& flags) {
  app.add_option("--tasks", flags.tasks,
                 "questions as JSON lines in the fields of HellaSwag, ARC, MMLU, LAMBADA or GSM8K");
  app.add_option("--text", flags.text, "a text file, whose perplexity is given");
  app.add_option("--out", flags.out,
                 "write a row for each question or window to this file, for --compare");
  add_force(app, flags.existing);
  app.add_option("--limit", flags.limit, "only the first N questions; 0: all")
      ->capture_default_str();
  app.add_option("--shots", flags.shots, "examples with answers before each question")
      ->capture_default_str();
  app.add_option("--shots-from", flags.shots_from,
                 "the examples, in the form of --tasks; the first are taken");
  app.add_option("--compare", flags.compare,
                 "compare two files that --out wrote of two models, in pairs")
      ->expected(2)
      ->type_name("FILE");
}

int judge_model(const JudgeFlags& flags, Log& log) {
  check_judge(flags);
  const bool int8_weights =
      eval::parse_int8_weights(flags.weights, nn::parse_precision(flags.compute.dtype));
  const auto files = posix_files();
  JudgeInput input;
  if (flags.text.empty())
    input.task = read_task(flags, *files);
  else
    input.text = read_text(*files, flags.text);
  const auto source = eval::find_model(*files, flags.model, log);
  std::vector<std::string> inputs{flags.tasks, flags.shots_from, flags.text};
  for (const std::string& name : files->list(source.resolved))
    inputs.push_back(join(source.resolved, name));
  Outputs outputs(*files, {flags.out}, inputs, flags.existing);
  if (!flags.out.empty()) require_outside_steps(*files, flags.out);
  const models::Companions companions = models::companions_of(*files, source);
  const auto tokenizer = eval::read_tokenizer(*files, source);
  const data::TextFiles text_files = eval::read_text_files(companions, source, tokenizer.get());
  const eval::TextEncoding encoding{*tokenizer, text_files, source, source.spec.max_positions};
  input.length = input.task ? eval::longest_of(encoding, *input.task) : window_of(flags, source);
  const eval::Calls calls{.max_positions = input.length,
                          .max_call = std::min(input.length, kJudgeChunk),
                          .cached = true,
                          .num_places = input.num_places(),
                          .int8_weights = int8_weights};
  eval::Runtime runtime(*files, source, flags.compute, calls, log);
  const eval::GenerationConfig config = eval::read_generation_config(companions, source);
  warn_of_unfollowed(config, log);
  const eval::JudgedTask judged = judge(input, runtime, encoding, config.stop_ids, log);
  if (!flags.out.empty()) outputs.write(flags.out, eval::lines_of(judged, source.path));
  outputs.publish();
  print_judged_task(judged, flags.json);
  return 0;
}

int compare_judged(const std::vector<std::string>& paths, bool json) {
  const auto files = posix_files();
  const eval::JudgedFile a = eval::parse_judged(read_text(*files, paths[0]), paths[0]);
  const eval::JudgedFile b = eval::parse_judged(read_text(*files, paths[1]), paths[1]);
  auto rows = nlohmann::ordered_json::array();
  for (const eval::Comparison& found : eval::compare(a, b)) {
    if (!json) {
      std::string line = fmt::format(
          "{} {}: {:.4f} of {}, {:.4f} of {}; difference {:+.4f}, 95 % within {:+.4f} to {:+.4f}",
          a.task, found.metric, found.a, a.model, found.b, b.model, found.difference, found.low(),
          found.high());
      if (found.counts)
        line += fmt::format("; {} right in the first alone, {} in the second, p {:.3g}",
                            found.only_a, found.only_b, found.p);
      print_result(line);
      continue;
    }
    nlohmann::ordered_json row{{"metric", found.metric}, {"a", found.a},
                               {"b", found.b},           {"difference", found.difference},
                               {"stderr", found.error},  {"low", found.low()},
                               {"high", found.high()}};
    if (found.counts)
      row.update({{"only_a", found.only_a}, {"only_b", found.only_b}, {"p", found.p}});
    rows.push_back(std::move(row));
  }
  if (json)
    print_json(nlohmann::ordered_json{
        {"task", a.task},
        {"a", a.model},
        {"b", b.model},
        {"rows", a.rows.size()},
        {"metrics",
         rows}}.dump());
  return 0;
}

}  // namespace ashlar::cli
