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

// Attempt and run as far as COMMIT tells.
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

// nullopt: good.
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

StepInfo describe(FileSystem& files, const std::string& root, const StepRef& ref) {
  StepInfo info;
  info.step = ref.step;
  info.directory = ref.directory;
  info.verdict = is_verified(files, root, ref) ? "verified" : "candidate";
  if (const auto verdict = read_verdict(files, root, ref)) info.problem = *verdict;
  try {
    const StepReader reader(files, ref.directory);
    info.created = reader.manifest().created;
    info.bytes = reader.commit().bytes;
    info.files = reader.commit().files;
  } catch (const Error& error) {
    info.problem = error.what();
  }
  if (!info.problem.empty()) info.verdict = "bad";
  return info;
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
  std::vector<StepRef> steps;
  if (!files.stat(root)) return steps;
  for (const std::string& name : files.list(root))
    if (const auto step = parse_step_name(name)) steps.push_back(refer(files, root, *step));
  std::sort(steps.begin(), steps.end(),
            [](const StepRef& a, const StepRef& b) { return a.step < b.step; });
  return steps;
}

Recovery find_newest(FileSystem& files, const std::string& root, VerifyLevel level,
                     bool record_verdicts, Log& log) {
  Recovery recovery;
  const std::vector<StepRef> steps = committed_steps(files, root);
  for (auto ref = steps.rbegin(); ref != steps.rend(); ++ref) {
    std::optional<std::string> problem =
        ref->attempt == kUnknownAttempt ? std::nullopt : read_verdict(files, root, *ref);
    const bool known = problem.has_value();
    const bool trusted = !known && is_verified(files, root, *ref);
    if (!known) problem = problem_of(files, *ref, trusted ? VerifyLevel::kQuick : level, log);
    if (!problem) {
      recovery.newest = *ref;
      return recovery;
    }
    log.warn("{} is not usable: {}", ref->directory, *problem);
    if (!known && record_verdicts) record_bad(files, root, *ref, *problem);
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
  const Recovery recovery = find_newest(files, path, VerifyLevel::kQuick, false, log);
  ASHLAR_REQUIRE(recovery.newest, kCorrupt,
                 "{} is neither a checkpoint step (no COMMIT) nor a directory of steps", path);
  return StepReader(files, recovery.newest->directory);
}

std::vector<StepInfo> list_steps(FileSystem& files, const std::string& root) {
  std::vector<StepInfo> infos;
  for (const StepRef& ref : committed_steps(files, root))
    infos.push_back(describe(files, root, ref));
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
  if (!files.stat(root)) return infos;
  for (const std::string& name : files.list(root)) {
    const std::string_view text = name;
    if (text.starts_with(kTmpPrefix)) add(join(root, name), StepState::kTmp, text.substr(10, 12));
    if (text.starts_with(kTrashPrefix)) add(join(root, name), StepState::kTrash, "");
  }
  const std::string bad = join(root, kBadDirectory);
  if (!files.stat(bad)) return infos;
  for (const std::string& name : files.list(bad)) {
    const auto info = files.stat(join(bad, name));
    if (info && info->type == FileInfo::Type::kDirectory && name.size() > 17)
      add(join(bad, name), StepState::kBad, std::string_view(name).substr(5, 12));
  }
  return infos;
}

void quarantine(FileSystem& files, const std::string& root, const StepRef& ref) {
  const std::string bad = join(root, kBadDirectory);
  files.make_directories(bad);
  std::string target = join(bad, step_name(ref.step) + "-" + ref.attempt);
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
}

}  // namespace ashlar::checkpoint
