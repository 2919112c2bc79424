// How it works.  Each rank that writes has a Checkpointer; around it all ranks agree, in one order:
//
//   constructor  they choose the writers (node_saves.h), which link up (save_links.h); rank 0 opens
//                first, since it takes the lease and finds the run's id in the newest step; the
//                others open with that id; after a kill all read the newest step, each a part
//   resume       rank 0 names a step, all load it together (GroupLoadRanks); if any found damage,
//                rank 0 rejects the step and names the next older one
//   save         all wait until none has two saves in progress; rank 0 draws the attempt and sends
//                it; each rank copies its part for the writer of its machine, if that has one; each
//                writer hands what it writes to a Checkpointer
//   finish       settle() until nothing is in progress; rank 0 says whether the last step is still
//                unsaved, and then all save again
//
// Only rank 0 knows the result of a step (Checkpointer's header), so it alone reports, counts
// failures and decides.  However long it takes for that, or a disk takes for a save, the others
// wait by meeting again and again (wait_together), so that no time-out of collectives ends the run.
//   Rows of metrics are flushed before a save, and synced before its commit, on the thread that
// writes checkpoints: so no step exists without the rows up to it.
#include "ashlar/train/saves.h"

#include <algorithm>
#include <array>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ashlar/comm/agree.h"
#include "ashlar/comm/world.h"
#include "ashlar/core/text.h"
#include "ashlar/core/threads.h"
#include "ashlar/models/path.h"
#include "ashlar/train/machine.h"
#include "ashlar/train/run_pulse.h"
#include "ashlar/train/save_links.h"
#include "ashlar/train/save_report.h"

