// ashlar ckpt pin ROOT STEP | unpin ROOT STEP | prune ROOT --keep N [--keep-every K] [--dry-run]
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/checkpoint/root/step_guard.h"
#include "ashlar/checkpoint/save/retention.h"
#include "ashlar/cli/ckpt.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/models/path.h"

namespace ashlar::cli {
namespace {

using checkpoint::StepRef;

struct KeepFlags {
  std::string root, step;
  int64_t keep = 0, keep_every = 0;
  bool json = false, dry_run = false;
};

// By its number, its name or its path.
std::optional<int64_t> parse_step(const std::string& text) {
  int64_t number = -1;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && at == end) return number;
  return checkpoint::parse_step_name(last_part(text));
}

// The root that is meant: of a run's directory, its checkpoints.
std::string find_root(FileSystem& files, const std::string& path) {
  ASHLAR_REQUIRE(files.stat(path).has_value(), kConfig, "{}: there is no such directory", path);
  return models::root_of_run(files, path);
}

StepRef find_step(FileSystem& files, const std::string& root, const std::string& text) {
  const auto step = parse_step(text);
  for (const StepRef& ref : checkpoint::committed_steps(files, root))
    if (ref.step == step) return ref;
  ASHLAR_FAIL(kConfig, "{} holds no step {}; see ashlar ckpt list {}", root, text, root);
}

int pin(const KeepFlags& flags, Log&) {
  const auto files = posix_files();
  const std::string root = find_root(*files, flags.root);
  const StepRef ref = find_step(*files, root, flags.step);
  checkpoint::pin(*files, root, ref);
  print_result(fmt::format("{} is pinned: no run removes it", ref.directory));
  return 0;
}

int unpin(const KeepFlags& flags, Log&) {
  const auto files = posix_files();
  const std::string root = find_root(*files, flags.root);
  const StepRef ref = find_step(*files, root, flags.step);
  checkpoint::unpin(*files, root, ref);
  print_result(fmt::format("{} is no longer pinned", ref.directory));
  return 0;
}

std::map<int64_t, int64_t> bytes_by_step(FileSystem& files, const std::string& root, Log& log) {
  std::map<int64_t, int64_t> bytes;
  for (const checkpoint::StepInfo& info :
       checkpoint::list_steps(files, root, checkpoint::VerifyLevel::kQuick, log))
    if (info.state == checkpoint::StepState::kCommitted) bytes[info.step] = info.bytes;
  return bytes;
}

int prune(const KeepFlags& flags, Log& log) {
  const auto files = posix_files();
  const std::string root = find_root(*files, flags.root);
  ASHLAR_REQUIRE(flags.keep >= 1 && flags.keep_every >= 0, kConfig,
                 "--keep is {} and --keep-every {}; expected at least 1 and at least 0", flags.keep,
                 flags.keep_every);
  std::map<int64_t, int64_t> bytes_of = bytes_by_step(*files, root, log);
  const std::vector<StepRef> removed =
      flags.dry_run ? checkpoint::steps_to_prune(*files, root, flags.keep, flags.keep_every)
                    : checkpoint::prune(*files, root, flags.keep, flags.keep_every, log);
  const char* verb = flags.dry_run ? "would be removed" : "removed";
  Ordered rows = Ordered::array();
  int64_t bytes = 0;
  for (const StepRef& ref : removed) {
    const std::string name = last_part(ref.directory);
    const int64_t step_bytes = bytes_of[ref.step];
    bytes += step_bytes;
    rows.push_back(
        {{"step", ref.step}, {"name", name}, {"bytes", step_bytes}, {"removed", !flags.dry_run}});
    if (!flags.json)
      print_result(fmt::format("{:<20} {:>11}  {}", name, format_bytes(step_bytes), verb));
  }
  if (flags.json)
    print_json(one_line(rows));
  else
    print_result(fmt::format("{}: {} of {} steps {}, {}", root, removed.size(), bytes_of.size(),
                             verb, format_bytes(bytes)));
  return 0;
}

}  // namespace

void add_ckpt_keeping(CLI::App& group, CommandAction& action) {
  const auto pin_flags = std::make_shared<KeepFlags>(), unpin_flags = std::make_shared<KeepFlags>(),
             prune_flags = std::make_shared<KeepFlags>();
  CLI::App* pin_app =
      add_verb(group, action, "pin", "keep a step: no run removes it", pin_flags, pin);
  pin_app->add_option("ROOT", pin_flags->root)->required();
  pin_app->add_option("STEP", pin_flags->step)->required();
  CLI::App* unpin_app =
      add_verb(group, action, "unpin", "let retention have a step again", unpin_flags, unpin);
  unpin_app->add_option("ROOT", unpin_flags->root)->required();
  unpin_app->add_option("STEP", unpin_flags->step)->required();
  CLI::App* prune_app =
      add_verb(group, action, "prune", "remove old steps of a root into which no run trains",
               prune_flags, prune);
  prune_app->add_option("ROOT", prune_flags->root)->required();
  prune_app->add_option("--keep", prune_flags->keep, "newest steps that stay, at least 1")
      ->required();
  prune_app->add_option("--keep-every", prune_flags->keep_every, "multiples of this stay too")
      ->capture_default_str();
  prune_app->add_flag("--dry-run", prune_flags->dry_run, "remove nothing");
  prune_app->add_flag("--json", prune_flags->json, "print JSON");
}

}  // namespace ashlar::cli
