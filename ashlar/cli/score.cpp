// ashlar score --model DIR --ids 3,7,1,9 [--dtype fp32|fp64|bf16] [--logits out.safetensors]
#include "ashlar/eval/score.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/cli/ckpt.h"
#include "ashlar/cli/compute_flags.h"

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

}  // namespace

void add_score(CLI::App& app, CommandAction& action) {
  struct Flags {
    std::string model, ids, logits;
    eval::ComputeFlags compute{.dtype = "fp32"};
    Existing existing;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* score =
      app.add_subcommand("score", "losses, log-probabilities and experts of given tokens, as JSON");
  score->add_option("--model", flags->model, "Hugging Face directory, run, checkpoint root or step")
      ->required();
  score->add_option("--ids", flags->ids, "token ids, such as 3,7,1,9")->required();
  add_compute_flags(*score, flags->compute);
  score->add_option("--logits", flags->logits, "write all logits to this safetensors file");
  add_force(*score, flags->existing);
  score->callback([flags, &action] {
    action = [flags](Log& log) {
      const auto files = posix_files();
      const std::vector<int32_t> ids = parse_ids(flags->ids);
      eval::check(flags->compute);
      const auto source = eval::find_model(*files, flags->model, log);
      Outputs outputs(*files, {flags->logits}, files_of(*files, source.resolved), flags->existing);
      if (!flags->logits.empty()) require_outside_steps(*files, flags->logits);
      const auto length = std::max<int64_t>(1, int64_t(ids.size()));
      eval::check_ids(ids, source);
      const eval::Calls calls{.max_positions = length, .max_call = length, .all_logits = true};
      const eval::Computing computing =
          eval::choose_computing(flags->compute, source.spec, calls, log);
      eval::Runtime runtime(*files, source, computing.compute, calls, flags->compute.threads,
                            computing.gpu);
      const eval::Scores scores = eval::score(runtime.ctx, runtime.allocator, runtime.model, ids);
      if (!flags->logits.empty()) outputs.write(flags->logits, file_of(scores));
      outputs.publish();
      print_json(nlohmann::ordered_json{{"loss", scores.loss},
                                        {"logprobs", scores.logprobs},
                                        {"argmax", scores.argmax},
                                        {"experts", experts_of(scores)}}
                     .dump());
      eval::warn_past_positions(source, length, log);
      return 0;
    };
  });
}

}  // namespace ashlar::cli
