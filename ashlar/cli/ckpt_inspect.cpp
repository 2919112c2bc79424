// ashlar ckpt list ROOT | show STEP | verify STEP
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/cli/ckpt.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/models/path.h"

namespace ashlar::cli {
namespace {

using checkpoint::StepState;
using checkpoint::VerifyLevel;

struct InspectFlags {
  std::string path, level = "deep";
  bool json = false, tensors = false, timeline = false;
};

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

std::string readers_text(int64_t readers) {
  if (readers == 0) return "";
  return readers == 1 ? "  1 reader" : fmt::format("  {} readers", readers);
}

int list(const InspectFlags& flags, Log& log) {
  const auto files = posix_files();
  const VerifyLevel level = parse_level(flags.level);
  const char* mark = level == VerifyLevel::kDeep ? "  <- continues here" : "  <- is tried first";
  const auto info = files->stat(flags.path, LinkPolicy::kFollow);
  ASHLAR_REQUIRE(info, kConfig, "{}: there is no such directory", flags.path);
  ASHLAR_REQUIRE(info->type == FileInfo::Type::kDirectory, kConfig,
                 "{}: it is no directory; expected a checkpoint root, or a run's directory",
                 flags.path);
  const std::string root = models::root_of_run(*files, flags.path);
  Ordered rows = Ordered::array();
  for (const checkpoint::StepInfo& info : checkpoint::list_steps(*files, root, level, log)) {
    rows.push_back({{"name", last_part(info.directory)},
                    {"state", state_name(info, level)},
                    {"level", flags.level},
                    {"step", info.step},
                    {"verdict", info.verdict},
                    {"bytes", info.bytes},
                    {"files", info.files},
                    {"created", info.created},
                    {"pinned", info.pinned},
                    {"readers", info.readers},
                    {"recovery_choice", info.recovery_choice},
                    {"problem", info.problem}});
    if (flags.json) continue;
    print_result(fmt::format(
        "{:<20} {:<11} {:>11} {:>3} files  {}{}{}{}{}{}", last_part(info.directory),
        state_name(info, level), format_bytes(info.bytes), info.files, info.created,
        info.pinned ? "  pinned" : "", readers_text(info.readers), info.recovery_choice ? mark : "",
        info.problem.empty() ? "" : "  ", info.problem));
  }
  if (flags.json) print_json(one_line(rows));
  if (rows.empty()) log.info("{} holds no step of a checkpoint", root);
  return 0;
}

int show(const InspectFlags& flags, Log& log) {
  const auto files = posix_files();
  models::require_saved(*files, flags.path);
  const checkpoint::StepReader reader =
      checkpoint::open_checkpoint(*files, models::root_of_run(*files, flags.path), log);
  const checkpoint::Manifest& manifest = reader.manifest();
  if (flags.timeline) {
    print_timeline(reader, flags.json);
    return 0;
  }
  if (flags.json) {
    print_json(checkpoint::build_manifest(manifest));
    return 0;
  }
  print_result(reader.directory());
  print_result(fmt::format("  step      {}", manifest.step));
  print_result(fmt::format("  run       {}", manifest.run_id));
  print_result(fmt::format("  created   {}", manifest.created));
  print_result(fmt::format("  written by {}", manifest.writer_version));
  for (const auto& [name, total] : manifest.components)
    print_result(
        fmt::format("  {:<9} {:>12} in {} files", name, format_bytes(total.bytes), total.files));
  for (const auto& [name, text] : manifest.sections)
    print_result(fmt::format("  {:<9} {}", name, text));
  print_result(fmt::format("  tensors   {}", manifest.tensors_total));
  if (!flags.tensors) return 0;
  for (const checkpoint::IndexTensor& tensor : reader.index().tensors)
    print_result(fmt::format("    {:<72} {:<5} {} in {} boxes", tensor.logical.name,
                             name_of(tensor.logical.dtype), tensor.logical.global_shape.to_string(),
                             tensor.boxes.size()));
  return 0;
}

int verify(const InspectFlags& flags, Log& log) {
  const auto files = posix_files();
  const VerifyLevel level = parse_level(flags.level);
  models::require_saved(*files, flags.path);
  const checkpoint::VerifyReport report =
      checkpoint::verify_named(*files, models::root_of_run(*files, flags.path), level, log);
  for (const checkpoint::Finding& finding : report.findings)
    print_result(fmt::format("{}{}: {}", finding.file,
                             finding.chunk < 0 ? "" : fmt::format(" chunk {}", finding.chunk),
                             finding.message));
  print_result(fmt::format("{}: {} ({} level: {} files, {} chunks, {})", flags.path,
                           report.ok() ? "good"
                                       : fmt::format("{} finding{}", report.findings.size(),
                                                     report.findings.size() == 1 ? "" : "s"),
                           flags.level, report.files, report.chunks, format_bytes(report.bytes)));
  return report.ok() ? 0 : 1;
}

}  // namespace

void add_ckpt_inspection(CLI::App& group, CommandAction& action) {
  const auto list_flags = std::make_shared<InspectFlags>(),
             show_flags = std::make_shared<InspectFlags>(),
             verify_flags = std::make_shared<InspectFlags>();
  list_flags->level = "quick";
  CLI::App* list_app =
      add_verb(group, action, "list", "steps of a root, and which one a run continues from",
               list_flags, list);
  list_app->add_option("ROOT", list_flags->path, "checkpoint root, or a run's directory")
      ->required();
  list_app->add_flag("--json", list_flags->json, "print JSON");
  list_app
      ->add_option("--level", list_flags->level,
                   "quick, files or deep; only deep tells good from complete")
      ->capture_default_str();
  CLI::App* show_app = add_verb(group, action, "show", "manifest of a step", show_flags, show);
  show_app->add_option("STEP", show_flags->path, "step, checkpoint root or run")->required();
  show_app->add_flag("--json", show_flags->json, "print the manifest, or the times, as JSON");
  CLI::Option* tensors = show_app->add_flag("--tensors", show_flags->tensors, "list every tensor");
  show_app
      ->add_flag("--timeline", show_flags->timeline,
                 "show where the time of its save went, by rank and phase")
      ->excludes(tensors);
  CLI::App* verify_app =
      add_verb(group, action, "verify", "check a step; exit code 1 if anything is wrong",
               verify_flags, verify);
  verify_app->add_option("STEP", verify_flags->path)->required();
  verify_app->add_option("--level", verify_flags->level, "quick, files or deep")
      ->capture_default_str();
}

}  // namespace ashlar::cli
