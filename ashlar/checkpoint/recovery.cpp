// How it works.  What is known of a step lies in three places: in the step itself, which never
// changes, and in two directories of verdicts beside the steps, whose files are named by step and
// attempt, so that a step number that is saved again starts without a verdict.
//
//   .bad/STEP-ATTEMPT.json        not used again; never checked again
//   .verified/STEP-ATTEMPT.json   passed kDeep once; the holder then checks kFiles at most
//
// find_newest walks the steps from the newest to the oldest.  judge() asks .bad/ first and else
// checks the step (problem_of).  A step that fails is recorded, if the caller may write, and the
// next older one is tried.  No step is moved here: Checkpointer::recover does, by quarantine().
//   remove_step renames before it removes, so that a step that is half gone has no longer the name
// of one; collect_stale removes what is left of it at the next start.
#include "ashlar/checkpoint/recovery.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/checkpoint/commit.h"
#include "ashlar/core/json.h"

namespace ashlar::checkpoint {
namespace {

constexpr const char* kUnknownAttempt = "unknown";

std::string verdict_path(const std::string& root, const char* directory, const StepRef& ref) {
  return join(join(root, directory), verdict_name(ref.step, ref.attempt));
}

void write_verdict(FileSystem& files, const std::string& root, const char* directory,
                   const StepRef& ref, const char* verdict, const std::string& reason) {
  nlohmann::ordered_json json;
  json["format"] = "ashlar-verdict";
  json["step"] = ref.step;
  json["attempt"] = ref.attempt;
  json["verdict"] = verdict;
  json["reason"] = reason;
  json["time"] = utc_now();
  files.make_directories(join(root, directory));
  files.sync_directory(root);
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  write_text(files, verdict_path(root, directory, ref), json.dump(1, ' ', false, replace) + "\n");
}

// A step with its attempt and run, as far as COMMIT tells them.
StepRef refer(FileSystem& files, const std::string& root, int64_t step) {
  StepRef ref{step, join(root, step_name(step)), kUnknownAttempt, ""};
  const std::string path = join(ref.directory, kCommitName);
  const auto info = files.stat(path);
  if (!info || info->type != FileInfo::Type::kFile || info->size_bytes > kMaxCommitBytes)
    return ref;
  try {
    const Commit commit =
        parse_commit(read_text(files, path, kMaxCommitBytes, Links::kRefuse), path);
    ref.attempt = to_text(commit.attempt);
    ref.run_id = commit.run_id;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
  }
  return ref;
}

// What a check at that level finds wrong first; nullopt: the step is good at that level.
std::optional<std::string> problem_of(FileSystem& files, const StepRef& ref, VerifyLevel level,
                                      Log& log) {
  try {
    const StepReader reader(files, ref.directory);
    ASHLAR_REQUIRE(reader.step() == ref.step, kCorrupt, "{}: COMMIT is of step {}", ref.directory,
                   reader.step());
    const VerifyReport report = verify_step(reader, level, log);
    if (report.ok()) return std::nullopt;
    return report.findings.front().message;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    return error.what();
  }
}

// The reason recorded in .bad/.  A verdict counts even where its file cannot be read.
std::optional<std::string> read_verdict(FileSystem& files, const std::string& root,
                                        const StepRef& ref) {
  if (!is_bad(files, root, ref)) return std::nullopt;
  const std::string path = verdict_path(root, kBadDirectory, ref);
  try {
    return "it failed before: " +
           parse_json(read_text(files, path, kMaxManifestBytes, Links::kRefuse), path,
                      ErrorKind::kCorrupt)
               .value("reason", "no reason recorded");
  } catch (const std::exception&) {
    return "it failed before: " + path;
  }
}

// The reason why a step is not used: the recorded one, or else the one that a check of it finds.
// nullopt: the step is good at that level.
struct Judgement {
  std::optional<std::string> problem;
  bool known = false;  // from .bad/
};
Judgement judge(FileSystem& files, const std::string& root, const StepRef& ref, VerifyLevel level,
                Log& log) {
  // Without COMMIT all attempts at a step share the name "unknown": each is checked anew.
  if (ref.attempt != kUnknownAttempt)
    if (auto problem = read_verdict(files, root, ref)) return {std::move(problem), true};
  return {problem_of(files, ref, level, log), false};
}

StepInfo describe(FileSystem& files, const std::string& root, const StepRef& ref, VerifyLevel level,
                  Log& log) {
  StepInfo info;
  info.step = ref.step;
  info.directory = ref.directory;
  info.verdict = is_verified(files, root, ref) ? "verified" : "candidate";
  try {
    const StepReader reader(files, ref.directory);
    info.created = reader.manifest().created;
    info.bytes = reader.commit().bytes;
    info.files = reader.commit().files;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;  // judge says the same
  }
  if (const auto problem = judge(files, root, ref, level, log).problem) {
    info.problem = *problem;
    info.verdict = "bad";
  }
  return info;
}

bool is_directory(FileSystem& files, const std::string& path) {
  const auto info = files.stat(path, Links::kFollow);
  return info && info->type == FileInfo::Type::kDirectory;
}

// Names in a directory; none if there is no such directory.
std::vector<std::string> names_in(FileSystem& files, const std::string& directory) {
  return is_directory(files, directory) ? files.list(directory) : std::vector<std::string>{};
}

// Directories named like a step, and whatever else is.
struct Named {
  std::vector<StepRef> steps;  // oldest first, as names sort
  std::vector<std::string> others;
};
Named named_like_steps(FileSystem& files, const std::string& root) {
  Named named;
  for (const std::string& name : names_in(files, root)) {
    const auto step = parse_step_name(name);
    if (!step) continue;
    const std::string path = join(root, name);
    if (is_directory(files, path))
      named.steps.push_back(refer(files, root, *step));
    else
      named.others.push_back(path);
  }
  return named;
}

void collect_verdicts(FileSystem& files, const std::string& root) {
  std::set<std::string> wanted;
  for (const StepRef& ref : committed_steps(files, root))
    wanted.insert(verdict_name(ref.step, ref.attempt));
  const std::string directory = join(root, kVerifiedDirectory);
  for (const std::string& name : names_in(files, directory))
    if (!wanted.contains(name)) files.remove_all(join(directory, name));
}

}  // namespace

bool is_bad(FileSystem& files, const std::string& root, const StepRef& ref) {
  return files.stat(verdict_path(root, kBadDirectory, ref)).has_value();
}

bool is_verified(FileSystem& files, const std::string& root, const StepRef& ref) {
  return files.stat(verdict_path(root, kVerifiedDirectory, ref)).has_value();
}

void record_bad(FileSystem& files, const std::string& root, const StepRef& ref,
                const std::string& reason) {
  write_verdict(files, root, kBadDirectory, ref, "bad", reason);
}

void record_verified(FileSystem& files, const std::string& root, const StepRef& ref) {
  write_verdict(files, root, kVerifiedDirectory, ref, "verified", "deep check passed");
}

std::vector<StepRef> committed_steps(FileSystem& files, const std::string& root) {
  return named_like_steps(files, root).steps;
}

Recovery find_newest(FileSystem& files, const std::string& root, VerifyLevel level, Who who,
                     Log& log) {
  Recovery recovery;
  const auto [steps, others] = named_like_steps(files, root);
  for (const std::string& path : others)
    log.warn("{} is named like a step but is no directory; it is passed over", path);
  for (auto ref = steps.rbegin(); ref != steps.rend(); ++ref) {
    // The holder loads the step next, which reads every byte; a reader may not.
    const bool trusted = who == Who::kHolder && is_verified(files, root, *ref);
    const auto [problem, known] =
        judge(files, root, *ref, trusted ? std::min(level, VerifyLevel::kFiles) : level, log);
    if (!problem) {
      recovery.newest = *ref;
      return recovery;
    }
    log.warn("{} is not usable: {}", ref->directory, *problem);
    if (!known && who == Who::kHolder) record_bad(files, root, *ref, *problem);
    recovery.rejected.push_back({*ref, *problem});
  }
  ASHLAR_REQUIRE(steps.empty(), kCorrupt,
                 "{} holds {} checkpoint step{} but none is good; newest: {}; restore one from a "
                 "backup, or choose a new directory to start again from step 0",
                 root, steps.size(), steps.size() == 1 ? "" : "s",
                 recovery.rejected.front().reason);
  return recovery;
}

bool is_checkpoint(FileSystem& files, const std::string& path) {
  if (files.stat(join(path, kCommitName))) return true;
  return !committed_steps(files, path).empty();
}

StepReader open_checkpoint(FileSystem& files, const std::string& path, Log& log) {
  if (files.stat(join(path, kCommitName))) return StepReader(files, path);
  const Recovery recovery = find_newest(files, path, VerifyLevel::kDeep, Who::kReader, log);
  ASHLAR_REQUIRE(recovery.newest, kCorrupt,
                 "{} is neither a checkpoint step (no COMMIT) nor a directory of steps", path);
  return StepReader(files, recovery.newest->directory);
}

std::vector<StepInfo> list_steps(FileSystem& files, const std::string& root, VerifyLevel level,
                                 Log& log) {
  std::vector<StepInfo> infos;
  const auto [steps, others] = named_like_steps(files, root);
  for (const StepRef& ref : steps) infos.push_back(describe(files, root, ref, level, log));
  for (auto info = infos.rbegin(); info != infos.rend(); ++info)
    if (info->problem.empty()) {
      info->recovery_choice = true;
      break;
    }
  const auto add = [&](const std::string& directory, StepState state, std::string_view digits) {
    StepInfo info;
    info.state = state;
    info.step = parse_step_name("step-" + std::string(digits)).value_or(-1);
    info.directory = directory;
    info.verdict = state == StepState::kBad ? "bad" : "";
    infos.push_back(info);
  };
  // The number of a step is the 12 digits at the end of "step-...", behind ".tmp-step-" (10
  // characters) and between "step-" and "-ATTEMPT" under .bad/.
  for (const std::string& path : others)
    add(path, StepState::kForeign, std::string_view(path).substr(path.size() - 12));
  for (const std::string& name : names_in(files, root)) {
    const std::string_view text = name;
    if (text.starts_with(kTmpPrefix)) add(join(root, name), StepState::kTmp, text.substr(10, 12));
    if (text.starts_with(kTrashPrefix)) add(join(root, name), StepState::kTrash, "");
  }
  const std::string bad = join(root, kBadDirectory);
  for (const std::string& name : names_in(files, bad)) {
    if (is_directory(files, join(bad, name)) && name.size() > 17)
      add(join(bad, name), StepState::kBad, std::string_view(name).substr(5, 12));
  }
  return infos;
}

void quarantine(FileSystem& files, const std::string& root, const StepRef& ref) {
  const std::string bad = join(root, kBadDirectory);
  files.make_directories(bad);
  std::string target = join(bad, step_name(ref.step) + "-" + ref.attempt);
  // "unknown" may be there already, from another attempt.
  if (files.stat(target)) target += "-" + to_text(random_id());
  files.rename_new(ref.directory, target);
  files.sync_directory(bad);
  files.sync_directory(root);
}

void remove_step(FileSystem& files, const std::string& root, const std::string& directory) {
  const std::string trash = join(root, kTrashPrefix + to_text(random_id()));
  files.rename_new(directory, trash);
  files.sync_directory(root);
  const std::string commit = join(trash, kCommitName);
  if (files.stat(commit)) files.remove(commit);
  files.remove_all(trash);
}

void collect_stale(FileSystem& files, const std::string& root, Log& log) {
  for (const std::string& name : files.list(root)) {
    const bool tmp = name.starts_with(kTmpPrefix);
    if (!tmp && !name.starts_with(kTrashPrefix)) continue;
    if (tmp) log.info("removing {}: an interrupted save", join(root, name));
    files.remove_all(join(root, name));
  }
  for (const std::string& directory : {root, join(root, kBadDirectory),
                                       join(root, kVerifiedDirectory), join(root, kLeaseDirectory)})
    if (is_directory(files, directory)) remove_temporaries(files, directory);
  collect_verdicts(files, root);
}

}  // namespace ashlar::checkpoint
