// How it works.  One object is one attempt.  write_chunk keeps one file open: it creates the file
// with its first chunk, and syncs and closes it with its last.  Then publish() or publish_part()
// runs once.  No file refers to another before that one is synced, and only the rename of the
// directory makes a step, so that a crash leaves one of these:
//
//   before COMMIT has its name             .tmp-    no step; collected at the next start
//   then, until the renames                .tmp-    no step either: its name does not count; or
//                                                   in the fence, where the next holder removes it
//   then, until the root is synced         any of these, as it reached the disk; whole if step-S
//   from then on                           step-S; LATEST may be old
//
// After an error abandon() removes the attempt; if the directory was renamed already (visible_),
// but the sync of the root failed, it is removed through the fence.
#include "ashlar/checkpoint/save/step_writer.h"

#include <chrono>
#include <set>
#include <thread>

#include "ashlar/checkpoint/format/commit.h"
#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/format/stale_retry.h"
#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/checkpoint/root/step_guard.h"
#include "ashlar/checkpoint/save/parts.h"
#include "ashlar/checkpoint/writers/timing.h"

namespace ashlar::checkpoint {
namespace {

// How often a write is tried; with the usual first delay of 0.05 s the waits add up to 1 s.
constexpr int kTries = 4;

// Larger files are written past the system's memory, which costs less CPU time and avoids a wait
// for the disk at the end.  Smaller files stay in memory for the next program that reads them.
constexpr int64_t kDirectFileBytes = int64_t(64) << 20;

}  // namespace

StepWriter::StepWriter(FileSystem& files, std::string root, SavePlan& plan, double retry_delay_s,
                       Log& log, PhaseRecorder& times, std::string host)
    : files_(files),
      root_(std::move(root)),
      tmp_(join(root_, tmp_name(plan.step, to_text(plan.attempt)))),
      plan_(plan),
      retry_delay_s_(retry_delay_s),
      log_(log),
      times_(times),
      host_(std::move(host)) {}

void StepWriter::stage(const char* name, function_ref<void()> body) {
  try {
    body();
  } catch (const Error& error) {
    raise(error.kind(), "step {} is not saved: {}: {}", plan_.step, name, error.what());
  }
}

std::string StepWriter::in_tmp(std::string_view name) const {
  return join(tmp_, name);
}

std::string StepWriter::guard() const {
  return guard_path(root_, plan_.step, to_text(plan_.attempt));
}

void StepWriter::begin() {
  stage("making directories", [&] {
    files_.make_directories(tmp_);
    for (const FilePlan& file : plan_.files)
      files_.make_directories(parent_of(in_tmp(file.file.path)));
    if (plan_.writer_rank == 0) files_.make_directories(in_tmp("extra"));  // of timing.json
  });
  begun_ = true;
}

// Only writes are retried: after a failed sync it is unknown what of the file is on disk.
void StepWriter::write_retrying(function_ref<void()> write) {
  double delay_s = retry_delay_s_;
  for (int attempt = 1;; ++attempt, delay_s *= 4) {
    try {
      return write();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kStorage || attempt == kTries) throw;
      times_.add(Phase::kWrite, Clock::now(), 0, 1);
      std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
    }
  }
}

void StepWriter::write_chunk(size_t index, int64_t chunk, std::span<const std::byte> bytes,
                             uint32_t crc) {
  IndexFile& file = plan_.files[index].file;
  const std::string path = in_tmp(file.path);
  Clock::time_point begin = Clock::now();
  if (chunk == 0) {
    file_begin_ = begin;
    stage("creating a file", [&] {
      file_ = files_.create(path);
      if (file.size_bytes > 0) file_->reserve(file.size_bytes);
    });
    times_.add(Phase::kWrite, begin);
  }
  if (!bytes.empty()) {
    file.chunk_crcs[size_t(chunk)] = crc;
    begin = Clock::now();
    const int64_t offset = chunk * kChunkBytes;
    const bool direct = file.size_bytes >= kDirectFileBytes;
    stage("writing", [&] {
      write_retrying(
          [&] { direct ? file_->write_direct(bytes, offset) : file_->write_at(bytes, offset); });
    });
    times_.add(Phase::kWrite, begin, int64_t(bytes.size()));
  }
  if (chunk + 1 < num_chunks(file.size_bytes)) return;  // an empty file ends with its chunk 0
  begin = Clock::now();
  stage("syncing", [&] {
    file_->sync();
    file_->close();
    file_.reset();
  });
  times_.add(Phase::kSync, begin);
  file_s_.push_back(float(seconds_since(file_begin_)));
}

void StepWriter::write_small(const std::string& path, std::string_view text) {
  const auto file = files_.create(path);
  write_retrying([&] { file->write_at(std::as_bytes(std::span(text)), 0); });
  file->sync();
  file->close();
}

// `name` appears with all of the text, or not at all.
void StepWriter::write_whole(const std::string& name, std::string_view text) {
  const std::string aside = in_tmp(name + ".part");
  write_small(aside, text);
  files_.rename_new(aside, in_tmp(name));
}

void StepWriter::sync_directories() {
  std::set<std::string> directories;
  for (const IndexFile& file : plan_.index.files) directories.insert(parent_of(in_tmp(file.path)));
  for (const std::string& directory : directories) files_.sync_directory(directory);
}

void StepWriter::join_own_files() {
  if (!std::exchange(joined_, true)) join_files(plan_);
}

WriterPart StepWriter::make_part() {
  join_own_files();
  const Clock::time_point begin = Clock::now();
  stage("syncing", [&] {
    sync_directories();
    for (const IndexFile& file : plan_.index.files) check_witness(file.path, file.size_bytes);
  });
  times_.add(Phase::kSync, begin);
  WriterPart part;
  static_cast<RankTimes&>(part) = own_times();
  part.index = plan_.index;
  part.layout = layout_hash(part.index);
  part.has_boxes = true;
  return part;
}

