// How it works.  What is known about a step is in three places: in the step itself, which never
// changes, and in two directories of verdicts beside the steps.  Their files are named by step and
// attempt, so that a step number that is saved again starts without a verdict.
//
//   .bad/STEP-ATTEMPT.json        not used again; never checked again
//   .verified/STEP-ATTEMPT.json   passed kDeep once; the holder then checks kFiles at most
//
// find_newest walks the steps from the newest to the oldest.  judge() looks into .bad/ and, if
// there is no verdict, checks the step (problem_of).  A step that fails is recorded, if the caller
// may write, and the next older one is tried.  No step is moved here: Leadership::recover moves it,
// by quarantine().
//   remove_step renames before it removes, so that a step that is half gone no longer has the name
// of one; the next holder of the lease finds the rest in the fence, and collect_stale removes it.
// All changes of the holder go through its fence, so that a process whose lease was taken over, and
// that has not noticed yet, changes nothing.
#include "ashlar/checkpoint/root/recovery.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/checkpoint/format/commit.h"
#include "ashlar/checkpoint/root/reader_lease.h"
#include "ashlar/checkpoint/root/step_guard.h"
#include "ashlar/core/json.h"

namespace ashlar::checkpoint {
namespace {

constexpr const char* kUnknownAttempt = "unknown";

std::string verdict_path(const std::string& root, const char* directory, const StepRef& ref) {
  return join(join(root, directory), verdict_name(ref.step, ref.attempt));
}

void write_verdict(Fence& fence, const char* directory, const StepRef& ref, const char* verdict,
                   const std::string& reason) {
  nlohmann::ordered_json json;
  json["format"] = "ashlar-verdict";
  json["step"] = ref.step;
  json["attempt"] = ref.attempt;
  json["verdict"] = verdict;
  json["reason"] = reason;
  json["time"] = utc_now();
  make_own_directory(fence.files(), join(fence.root(), directory));
  fence.files().sync_directory(fence.root());
  const auto replace = nlohmann::ordered_json::error_handler_t::replace;
  fence.write(verdict_path(fence.root(), directory, ref), json.dump(1, ' ', false, replace) + "\n");
}

// The first problem that a check at that level finds; nullopt: the step is good at that level.
std::optional<std::string> problem_of(FileSystem& files, const StepRef& ref, VerifyLevel level,
                                      Log& log) {
  try {
    const StepReader reader(files, ref.directory);
    const VerifyReport report = verify_step(reader, level, log);
    if (report.ok()) return std::nullopt;
    return report.findings.front().message;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    return error.what();
  }
}

// The reason recorded in .bad/.  A verdict counts even if its file cannot be read.
std::optional<std::string> read_verdict(FileSystem& files, const std::string& root,
                                        const StepRef& ref) {
  if (!is_bad(files, root, ref)) return std::nullopt;
  const std::string path = verdict_path(root, kBadDirectory, ref);
  try {
    return "it failed before: " +
           parse_json(read_text(files, path, kMaxManifestBytes, LinkPolicy::kRefuse), path,
                      ErrorKind::kCorrupt)
               .value("reason", "no reason recorded");
  } catch (const std::exception&) {
    return "it failed before: " + path;
  }
}

// The reason why a step is not used: the recorded one, or else the one that a check finds.
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
  info.pinned = is_pinned(files, root, ref);
  info.readers = int64_t(readers_of(files, root, ref).size());
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
  const auto info = files.stat(path, LinkPolicy::kFollow);
  return info && info->type == FileInfo::Type::kDirectory;
}

// Names in a directory; none if there is no such directory.
std::vector<std::string> names_in(FileSystem& files, const std::string& directory) {
  return is_directory(files, directory) ? files.list(directory) : std::vector<std::string>{};
}

// Directories named like a step, and other entries that are named like one.
struct Named {
  std::vector<StepRef> steps;  // oldest first, as names sort
  std::vector<std::string> others;
};
// nullopt: a step was removed between two looks at it.
std::optional<Named> look_for_steps(FileSystem& files, const std::string& root) {
  Named named;
  for (const std::string& name : names_in(files, root)) {
    const auto step = parse_step_name(name);
    if (!step) continue;
    const std::string path = join(root, name);
    if (is_directory(files, path))
      named.steps.push_back(refer(files, root, *step));
    else if (files.stat(path))
      named.others.push_back(path);
    else
      return std::nullopt;
  }
  return named;
}

// If a run saves and removes meanwhile, a list may have a step that is gone and lack the one that
// replaced it: then it is made again.
Named named_like_steps(FileSystem& files, const std::string& root) {
  std::optional<Named> named;
  while (!named) named = look_for_steps(files, root);
  return *std::move(named);
}

void collect_verdicts(Fence& fence) {
  FileSystem& files = fence.files();
  const std::string& root = fence.root();
  std::set<std::string> wanted;
  for (const StepRef& ref : committed_steps(files, root))
    wanted.insert(verdict_name(ref.step, ref.attempt));
  const std::string directory = join(root, kVerifiedDirectory);
  for (const std::string& name : names_in(files, directory))
    if (!wanted.contains(name)) fence.remove(join(directory, name));
}

// The step was removed while it was looked at.
struct StepWent {};

// holder: null for a reader.  before: called before a step is looked at; it may throw.
Recovery find_newest(FileSystem& files, const std::string& root, VerifyLevel level, Fence* holder,
                     Log& log, const std::function<void(const StepRef&)>& before) {
  Recovery recovery;
  const auto [steps, others] = named_like_steps(files, root);
  for (const std::string& path : others)
    log.warn("{} is named like a step but is no directory; it is passed over", path);
  for (auto ref = steps.rbegin(); ref != steps.rend(); ++ref) {
    before(*ref);
    // The holder loads the step next, which reads every byte; a reader may not.
    const bool trusted = holder && is_verified(files, root, *ref);
    const auto [problem, known] =
        judge(files, root, *ref, trusted ? std::min(level, VerifyLevel::kFiles) : level, log);
    if (!problem) {
      recovery.newest = *ref;
      return recovery;
    }
    if (!holder && !is_there(files, root, *ref)) throw StepWent{};
    log.warn("{} is not usable: {}", ref->directory, *problem);
    if (!known && holder) record_bad(*holder, *ref, *problem);
    recovery.rejected.push_back({*ref, *problem});
  }
  ASHLAR_REQUIRE(steps.empty(), kCorrupt,
                 "{} holds {} checkpoint step{} but none is good; newest: {}; restore one from a "
                 "backup, or choose a new directory to start again from step 0",
                 root, steps.size(), steps.size() == 1 ? "" : "s",
                 recovery.rejected.front().reason);
  return recovery;
}

}  // namespace

