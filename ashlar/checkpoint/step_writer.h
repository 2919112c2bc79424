// Writes one step: attempt directory, data files, index, manifest, COMMIT, rename.  Until the last
// rename and the sync of the root nothing of it is visible; a crash leaves a .tmp- directory.
//
// Order   every file: create (must be absent), reserve, write, sync, close; sync component
//         directories; index.bin, manifest.json; COMMIT.part -> COMMIT; sync the step's
//         directories; rename to step-S (must be absent); sync the root; LATEST.
// Errors  kStorage "step S is not saved: STAGE: PATH: ...".  Single writes are tried four times.
#pragma once

#include <memory>
#include <span>
#include <string>

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
  std::string publish();    // the committed step's directory
  void abandon() noexcept;  // removes what was written, as far as possible

 private:
  void stage(const char* name, function_ref<void()> body);
  void write_small(const std::string& path, std::string_view text);
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
