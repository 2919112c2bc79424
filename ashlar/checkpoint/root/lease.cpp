// How it works.  The lease is the file trainer.json; the process that put it there holds the root.
// The file system only has to provide two atomic renames: to a name that must be free (rename_new),
// and over a name (replace).
//
//   acquire()     take(trainer.json), close the fences of earlier holders, make the own fence; if
//                   the own text is not there any more, start again
//   claim(path)   write the own text aside, rename it to `path`; false: the name is taken
//   take(path)    claim; if the name is taken, read it.  If its holder lives: kConfig.  If it is
//                   dead, perhaps after it was watched:
//                   take(successor), a name made of the hash of the dead text
//                   if the dead text is still at `path`: close the dead holder's fence, replace the
//                   text by the successor, done
//                   if another text is there: give the successor back, start again
//   check()       the own text must still be at `path`, and the own fence open; else the root has
//                   another holder
//   refresh()     check, then write a text with the next beat there, through the fence
//
// Only the holder of the successor replaces that one dead text.  Two starters that both saw it die
// compete for the successor, and the later one finds another text at `path`.  The recursion ends at
// a successor whose name is free or whose holder lives.
//   The dead holder's fence is closed before its text is replaced, since a holder that lives after
// all could put its text back, and again afterwards, since it may have made its fence in between.
// The owner of a fence made later finds another text at `path` and does not use the fence.
#include "ashlar/checkpoint/root/lease.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/signals.h"
#include "ashlar/core/threads.h"

namespace ashlar::checkpoint {
namespace {

constexpr const char* kLeaseFile = "trainer.json";
// The number of tries: between a failing call and the check of its cause another process may take a
// name or give it back; any other error comes every time.
constexpr int kAttempts = 4;
constexpr double kLeasePoll_s = 1;  // between two looks at a lease that is watched
constexpr int kPollsPerLine = 10;

// The text of a file; nullopt: there is no such file, or none any more.
std::optional<std::string> text_at(FileSystem& files, const std::string& path) {
  for (int attempt = 1;; ++attempt) {
    try {
      return read_text(files, path, kMaxLeaseBytes, LinkPolicy::kRefuse);
    } catch (const Error&) {
      if (!files.stat(path)) return std::nullopt;
      if (attempt == kAttempts) throw;
    }
  }
}

// Text that changes when the holder of a lease refreshes it.  Programs that count no beats write
// the same text again: then the time of the file changes; its value does not matter.
struct Sign {
  std::string text;
  int64_t time_s;
  bool operator==(const Sign&) const = default;
};
std::optional<Sign> sign_at(FileSystem& files, const std::string& path) {
  const std::optional<std::string> text = text_at(files, path);
  const auto info = files.stat(path);
  return text && info ? std::optional<Sign>({*text, info->modified_s}) : std::nullopt;
}

void sleep_until_signal(double seconds) {
  constexpr double kSlice_s = 0.1;
  for (double slept = 0; slept < seconds && !StopSignals::requested(); slept += kSlice_s)
    std::this_thread::sleep_for(std::chrono::duration<double>(kSlice_s));
}

[[noreturn]] void fail_in_use(const std::string& root, const LeaseHolder& holder,
                              const std::string& path) {
  ASHLAR_FAIL(kConfig,
              "{} is in use: process {} on {} trains into it; stop that process or choose another "
              "directory (if it is certainly gone, remove {})",
              root, holder.pid, holder.host, path);
}

}  // namespace

std::optional<LeaseHolder> lease_of(FileSystem& files, const std::string& root) {
  const std::string path = join(join(root, kLeaseDirectory), kLeaseFile);
  const std::optional<std::string> text = text_at(files, path);
  return text ? parse_lease(*text, path) : std::nullopt;
}

Lease::Lease(FileSystem& files, const std::string& root, Log& log, LeaseOptions options)
    : files_(files),
      root_(root),
      path_(join(join(root, kLeaseDirectory), kLeaseFile)),
      log_(log),
      options_(std::move(options)),
      me_(options_.holder ? *options_.holder : this_process()) {
  me_.refresh_s = options_.refresh_s;
  me_.token = to_text(random_id());
  if (!options_.sleep) options_.sleep = sleep_until_signal;
  if (!options_.now) options_.now = [start = Clock::now()] { return seconds_since(start); };
  make_own_directory(files_, parent_of(path_));
  acquire();
  try {
    collect();
    refresher_ = start_thread("that refreshes the lease", [this] { refresh_loop(); });
  } catch (const Error&) {
    give_back();
    throw;
  }
}

Lease::~Lease() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  refresher_.join();
  give_back();
}