StepRef refer(FileSystem& files, const std::string& root, int64_t step) {
  StepRef ref{step, join(root, step_name(step)), kUnknownAttempt, ""};
  const std::string path = join(ref.directory, kCommitName);
  StaleRetry retry(files, ref.directory);
  const auto info = stat_with_retry(files, path, retry);
  if (!info || info->type != FileInfo::Type::kFile || info->size_bytes > kMaxCommitBytes)
    return ref;
  try {
    const Commit commit =
        parse_commit(read_text(files, path, kMaxCommitBytes, LinkPolicy::kRefuse), path);
    ref.attempt = to_text(commit.attempt);
    ref.run_id = commit.run_id;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt && files.stat(path)) throw;
  }
  return ref;
}

bool is_bad(FileSystem& files, const std::string& root, const StepRef& ref) {
  return files.stat(verdict_path(root, kBadDirectory, ref)).has_value();
}

bool is_verified(FileSystem& files, const std::string& root, const StepRef& ref) {
  return files.stat(verdict_path(root, kVerifiedDirectory, ref)).has_value();
}

void record_bad(Fence& fence, const StepRef& ref, const std::string& reason) {
  write_verdict(fence, kBadDirectory, ref, "bad", reason);
}

void record_verified(Fence& fence, const StepRef& ref) {
  write_verdict(fence, kVerifiedDirectory, ref, "verified", "deep check passed");
}

std::vector<StepRef> committed_steps(FileSystem& files, const std::string& root) {
  return named_like_steps(files, root).steps;
}

Recovery find_newest(FileSystem& files, const std::string& root, VerifyLevel level, Log& log) {
  for (;;) {
    try {
      return find_newest(files, root, level, nullptr, log, [](const StepRef&) {});
    } catch (const StepWent&) {  // there are others now
    }
  }
}

Recovery find_newest(Fence& fence, VerifyLevel level, Log& log) {
  return find_newest(fence.files(), fence.root(), level, &fence, log, [](const StepRef&) {});
}

void fail_removed(const std::string& directory) {
  ASHLAR_FAIL(kConfig,
              "{}: there is no such step: it was removed, as runs remove old ones, or never there; "
              "see ashlar ckpt list {} and choose a step that stays, or pin it",
              directory, parent_of(directory));
}

