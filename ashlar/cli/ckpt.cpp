// ashlar ckpt list ROOT | show STEP | verify STEP | import HF_DIR ROOT | export STEP HF_DIR
// [--layout native|legacy]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/checkpointer.h"
#include "ashlar/checkpoint/hf_files.h"
#include "ashlar/checkpoint/hf_model.h"
#include "ashlar/checkpoint/model_files.h"
#include "ashlar/checkpoint/verify.h"
#include "ashlar/cli/command.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/data/hf_tokenizer.h"
#include "ashlar/eval/load.h"

namespace ashlar::cli {
namespace {

using Ordered = nlohmann::ordered_json;
using checkpoint::StepState;
using checkpoint::VerifyLevel;

struct Flags {
  std::string first, second, level = "deep", list_level = "quick", layout = "native",
                             dtype = "bf16";
  double max_file_gb = 5.0;
  bool json = false, tensors = false;
};

// One line of what is in files: no byte of it reaches the terminal as a command.
void print_line(std::string_view line) {
  print_result(checkpoint::printable(line));
}

VerifyLevel parse_level(const std::string& name) {
  const auto level = checkpoint::parse_verify_level(name);
  ASHLAR_REQUIRE(level.has_value(), kConfig, "--level is {}; expected quick, files or deep", name);
  return *level;
}

// Only a step that was read whole is called good.
const char* state_name(const checkpoint::StepInfo& info, VerifyLevel level) {
  switch (info.state) {
    case StepState::kCommitted:
      if (!info.problem.empty()) return "damaged";
      return level == VerifyLevel::kDeep ? "good" : "complete";
    case StepState::kTmp:
      return "unfinished";
    case StepState::kBad:
      return "quarantined";
    case StepState::kTrash:
      return "trash";
    case StepState::kForeign:
      return "no step";
  }
  return "";
}

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

int list(const Flags& flags, Log& log) {
  const auto files = posix_files();
  const VerifyLevel level = parse_level(flags.list_level);
  const char* mark = level == VerifyLevel::kDeep ? "  <- continues here" : "  <- is tried first";
  ASHLAR_REQUIRE(files->stat(flags.first).has_value(), kConfig, "{}: there is no such directory",
                 flags.first);
  Ordered rows = Ordered::array();
  for (const checkpoint::StepInfo& info : checkpoint::list_steps(*files, flags.first, level, log)) {
    rows.push_back({{"name", last_part(info.directory)},
                    {"state", state_name(info, level)},
                    {"level", flags.list_level},
                    {"step", info.step},
                    {"verdict", info.verdict},
                    {"bytes", info.bytes},
                    {"files", info.files},
                    {"created", info.created},
                    {"recovery_choice", info.recovery_choice},
                    {"problem", info.problem}});
    if (flags.json) continue;
    print_line(fmt::format("{:<20} {:<11} {:>11} {:>3} files  {}{}{}{}", last_part(info.directory),
                           state_name(info, level), format_bytes(info.bytes), info.files,
                           info.created, info.recovery_choice ? mark : "",
                           info.problem.empty() ? "" : "  ", info.problem));
  }
  if (flags.json) print_result(one_line(rows));
  return 0;
}

int show(const Flags& flags, Log& log) {
  const auto files = posix_files();
  const checkpoint::StepReader reader = checkpoint::open_checkpoint(*files, flags.first, log);
  const checkpoint::Manifest& manifest = reader.manifest();
  if (flags.json) {
    print_result(checkpoint::build_manifest(manifest));
    return 0;
  }
  print_line(reader.directory());
  print_line(fmt::format("  step      {}", manifest.step));
  print_line(fmt::format("  run       {}", manifest.run_id));
  print_line(fmt::format("  created   {}", manifest.created));
  print_line(fmt::format("  written by {}", manifest.writer_version));
  for (const auto& [name, total] : manifest.components)
    print_line(
        fmt::format("  {:<9} {:>12} in {} files", name, format_bytes(total.bytes), total.files));
  for (const auto& [name, text] : manifest.sections)
    print_line(fmt::format("  {:<9} {}", name, text));
  print_line(fmt::format("  tensors   {}", manifest.tensors_total));
  if (!flags.tensors) return 0;
  for (const checkpoint::IndexTensor& tensor : reader.index().tensors)
    print_line(fmt::format("    {:<72} {:<5} {} in {} boxes", tensor.logical.name,
                           name_of(tensor.logical.dtype), tensor.logical.global_shape.to_string(),
                           tensor.boxes.size()));
  return 0;
}

int verify(const Flags& flags, Log& log) {
  const auto files = posix_files();
  const VerifyLevel level = parse_level(flags.level);
  ASHLAR_REQUIRE(files->stat(flags.first).has_value(), kConfig, "{}: there is no such step",
                 flags.first);
  const checkpoint::VerifyReport report = checkpoint::verify_step(*files, flags.first, level, log);
  for (const checkpoint::Finding& finding : report.findings)
    print_line(fmt::format("{}{}: {}", finding.file,
                           finding.chunk < 0 ? "" : fmt::format(" chunk {}", finding.chunk),
                           finding.message));
  print_line(fmt::format("{}: {} ({} level: {} files, {} chunks, {})", flags.first,
                         report.ok() ? "good"
                                     : fmt::format("{} finding{}", report.findings.size(),
                                                   report.findings.size() == 1 ? "" : "s"),
                         flags.level, report.files, report.chunks, format_bytes(report.bytes)));
  return report.ok() ? 0 : 1;
}

// Whole native tensors in memory of their own.
struct Weights {
  Allocator allocator{Device::kCpu};
  std::vector<OwnedTensor> owned;
  std::vector<Piece> pieces;
};

std::unique_ptr<Weights> read_all(FileSystem& files, const checkpoint::ModelSource& source) {
  auto weights = std::make_unique<Weights>();
  for (LogicalTensor logical : nn::logical_tensors(source.spec)) {
    weights->owned.push_back(
        make_tensor(weights->allocator, logical.dtype, logical.global_shape, Tag::kWeights));
    weights->pieces.push_back(
        {logical, Box::whole(logical.global_shape), weights->owned.back().tensor});
  }
  checkpoint::read_weights(files, source, weights->pieces);
  return weights;
}

// The path with every link on the way followed, as far as it exists.
std::filesystem::path real_path(const std::string& path) {
  std::error_code error;
  auto real = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  ASHLAR_REQUIRE(!error, kStorage, "{}: {}", path, error.message());
  return real.has_filename() ? real : real.parent_path();  // "a/" is a
}

void require_outside(const std::string& root, const std::string& model) {
  const auto inner = real_path(root), outer = real_path(model);
  const auto common = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first;
  ASHLAR_REQUIRE(common != outer.end(), kConfig,
                 "{} is the model directory {} or lies in it; choose a root outside", root, model);
}

// A step stays as it was committed: nothing is written into it.
void require_outside_steps(FileSystem& files, const std::string& out) {
  for (auto at = real_path(out).parent_path(); at.has_relative_path(); at = at.parent_path())
    ASHLAR_REQUIRE(!files.stat((at / checkpoint::kCommitName).string()), kConfig,
                   "{} lies in the checkpoint step {}; choose a directory outside", out,
                   at.string());
}

int import_model(const Flags& flags, Log& log) {
  const auto files = posix_files();
  require_outside(flags.second, flags.first);
  require_outside_steps(*files, flags.second);
  const checkpoint::ModelSource source = eval::find_model(*files, flags.first, log);
  ASHLAR_REQUIRE(source.hugging_face, kConfig,
                 "{}: expected a Hugging Face directory (with config.json)", flags.first);
  const auto weights = read_all(*files, source);
  checkpoint::Checkpointer checkpoints(*files, flags.second,
                                       {.keep = 1 << 20, .async = false, .run_id = {}}, log);
  ASHLAR_REQUIRE(!checkpoints.newest().has_value(), kConfig,
                 "{} holds steps already; choose a new directory to import into", flags.second);
  checkpoint::SaveRequest request;
  request.model = weights->pieces;
  checkpoint::describe_model(source.spec, request);
  if (auto tokenizer = checkpoint::read_tokenizer_file(*files, source))
    request.extra.push_back({checkpoint::kTokenizerFile, std::move(*tokenizer), false});
  request.sections["hf"] = one_line({{"source", flags.first}});
  checkpoints.save(request);
  for (const checkpoint::SaveStats& stats : checkpoints.take_stats())
    print_result(fmt::format("{}: {} tensors, {}", stats.directory, weights->pieces.size(),
                             format_bytes(stats.bytes)));
  return 0;
}

int export_model(const Flags& flags, Log& log) {
  const auto files = posix_files();
  require_outside_steps(*files, flags.second);
  const checkpoint::ModelSource source = eval::find_model(*files, flags.first, log);
  checkpoint::HfWriteOptions options;
  ASHLAR_REQUIRE(flags.layout == "native" || flags.layout == "legacy", kConfig,
                 "--layout is {}; expected native or legacy", flags.layout);
  ASHLAR_REQUIRE(flags.dtype == "bf16" || flags.dtype == "fp32", kConfig,
                 "--dtype is {}; expected bf16 or fp32", flags.dtype);
  ASHLAR_REQUIRE(flags.max_file_gb > 0, kConfig, "--max-file-gb is {}; expected a number above 0",
                 flags.max_file_gb);
  options.layout =
      flags.layout == "native" ? checkpoint::HfLayout::kNative : checkpoint::HfLayout::kLegacy;
  options.dtype = flags.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.max_file_bytes = int64_t(flags.max_file_gb * 1e9);
  options.log = &log;
  std::vector<std::string> unstated;
  if (auto bytes = checkpoint::read_tokenizer_file(*files, source)) {
    data::HfTokenizer written = data::to_hf_tokenizer(*eval::read_tokenizer(*files, source));
    unstated = std::move(written.unstated);
    options.files = {written.files.begin(), written.files.end()};
    options.files[checkpoint::kTokenizerFile] = std::move(*bytes);
  }
  const auto weights = read_all(*files, source);
  checkpoint::write_hf_model(*files, flags.second, source.spec, nn::logical_tensors,
                             weights->pieces, options);
  for (const std::string& setting : unstated)
    log.warn(
        "{}: tokenizer.json cannot follow {}; transformers encodes some texts to other ids "
        "than training did",
        flags.second, setting);
  for (const std::string& option : checkpoint::unstated_options(source.spec))
    log.warn("{}: config.json has no key for {}; who reads it computes with the default",
             flags.second, option);
  print_result(fmt::format("{}: {} layout, {}, from {}", flags.second, flags.layout, flags.dtype,
                           source.resolved));
  return 0;
}

}  // namespace

void add_ckpt(CLI::App& app, Action& action) {
  CLI::App* group =
      app.add_subcommand("ckpt", "list, inspect, verify, import and export checkpoints");
  group->require_subcommand(1);
  const auto flags = std::make_shared<Flags>();
  const auto verb = [&, flags](const char* name, const char* summary, const char* first,
                               const char* second, int (*run)(const Flags&, Log&)) {
    CLI::App* sub = group->add_subcommand(name, summary);
    sub->add_option(first, flags->first)->required();
    if (second) sub->add_option(second, flags->second)->required();
    sub->callback(
        [flags, run, &action] { action = [flags, run](Log& log) { return run(*flags, log); }; });
    return sub;
  };
  CLI::App* list_app =
      verb("list", "steps of a root, and which one a run continues from", "ROOT", nullptr, list);
  list_app->add_flag("--json", flags->json, "print JSON");
  list_app
      ->add_option("--level", flags->list_level,
                   "quick, files or deep; only deep tells good from complete")
      ->capture_default_str();
  CLI::App* show_app = verb("show", "manifest of a step", "STEP", nullptr, show);
  show_app->add_flag("--json", flags->json, "print the manifest as JSON");
  show_app->add_flag("--tensors", flags->tensors, "list every tensor");
  verb("verify", "check a step; exit code 1 if anything is wrong", "STEP", nullptr, verify)
      ->add_option("--level", flags->level, "quick, files or deep")
      ->capture_default_str();
  verb("import", "a Hugging Face directory as step 0 of a new root", "HF_DIR", "ROOT",
       import_model);
  CLI::App* export_app =
      verb("export", "a step as a Hugging Face directory", "STEP", "HF_DIR", export_model);
  export_app->add_option("--layout", flags->layout, "native or legacy")->capture_default_str();
  export_app->add_option("--dtype", flags->dtype, "bf16 or fp32")->capture_default_str();
  export_app->add_option("--max-file-gb", flags->max_file_gb, "larger models are sharded")
      ->capture_default_str();
}

}  // namespace ashlar::cli