RankTimes StepWriter::own_times() const {
  return {plan_.writer_rank, host_, times_.times(), file_s_};
}

std::vector<RankTimes> StepWriter::rank_times() const {
  std::vector<RankTimes> all{own_times()};
  all.insert(all.end(), other_times_.begin(), other_times_.end());
  return all;
}

void StepWriter::check_witness(const std::string& path, int64_t size_bytes) {
  StaleRetry retry(files_, tmp_);
  auto info = files_.stat(in_tmp(path));
  while (!(info && info->size_bytes == size_bytes) && retry.wait())
    info = files_.stat(in_tmp(path));
  ASHLAR_REQUIRE(info && info->size_bytes == size_bytes, kStorage,
                 "{}: it has {} bytes here but {} were written", in_tmp(path),
                 info ? info->size_bytes : 0, size_bytes);
}

void StepWriter::publish_part() {
  join_own_files();
  const std::vector<std::byte> part = build_index(plan_.index);
  // The rename is the last thing that happens in the directory: the leader may rename it at once.
  stage("writing the part", [&] {
    sync_directories();
    write_whole(part_name(plan_.writer_rank),
                {reinterpret_cast<const char*>(part.data()), part.size()});
  });
}

std::vector<int> StepWriter::missing_writers() {
  std::vector<int> missing;
  if (plan_.num_writers > 1)
    stage("waiting for parts", [&] { missing = checkpoint::missing_writers(files_, tmp_, plan_); });
  return missing;
}

void StepWriter::merge_writers(std::optional<AllParts> parts) {
  join_own_files();
  if (parts) {
    other_times_.assign(parts->parts.begin(), parts->parts.end());
    parts->cover += cover_of(plan_.index);
    stage("joining parts", [&] { merge_parts(std::move(parts->parts), plan_); });
    check_cover(plan_, parts->cover);
  } else if (plan_.num_writers > 1) {
    stage("joining parts", [&] {
      merge_parts(files_, tmp_, plan_);
      remove_parts(files_, tmp_, plan_);
    });
    check_cover(plan_);  // only now, with the boxes of all writers
  }
}

std::string StepWriter::publish(Fence& fence, std::optional<AllParts> parts) {
  const Clock::time_point begin = Clock::now();
  const bool by_channel = parts.has_value();
  merge_writers(std::move(parts));
  times_.add(Phase::kMerge, begin);
  const Clock::time_point committing = Clock::now();
  const std::string timing = build_timing({plan_.step, plan_.num_writers, rank_times()});
  const std::string timing_path = add_late_file(plan_, {std::string(kTimingFile), timing, true});
  complete(plan_);
  const std::vector<std::byte> index = build_index(plan_.index);
  const std::string_view index_text(reinterpret_cast<const char*>(index.data()), index.size());
  stage("committing",
        [&] { plan_.manifest.durability = files_.keeps_names(tmp_) ? "full" : "files"; });
  const std::string manifest = build_manifest(plan_.manifest);
  const Commit commit{plan_.step,
                      plan_.run_id,
                      plan_.attempt,
                      digest_of(manifest),
                      digest_of(index_text),
                      bytes_of(plan_.index),
                      int64_t(plan_.index.files.size())};
  const std::string step = join(root_, step_name(plan_.step));
  stage("committing", [&] {
    write_small(in_tmp(timing_path), timing);
    sync_directories();
    write_small(in_tmp(kIndexName), index_text);
    write_small(in_tmp(kManifestName), manifest);
    const std::string line = build_commit(commit);
    write_whole(kCommitName, line);
    files_.sync_directory(tmp_);
    files_.make_directories(guard());
    make_visible(fence, step, line);
    files_.sync_directory(root_);
  });
  times_.add(Phase::kCommit, committing);
  if (by_channel) remove_late_parts(step);
  try {
    fence.write(join(root_, kLatestName), step_name(plan_.step) + "\n");
  } catch (const Error& error) {
    log_.warn("{} is committed, but LATEST was not updated: {}", step, error.what());
  }
  return step;
}

// A writer whose link broke after it sent its part may have left the part in the directory too.
// Now that the directory has its new name, no further part can come.
void StepWriter::remove_late_parts(const std::string& step) {
  try {
    for (const std::string& name : files_.list(step))
      if (name.starts_with(kPartPrefix)) files_.remove(join(step, name));
  } catch (const Error& error) {
    log_.warn("{} is committed, but parts of its making are left in it: {}", step, error.what());
  }
}

// Over a network a rename that was made may be answered with an error, because the first answer was
// lost and the call was repeated.
void StepWriter::make_visible(Fence& fence, const std::string& step, std::string_view commit) {
  try {
    fence.publish(tmp_, step);
  } catch (const Error&) {
    const std::string path = join(step, kCommitName);
    if (files_.stat(tmp_) || !files_.stat(path) ||
        read_text(files_, path, kMaxCommitBytes, LinkPolicy::kRefuse) != commit)
      throw;
  }
  visible_ = true;
}

void StepWriter::abandon(Fence& fence) noexcept {
  try {
    file_.reset();
    // Visible but perhaps not durable, and never announced: the step may be saved again.
    if (visible_) remove_step(fence, join(root_, step_name(plan_.step)));
    files_.remove_all(tmp_);
    files_.remove_all(guard());
  } catch (const std::exception& error) {
    log_.warn("{} could not be removed: {}; it is collected at the next start", tmp_, error.what());
  }
}

}  // namespace ashlar::checkpoint