namespace {

bool is_removed(FileSystem& files, const std::string& directory) {
  return step_of_path(directory) && !files.stat(directory, LinkPolicy::kFollow);
}

// If reading a step that a user named fails because the step is gone, that is the error.
template <typename F>
auto unless_removed(FileSystem& files, const std::string& directory, F&& body) {
  try {
    return body();
  } catch (const Error&) {
    if (is_removed(files, directory)) fail_removed(directory);
    throw;
  }
}

bool holds_steps(FileSystem& files, const std::string& directory) {
  const std::vector<std::string> names = files.list(directory);
  return std::ranges::any_of(
      names, [](const std::string& name) { return parse_step_name(name).has_value(); });
}

StepReader open_step(FileSystem& files, const std::string& directory) {
  return unless_removed(files, directory, [&] {
    std::shared_ptr<const ReaderLease> lease = ReaderLease::of_step(files, directory);
    StepReader reader(files, directory);
    reader.hold(std::move(lease));
    reader.set_reads(Reads::kDirectIfWhole);
    return reader;
  });
}

}  // namespace

bool is_checkpoint(FileSystem& files, const std::string& path) {
  if (files.stat(join(path, kCommitName)) || is_removed(files, path)) return true;
  return !committed_steps(files, path).empty();
}

VerifyReport verify_named(FileSystem& files, const std::string& directory, VerifyLevel level,
                          Log& log) {
  return unless_removed(files, directory, [&] {
    ASHLAR_REQUIRE(is_directory(files, directory), kConfig, "{}: there is no such step", directory);
    ASHLAR_REQUIRE(!holds_steps(files, directory), kConfig,
                   "{0}: holds steps and is none; verify one of them, or all with ashlar ckpt list "
                   "{0} --level deep",
                   directory);
    const auto lease = ReaderLease::of_step(files, directory);
    VerifyReport report = verify_step(files, directory, level, log);
    if (!report.ok() && is_removed(files, directory)) fail_removed(directory);
    return report;
  });
}

StepReader open_checkpoint(FileSystem& files, const std::string& path, Log& log) {
  if (files.stat(join(path, kCommitName))) return open_step(files, path);
  if (is_removed(files, path)) fail_removed(path);
  std::shared_ptr<const ReaderLease> lease;
  const auto hold = [&](const StepRef& ref) {
    lease = ReaderLease::take(files, path, ref);
    if (!lease) throw StepWent{};
  };
  // In each turn but the last a step was removed, which another had replaced.
  for (;;) {
    try {
      const Recovery recovery = find_newest(files, path, VerifyLevel::kDeep, nullptr, log, hold);
      ASHLAR_REQUIRE(recovery.newest, kCorrupt,
                     "{} is neither a checkpoint step (no COMMIT) nor a directory of steps", path);
      StepReader reader(files, recovery.newest->directory);
      reader.hold(std::move(lease));
      return reader;
    } catch (const StepWent&) {
    }
  }
}

std::vector<StepInfo> list_steps(FileSystem& files, const std::string& root, VerifyLevel level,
                                 Log& log) {
  std::vector<StepInfo> infos;
  const auto [steps, others] = named_like_steps(files, root);
  for (const StepRef& ref : steps) {
    std::optional<StepInfo> info;
    try {
      info = describe(files, root, ref, level, log);
    } catch (const Error&) {
      if (is_there(files, root, ref)) throw;
    }
    if (info && (info->problem.empty() || is_there(files, root, ref)))
      infos.push_back(*std::move(info));
  }
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

void quarantine(Fence& fence, const StepRef& ref) {
  std::string name = step_name(ref.step) + "-" + ref.attempt;
  // "unknown" may be there already, from another attempt.
  if (fence.files().stat(join(join(fence.root(), kBadDirectory), name)))
    name += "-" + to_text(random_id());
  fence.set_aside(ref.directory, Fence::Aside::kBad, name);
}

void remove_step(Fence& fence, const std::string& directory) {
  FileSystem& files = fence.files();
  const std::string gone = fence.take_away(directory);
  files.sync_directory(fence.root());
  const std::string commit = join(gone, kCommitName);
  if (files.stat(commit)) files.remove(commit);
  files.remove_all(gone);
}

void collect_stale(Fence& fence, Log& log) {
  FileSystem& files = fence.files();
  const std::string& root = fence.root();
  for (const std::string& name : files.list(root)) {
    const bool tmp = name.starts_with(kTmpPrefix);
    if (!tmp && !name.starts_with(kTrashPrefix)) continue;
    if (tmp) log.info("removing {}: an interrupted save", join(root, name));
    fence.remove(join(root, name));
  }
  // Left by older programs: this one writes small files through the fence.
  for (const std::string& directory : {root, join(root, kBadDirectory),
                                       join(root, kVerifiedDirectory), join(root, kLeaseDirectory)})
    if (is_directory(files, directory)) remove_temporaries(files, directory);
  collect_verdicts(fence);
}

}  // namespace ashlar::checkpoint
