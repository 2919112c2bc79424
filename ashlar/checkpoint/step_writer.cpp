#include "ashlar/checkpoint/step_writer.h"

#include <chrono>
#include <set>
#include <thread>

#include "ashlar/checkpoint/commit.h"
#include "ashlar/checkpoint/raise.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

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
  if (chunk + 1 < num_chunks(file.size_bytes)) return;
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

std::string StepWriter::publish() {
  std::set<std::string> directories;
  for (const FilePlan& file : plan_.files) {
    directories.insert(parent_of(in_tmp(file.file.path)));
    plan_.index.files.push_back(file.file);
  }
  const std::vector<std::byte> index = build_index(plan_.index);
  const std::string_view index_text(reinterpret_cast<const char*>(index.data()), index.size());
  const std::string manifest = build_manifest(plan_.manifest);
  const Commit commit{plan_.step,
                      plan_.run_id,
                      plan_.attempt,
                      digest_of(manifest),
                      digest_of(index_text),
                      plan_.bytes,
                      int64_t(plan_.files.size())};
  const std::string step = join(root_, step_name(plan_.step));
  stage("committing", [&] {
    for (const std::string& directory : directories) files_.sync_directory(directory);
    write_small(in_tmp(kIndexName), index_text);
    write_small(in_tmp(kManifestName), manifest);
    const std::string part = in_tmp(std::string(kCommitName) + ".part");
    write_small(part, build_commit(commit));
    files_.rename_new(part, in_tmp(kCommitName));
    files_.sync_directory(tmp_);
    files_.rename_new(tmp_, step);
    visible_ = true;
    files_.sync_directory(root_);
  });
  try {
    write_text(files_, join(root_, kLatestName), step_name(plan_.step) + "\n");
  } catch (const Error& error) {
    log_.warn("{} is committed, but LATEST was not updated: {}", step, error.what());
  }
  return step;
}

void StepWriter::abandon() noexcept {
  try {
    file_.reset();
    // Visible but perhaps not durable, and never announced: the step may be saved again.
    if (visible_) files_.rename_new(join(root_, step_name(plan_.step)), tmp_);
    files_.remove_all(tmp_);
  } catch (const std::exception& error) {
    log_.warn("{} could not be removed: {}; it is collected at the next start", tmp_, error.what());
  }
}

}  // namespace ashlar::checkpoint
