// Writes one step: attempt directory, data files, index, manifest, COMMIT, rename.  Until the last
// rename and the sync of the root nothing of it is visible; a crash leaves a .tmp- directory.
// Where there are several writers, each writes its data files; then the leader (the first) commits
// for all.
//
// Order   every file: create (must be absent), reserve, write, sync, close; sync component
//         directories; other writers than the leader: their part (parts.h), and that is all.
//         The leader: all parts are there, merge and remove them; index.bin, manifest.json;
//         COMMIT.part -> COMMIT; sync the step's directories; rename to step-S (must be absent);
//         sync the root; LATEST.
// Errors  kStorage "step S is not saved: STAGE: PATH: ...".  Single writes are tried four times.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/save_plan.h"
#include "ashlar/core/files.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

class StepWriter {
 public:
  // retry_delay_s: before the second try of a write; four times longer before each later one.
  StepWriter(FileSystem& files, std::string root, SavePlan& plan, double retry_delay_s, Log& log);

  void begin();  // directories
  // Chunks in order, file after file; bytes may be empty for an empty file.  Hashes and writes.
  void write_chunk(size_t file, int64_t chunk, std::span<const std::byte> bytes);
  std::string publish();    // the leader, once nobody is missing: the committed step's directory
  void abandon() noexcept;  // the leader: removes what was written, as far as possible

  std::vector<int> missing_writers();  // the leader: whose part is not there; kStorage: one failed
  void publish_part();                 // the others: this writer is done
  void report_failure(std::string_view text) noexcept;  // the others: the leader will say it
  const std::string& directory() const { return tmp_; }

 private:
  void stage(const char* name, function_ref<void()> body);
  void write_small(const std::string& path, std::string_view text);
  void sync_directories();
  void merge_writers();
  void make_visible(const std::string& step, std::string_view commit);
  void write_whole(const std::string& name, std::string_view text);
  void write_retrying(File& file, std::span<const std::byte> bytes, int64_t offset);
  std::string in_tmp(std::string_view name) const;

  FileSystem& files_;
  std::string root_, tmp_;
  SavePlan& plan_;
  double retry_delay_s_;
  Log& log_;
  std::unique_ptr<File> file_;  // being written
  bool visible_ = false;        // renamed into place
};

}  // namespace ashlar::checkpoint