// The process that took the root over has closed the fence, and its text is at path_.
void Lease::give_back() {
  try {
    if (!fence_->open()) return;
    const std::optional<std::string> found = text_at(files_, path_);
    if (found && is_mine(*found, path_)) fence_->remove(path_);
    close_fence(files_, root_, fence_path(root_, me_.token));
  } catch (const std::exception& error) {
    log_.warn("{} could not be given back: {}; the next start takes it over", path_, error.what());
  }
}

bool Lease::is_mine(std::string_view text, const std::string& path) const {
  const std::optional<LeaseHolder> holder = parse_lease(text, path);
  return holder && holder->token == me_.token;
}

// Whole or absent: written aside, then renamed to a name that must be free.
bool Lease::claim(const std::string& path) {
  if (files_.stat(path)) return false;
  const std::string aside = path_ + "." + to_text(random_id());
  try {
    const std::string mine = text();
    const auto file = files_.create(aside);
    file->write_at(std::as_bytes(std::span(mine)), 0);
    file->close();
    const bool claimed = give_name(aside, path);
    if (!claimed) files_.remove(aside);
    return claimed;
  } catch (const Error&) {
    remove_quietly(files_, aside);
    throw;
  }
}

// Renames `aside` to `path`.  False: another process was faster.
bool Lease::give_name(const std::string& aside, const std::string& path) {
  for (int attempt = 1;; ++attempt) {
    try {
      files_.rename_new(aside, path);
      return true;
    } catch (const Error&) {
      if (files_.stat(path)) return false;
      if (attempt == kAttempts) throw;
    }
  }
}

void Lease::acquire() {
  for (;;) {
    // The list is made before the check: a fence that comes later is that of a later holder.
    const std::vector<std::string> earlier = fences_in(files_, root_);
    take(path_);
    for (const std::string& fence : earlier) close_fence(files_, root_, fence);
    fence_.emplace(files_, root_, me_.token, [this] { check(); });
    renewed_s_ = options_.now();
    const std::optional<std::string> found = text_at(files_, path_);
    if (found && is_mine(*found, path_)) return;
    close_fence(files_, root_, fence_path(root_, me_.token));
    me_.token = to_text(random_id());
  }
}

// The successor is taken like a lease, because its holder may die too.  No file is ever removed
// because of a judgement that may concern an earlier file of the same name.
void Lease::take(const std::string& path) {
  while (!claim(path)) {
    const std::optional<std::string> found = text_at(files_, path);
    if (!found || !is_dead(path, *found)) continue;  // it changed hands a moment ago
    const std::string successor =
        fmt::format("{}.{:016x}", path_, xxh3_64(std::as_bytes(std::span(*found))));
    take(successor);
    taken_over_ = true;
    if (text_at(files_, path) == found) {
      replace_dead(*found, successor, path);
      if (text_at(files_, path) == text()) return;
    }
    const std::optional<std::string> left = text_at(files_, successor);
    if (left && is_mine(*left, successor)) files_.remove(successor);
  }
}

void Lease::replace_dead(const std::string& found, const std::string& successor,
                         const std::string& path) {
  const std::optional<LeaseHolder> holder = parse_lease(found, path);
  // The token becomes part of a path: only an identifier is accepted.
  const bool fenced = holder && parse_id(holder->token);
  if (fenced) close_fence(files_, root_, fence_path(root_, holder->token));
  if (text_at(files_, path) != found) return;  // it wrote a last beat before
  files_.replace(successor, path);
  if (fenced) close_fence(files_, root_, fence_path(root_, holder->token));
}

// A lease that this very process has left behind has no holder.  Leases of an earlier start of the
// launch have none either.
Life Lease::life(const LeaseHolder& holder) const {
  if (is_same_process(holder, me_) || replaces(me_, holder)) return Life::kDead;
  return life_of(holder, me_);
}

// False: another text is at `path`, or none.  kConfig: the holder lives.
bool Lease::is_dead(const std::string& path, const std::string& found) {
  const std::optional<LeaseHolder> holder = parse_lease(found, path);
  if (!holder) return true;
  switch (life(*holder)) {
    case Life::kDead:
      return true;
    case Life::kAlive:
      fail_in_use(root_, *holder, path);
    case Life::kUnknown:
      break;
  }
  return stays_silent(path, found, *holder);
}

