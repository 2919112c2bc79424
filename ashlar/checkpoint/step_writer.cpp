// How it works.  One object is one attempt.  write_chunk keeps one file open: it is created with
// its first chunk, synced and closed with its last.  Then publish() or publish_part() runs once.
// Nothing names a file before that file is synced, and nothing but the rename of the directory
// makes a step, so that a crash finds one of these:
//
//   before COMMIT has its name             .tmp-    no step; collected at the next start
//   then, until the rename                 .tmp-    no step either: its name does not count
//   then, until the root is synced         .tmp- or step-S, as it reached the disk; whole if step-S
//   from then on                           step-S; LATEST may be old
//
// An error takes the same way: abandon() removes the attempt, and if the directory was renamed
// already (visible_), but the sync of the root failed, it first renames it back.
#include "ashlar/checkpoint/step_writer.h"

#include <chrono>
#include <set>
#include <thread>

#include "ashlar/checkpoint/commit.h"
#include "ashlar/checkpoint/parts.h"
#include "ashlar/checkpoint/raise.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

// How often a write is tried; with the usual first delay of 0.05 s the waits add up to 1 s.
constexpr int kTries = 4;

}  // namespace

StepWriter::StepWriter(FileSystem& files, std::string root, SavePlan& plan, double retry_delay_s,
                       Log& log)
    : files_(files),
      root_(std::move(root)),
      tmp_(join(root_, tmp_name(plan.step, to_text(plan.attempt)))),
      plan_(plan),
      retry_delay_s_(retry_delay_s),
      log_(log) {}

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

void StepWriter::begin() {
  stage("making directories", [&] {
    files_.make_directories(tmp_);
    for (const FilePlan& file : plan_.files)
      files_.make_directories(parent_of(in_tmp(file.file.path)));
  });
}

// Writes only: after a failed sync nobody knows what of the file is on disk.
void StepWriter::write_retrying(File& file, std::span<const std::byte> bytes, int64_t offset) {
  double delay_s = retry_delay_s_;
  for (int attempt = 1;; ++attempt, delay_s *= 4) {
    try {
      return file.write_at(bytes, offset);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kStorage || attempt == kTries) throw;
      std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
    }
  }
}

void StepWriter::write_chunk(size_t index, int64_t chunk, std::span<const std::byte> bytes) {
  IndexFile& file = plan_.files[index].file;
  const std::string path = in_tmp(file.path);
  if (chunk == 0) {
    stage("creating a file", [&] {
      file_ = files_.create(path);
      if (file.size_bytes > 0) file_->reserve(file.size_bytes);
    });
  }
  if (!bytes.empty()) {
    file.chunk_crcs[size_t(chunk)] = crc32c(bytes);
    stage("writing", [&] { write_retrying(*file_, bytes, chunk * kChunkBytes); });
  }
  if (chunk + 1 < num_chunks(file.size_bytes)) return;  // an empty file ends with its chunk 0
  stage("syncing", [&] {
    file_->sync();
    file_->close();
    file_.reset();
  });
}

void StepWriter::write_small(const std::string& path, std::string_view text) {
  const auto file = files_.create(path);
  write_retrying(*file, std::as_bytes(std::span(text)), 0);
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

void StepWriter::publish_part() {
  join_files(plan_);
  const std::vector<std::byte> part = build_index(plan_.index);
  // The rename is the last thing that happens in the directory: the leader may rename it at once.
  stage("writing the part", [&] {
    sync_directories();
    write_whole(part_name(plan_.writer), {reinterpret_cast<const char*>(part.data()), part.size()});
  });
}

void StepWriter::report_failure(std::string_view text) noexcept {
  const std::string name = part_error_name(plan_.writer);
  double delay_s = retry_delay_s_;
  for (int attempt = 1; attempt <= kTries; ++attempt, delay_s *= 4) {
    try {
      file_.reset();
      files_.make_directories(tmp_);  // begin() may not have run, or the leader may have removed it
      files_.remove_all(in_tmp(name + ".part"));  // what the try before left
      return write_whole(name, text);
    } catch (const std::exception& error) {
      if (attempt == kTries)
        return log_.warn("the leader was not told, and will wait until its time is out: {}",
                         error.what());
      std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
    }
  }
}

std::vector<int> StepWriter::missing_writers() {
  std::vector<int> missing;
  if (plan_.num_writers > 1)
    stage("waiting for parts", [&] { missing = checkpoint::missing_writers(files_, tmp_, plan_); });
  return missing;
}

void StepWriter::merge_writers() {
  join_files(plan_);
  if (plan_.num_writers > 1) {
    stage("joining parts", [&] {
      merge_parts(files_, tmp_, plan_);
      remove_parts(files_, tmp_, plan_);
    });
    check_cover(plan_);  // only now, with the boxes of all writers
  }
  complete(plan_);
}

std::string StepWriter::publish() {
  merge_writers();
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
    sync_directories();
    write_small(in_tmp(kIndexName), index_text);
    write_small(in_tmp(kManifestName), manifest);
    const std::string line = build_commit(commit);
    write_whole(kCommitName, line);
    files_.sync_directory(tmp_);
    make_visible(step, line);
    files_.sync_directory(root_);
  });
  try {
    write_text(files_, join(root_, kLatestName), step_name(plan_.step) + "\n");
  } catch (const Error& error) {
    log_.warn("{} is committed, but LATEST was not updated: {}", step, error.what());
  }
  return step;
}

// Over a network a call that was made may be answered with an error, because the first answer was
// lost and the call was made again.
void StepWriter::make_visible(const std::string& step, std::string_view commit) {
  try {
    files_.rename_new(tmp_, step);
  } catch (const Error&) {
    const std::string path = join(step, kCommitName);
    if (files_.stat(tmp_) || !files_.stat(path) ||
        read_text(files_, path, kMaxCommitBytes, Links::kRefuse) != commit)
      throw;
  }
  visible_ = true;
}

void StepWriter::abandon() noexcept {
  try {
    file_.reset();
    // Visible but perhaps not durable, and never announced: the step may be saved again.
    if (visible_) {
      files_.rename_new(join(root_, step_name(plan_.step)), tmp_);
      files_.sync_directory(root_);
    }
    files_.remove_all(tmp_);
  } catch (const std::exception& error) {
    log_.warn("{} could not be removed: {}; it is collected at the next start", tmp_, error.what());
  }
}

}  // namespace ashlar::checkpoint