namespace ashlar::train {
namespace {

// The snapshot is in the memory that the ranks of a machine share; the arena has only what is
// hashed and written of it at a time.
constexpr int64_t kArenaOfGathered = int64_t(64) << 20;
constexpr double kCopyTimeout_s = 600;

}  // namespace

std::string checkpoint_root(const Recipe& recipe) {
  return join(recipe.train.run_dir, models::kCheckpointsDirectory);
}

Saves::Saves(const Recipe& recipe, FileSystem& files, Log& log, comm::Group& ranks, int local_ranks,
             StateWriter& writer, kernels::gpu::SideCopies* side_copies)
    : recipe_(recipe),
      files_(files),
      log_(log),
      ranks_(ranks),
      load_ranks_(ranks),
      local_ranks_(local_ranks),
      writer_(writer),
      writers_(choose_writers(ranks, writer.share(), recipe.checkpoint, log)),
      root_(checkpoint_root(recipe)) {
  ASHLAR_ASSERT(!side_copies || !writers_.snapshot);  // a GPU has one rank
  if (side_copies) device_.emplace(*side_copies);
  if (recipe_.checkpoint.every >= 0) check_files_together();
  channel_ = make_save_channel(ranks_, writers_.ranks, recipe_.checkpoint.control_interface, log_);
  while_leader(ranks_, "checkpoint root", [&] { open(""); });
  std::array<uint8_t, 32> id{};  // 32 hex digits
  if (leads()) std::copy_n(checkpoints_->run_id().begin(), id.size(), id.begin());
  from_leader(ranks_, id, "run id");
  require_one_directory();
  if (!leads() && writes()) open(std::string(id.begin(), id.end()));
  check_together();
}

// A save in progress may wait for the copy of a rank that failed; and the threads of saves must end
// before the memory that they read is freed.
Saves::~Saves() {
  if (writers_.snapshot) writers_.snapshot->stop();
  checkpoints_.reset();
}

void Saves::give_up(const std::string& reason) {
  if (!checkpoints_ || checkpoints_->drain(0)) return;
  const bool alone = ranks_.size() == 1;  // no other rank can keep the saves waiting
  if (leads())
    log_.warn(
        "{}{}before it ends, the run {}", reason, reason.empty() ? "" : "; ",
        alone ? "waits for its saves" : fmt::format("gives its saves {:.0f} s", comm::kLeaving_s));
  if (alone || checkpoints_->drain(comm::kLeaving_s)) return;
  if (writers_.snapshot) writers_.snapshot->stop();
  checkpoints_->give_up();
}

void Saves::open(const std::string& run_id) {
  checkpoint::CheckpointOptions options;
  options.keep = recipe_.checkpoint.keep;
  options.keep_every = recipe_.checkpoint.keep_every;
  options.run_id = run_id;
  options.writer_rank = writers_.mine;
  options.num_writers = int(writers_.ranks.size());
  options.local_writers = local_ranks_;
  options.arena_bytes = recipe_.checkpoint.arena_mib << 20;
  if (writers_.snapshot) options.arena_bytes = kArenaOfGathered;
  if (device_) options.source = &*device_;
  options.channel = channel_.get();
  checkpoints_ = std::make_unique<checkpoint::Checkpointer>(files_, root_, options, log_);
}

// Detects machines with different directories under the same path, by the lease that rank 0 took.
// If nothing is saved, and there is nothing to continue from, the other ranks do not look.
void Saves::require_one_directory() {
  const bool is_used = recipe_.checkpoint.every >= 0 || (leads() && checkpoints_->newest());
  const std::string token = text_from_leader(
      ranks_, leads() && is_used ? checkpoint::lease_of(files_, root_)->token : "", "lease");
  const std::string host = text_from_leader(ranks_, host_name(), "lease");
  const auto is_here = [&] {
    const auto lease = checkpoint::lease_of(files_, root_);
    return lease && lease->token == token;
  };
  std::string problem;
  if (!token.empty() && !leads()) {
    checkpoint::StaleRetry retry(files_, root_);
    bool found = is_here();
    while (!found && retry.wait()) found = is_here();
    if (!found)
      problem = fmt::format(
          "train.run_dir is {}, but rank {} on {} has another directory there than rank 0 on {}; "
          "expected one that all machines share",
          recipe_.train.run_dir, ranks_.rank(), host_name(), host);
  }
  problem = first_said(ranks_, problem, "directory of the run");
  ASHLAR_REQUIRE(problem.empty(), kConfig, "{}", problem);
}

namespace {

// Runs body on a thread where `here`; all ranks return when it is done everywhere.
void wait_for_threads(comm::Group& ranks, std::string_view label, bool here,
                      const std::function<void()>& body) {
  std::packaged_task<void()> task(body);
  std::future<void> done = task.get_future();
  std::thread thread;
  if (here) thread = start_thread("that opens checkpoints", [&] { task(); });
  try {
    comm::wait_together(
        ranks,
        [&](double seconds) {
          return !here ||
                 done.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
        },
        label);
  } catch (...) {  // another rank failed; the thread still uses what this rank has
    ranks.fail(std::current_exception());
    if (thread.joinable()) thread.join();
    throw;
  }
  if (!here) return;
  thread.join();
  done.get();
}

}  // namespace

void while_leader(comm::Group& ranks, std::string_view label, const std::function<void()>& body) {
  wait_for_threads(ranks, label, ranks.rank() == 0, body);
}

void on_threads(comm::Group& ranks, std::string_view label, const std::function<void()>& body) {
  wait_for_threads(ranks, label, true, body);
}

// All ranks throw the error that the first of them finds.
void Saves::check_files_together() {
  std::string problem;
  try {
    if (writes()) check_files(writers_.snapshot ? writers_.snapshot->state() : writer_.share());
  } catch (const Error& error) {
    problem = error.what();
  }
  problem = first_said(ranks_, problem, "files of checkpoints");
  ASHLAR_REQUIRE(problem.empty(), kConfig, "{}", problem);
}

// Every rank reads its part of the step that a killed run left.
void Saves::check_together() {
  const auto unchecked = leads() ? checkpoints_->unchecked() : std::nullopt;
  const std::string directory =
      text_from_leader(ranks_, unchecked ? unchecked->directory : "", "step to check");
  if (directory.empty()) return;
  just_read_ = true;
  std::string damage;
  on_threads(ranks_, "check of a step", [&] {
    const checkpoint::VerifyReport report = checkpoint::verify_step(
        files_, directory, checkpoint::VerifyLevel::kDeep, log_, {ranks_.rank(), ranks_.size()});
    if (!report.ok()) damage = report.findings.front().message;
  });
  damage = first_said(ranks_, damage, "damage of a step");
  while_leader(ranks_, "checked step", [&] {
    damage.empty() ? checkpoints_->accept_newest() : checkpoints_->reject_newest(damage);
  });
}

bool Saves::resume(const std::function<void(const checkpoint::StepReader&)>& take) {
  for (;;) {
    const auto newest = leads() ? checkpoints_->newest() : std::nullopt;
    const int64_t step = from_leader(ranks_, newest ? newest->step : -1, "step to continue from");
    if (step < 0) return false;
    std::string damage;
    try {
      take(reader_of(step));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      damage = error.what();
    }
    damage = first_said(ranks_, damage, "damage of a step");
    if (damage.empty()) {
      last_saved_ = step;
      return true;
    }
    while_leader(ranks_, "damaged step", [&] { checkpoints_->reject_newest(damage); });
    just_read_ = true;
  }
}

checkpoint::StepReader Saves::reader_of(int64_t step) {
  const std::string directory = join(root_, checkpoint::step_name(step));
  checkpoint::StaleRetry retry(files_, directory);
  ASHLAR_REQUIRE(
      checkpoint::stat_with_retry(files_, join(directory, checkpoint::kCommitName), retry),
      kStorage,
      "{}: rank 0 continues from step {}, which rank {} does not find there; expected a "
      "directory that all ranks share",
      root_, step, ranks_.rank());
  checkpoint::StepReader reader(files_, directory, &load_ranks_);
  if (!just_read_) reader.set_reads(checkpoint::Reads::kDirect);
  return reader;
}

checkpoint::SaveRequest Saves::request(const RunCounters& counters, const HealthState& health,
                                       const data::LoaderState& cursor) {
  checkpoint::SaveRequest request = writer_.request(counters, health, cursor);
  if (leads()) {
    request.attempt = checkpoint::random_id();
    metrics_->flush();
    request.before_commit = [metrics = metrics_] { metrics->sync(); };
  }
  from_leader(ranks_, request.attempt, "save attempt");
  return request;
}

// Replaces this rank's tensors by those of all ranks of its machine, for which it writes.
void Saves::take_shared(checkpoint::SaveRequest& request) {
  if (!writers_.snapshot) return;
  request.model = writers_.snapshot->state().model;
  request.optim = writers_.snapshot->state().optim;
}

void Saves::begin(Metrics* metrics, const RunCounters& counters, const HealthState& health,
                  const data::LoaderState& cursor) {
  metrics_ = metrics;
  if (recipe_.checkpoint.every <= 0) return;
  if (writers_.snapshot) writers_.snapshot->prepare();
  if (!writes()) return;
  checkpoint::SaveRequest like = writer_.request(counters, health, cursor);
  take_shared(like);
  checkpoints_->prepare(like);
}

void Saves::before_update() {
  if (!writers_.snapshot && !device_) return checkpoints_->before_update();
  const Clock::time_point start = Clock::now();
  if (device_) device_->before_update();
  if (writers_.snapshot) writers_.snapshot->before_update();
  if (writes()) checkpoints_->add_blocked(last_saved_, seconds_since(start));
}

void Saves::save(const RunCounters& counters, const HealthState& health,
                 const data::LoaderState& cursor) {
  const Clock::time_point called = Clock::now();
  show(ranks_, PulsePlace::kSaveWait);
  comm::wait_together(
      ranks_, [&](double seconds) { return !writes() || checkpoints_->wait_for_place(seconds); },
      "place for a snapshot");
  const checkpoint::SaveRequest::Wait waited{called, Clock::now()};
  show(ranks_, PulsePlace::kSaveCopy);
  if (std::exchange(wants_second_try_, false)) second_try_ = counters.step;
  checkpoint::SaveRequest what = request(counters, health, cursor);
  what.waited = waited;
  last_saved_ = counters.step;
  if (writers_.snapshot) {
    writers_.snapshot->copy();
    what.await_data = writers_.snapshot->wait_for_members(kCopyTimeout_s);
  }
  take_shared(what);
  if (writes()) start(what);
  if (!recipe_.checkpoint.async) await_end();
  if (writes()) checkpoints_->add_blocked(counters.step, seconds_since(called));
}

void Saves::start(const checkpoint::SaveRequest& what) {
  if (device_) device_->follow();
  try {
    checkpoints_->save(what);
  } catch (const Error& error) {
    if (device_) device_->cancel();
    failed(what.step, error);
  }
}

bool Saves::too_many_failed() const {
  constexpr int kMost = 4;  // two saves, and the second try of each
  return leads() && checkpoints_->consecutive_failures() >= kMost;
}

// A failure is a warning, since the next try may succeed; of too many in a row the last one is an
// error.  On other ranks a failure of storage is silent: rank 0 reports it.
void Saves::failed(int64_t step, const Error& error, bool is_last) {
  if (error.kind() != ErrorKind::kStorage || (is_last && too_many_failed())) throw error;
  if (last_saved_ == step) last_saved_ = -1;  // so that finish() saves it again
  if (!leads()) return;
  wants_second_try_ = step != second_try_;
  log_.warn("{}", error.what());
  metrics_->event("save_failed", {{"step", step}, {"error", error.what()}});
}

bool Saves::unsaved(int64_t step) {
  return from_leader(ranks_, recipe_.checkpoint.every >= 0 && last_saved_ != step, "last save");
}

void Saves::finish(const RunCounters& counters, const HealthState& health,
                   const data::LoaderState& cursor) {
  settle();
  // This ends after few turns: one of the failures in a row is thrown.
  while (unsaved(counters.step)) {
    save(counters, health, cursor);
    settle();
  }
}

// Waits until every save has ended.
void Saves::await_end() {
  show(ranks_, PulsePlace::kSaveWait);
  comm::wait_together(
      ranks_, [&](double seconds) { return !writes() || checkpoints_->drain(seconds); },
      "saves under way");
}

// The same, and reports each.
void Saves::settle() {
  await_end();
  report();
}

int64_t Saves::newest_step() {
  settle();
  const auto newest = leads() ? checkpoints_->newest() : std::nullopt;
  return from_leader(ranks_, newest ? newest->step : -1, "newest step");
}

void Saves::report() {
  if (!leads()) return;
  std::vector<checkpoint::SaveFailure> failures = checkpoints_->take_failures();
  if (too_many_failed()) {  // saves in progress may say more, or that the disk is good again
    checkpoints_->drain(std::min(comm::kLeaving_s, recipe_.parallel.timeout_s / 2));
    std::ranges::move(checkpoints_->take_failures(), std::back_inserter(failures));
  }
  for (const checkpoint::SaveFailure& failure : failures)
    failed(failure.step, failure.error, &failure == &failures.back());
  for (const checkpoint::SaveStats& s : checkpoints_->take_stats()) {
    log_.info("step {:>6}  saved {} ({}): training blocked {:.1f} ms, committed after {:.2f} s{}",
              s.step, s.directory, format_bytes(s.bytes), 1e3 * s.blocked_s, s.total_s,
              slowest_rank(s.ranks));
    nlohmann::ordered_json row{{"step", s.step},           {"bytes", s.bytes},
                               {"blocked_s", s.blocked_s}, {"copy_s", s.copy_s},
                               {"write_s", s.write_s},     {"commit_s", s.commit_s},
                               {"total_s", s.total_s}};
    add_times(s.ranks, row);
    metrics_->event("checkpoint", row);
    warn_of_slow(s.ranks, s.step, log_);
  }
  for (const checkpoint::RetireStats& s : checkpoints_->take_retired()) {
    nlohmann::ordered_json row{
        {"step", s.step}, {"bytes", s.bytes}, {"verify_s", s.verify_s}, {"remove_s", s.remove_s}};
    add_times(s.ranks, row);
    metrics_->event("checkpoint_read_back", row);
    warn_of_slow(s.ranks, s.step, log_);
  }
}

}  // namespace ashlar::train