// Counts only time during which this process looked: changes may be missed while it sleeps.
bool Lease::stays_silent(const std::string& path, const std::string& found,
                         const LeaseHolder& holder) {
  const std::optional<Sign> first = sign_at(files_, path);
  if (!first || first->text != found) return false;
  const auto polls = int64_t(std::ceil(holder.expiry_s() / kLeasePoll_s));
  for (int64_t poll = 0; poll < polls; ++poll) {
    if (poll % kPollsPerLine == 0)
      log_.info(
          "waiting for the lease of {}, held by process {} on {}: {:.0f} s without a sign of life, "
          "taken over after {:.0f}",
          root_, holder.pid, holder.host, double(poll) * kLeasePoll_s, holder.expiry_s());
    options_.sleep(kLeasePoll_s);
    ASHLAR_REQUIRE(!StopSignals::requested(), kPreempted,
                   "{} came while this process waited for the lease of {}; nothing was changed",
                   StopSignals::name(), root_);
    const std::optional<Sign> now = sign_at(files_, path);
    if (!now) return false;
    if (now == first) continue;
    const std::optional<LeaseHolder> other = parse_lease(now->text, path);
    if (!other || other->token != holder.token) return false;
    fail_in_use(root_, holder, path);
  }
  return true;
}

// Removes files that killed starters left beside the lease; those of living starters are in use.
void Lease::collect() {
  for (const std::string& name : files_.list(parent_of(path_))) {
    if (!name.starts_with("trainer.json.")) continue;
    const std::string path = join(parent_of(path_), name);
    const std::optional<std::string> text = text_at(files_, path);
    const auto holder = text ? parse_lease(*text, path) : std::nullopt;
    if (holder && life(*holder) == Life::kDead) files_.remove_all(path);
  }
}

void Lease::check() {
  // The lease may have been removed by hand; then it is made again.
  std::optional<std::string> found = text_at(files_, path_);
  while (!found && fence_->open() && !claim(path_)) found = text_at(files_, path_);
  if (fence_->open() && (!found || is_mine(*found, path_))) return;
  const std::optional<LeaseHolder> holder =
      found && !is_mine(*found, path_) ? parse_lease(*found, path_) : std::nullopt;
  const std::string other = holder ? fmt::format("process {} on {}", holder->pid, holder->host)
                                   : std::string("another process");
  ASHLAR_REQUIRE(!holder || !replaces(*holder, me_), kConfig,
                 "{} was taken over by {}: the launch has started attempt {} in place of attempt "
                 "{}, to which this process belongs",
                 root_, other, holder->attempt, me_.attempt);
  // A process that renews its lease is replaced by nobody else.
  const std::string gone = missing();
  const bool renews = options_.now() - renewed_s_ < me_.expiry_s();
  ASHLAR_REQUIRE(gone.empty() || !renews || !holder, kConfig,
                 "{} was removed or moved while this process trains into {}, and {} has taken it "
                 "since; stop one of the two",
                 gone, root_, other);
  ASHLAR_REQUIRE(gone.empty() || !renews, kConfig,
                 "{} was removed or moved while this process trains into {}: put back what was "
                 "moved, and start again, which goes on from the newest step that is there",
                 gone, root_);
  ASHLAR_FAIL(kConfig,
              "{} was taken over by {}, because this process did not renew its lease for {:.0f} s; "
              "stop one of the two",
              root_, other, me_.expiry_s());
}

// The uppermost of this process's directories that is missing; "": none is.
std::string Lease::missing() const {
  for (const std::string& directory : {root_, parent_of(path_), fence_path(root_, me_.token)})
    if (!files_.stat(directory, LinkPolicy::kFollow)) return directory;
  return "";
}

void Lease::refresh() {
  check();
  ++beat_;
  fence_->write(path_, text());
  renewed_s_ = options_.now();
}

void Lease::refresh_loop() {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> interval(options_.refresh_s);
  while (!changed_.wait_for(lock, interval, [&] { return stop_; })) {
    lock.unlock();
    try {
      refresh();
    } catch (const Error& error) {
      log_.warn("the lease of {} was not refreshed: {}", root_, error.what());
      if (error.kind() == ErrorKind::kConfig) return;  // the next save fails with the same words
    }
    lock.lock();
  }
}

}  // namespace ashlar::checkpoint
