// Writes one step: attempt directory, data files, index, manifest, COMMIT, rename.  Nothing of the
// step is visible before the last rename and the sync of the root; a crash leaves a .tmp-
// directory.  Each of several writers writes its data files; then the leader (rank 0) commits for
// all.
//
// Order   every file: create (must be absent), reserve, write, sync, close; sync component
//         directories; writers other than the leader: their part, over the control channel
//         (save_channel.h) or through the directory (parts.h), and no more.
//         The leader: once all parts are there, merge (and remove) them; extra/timing.json
//         (timing.h), index.bin, manifest.json;
//         COMMIT.part -> COMMIT; sync the step's directories; rename to step-S (must be absent)
//         through the fence of the lease; sync the root; LATEST.
// Errors  kStorage "step S is not saved: STAGE: PATH: ...".  Single writes are tried four times.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/checkpoint/root/fence.h"
#include "ashlar/checkpoint/save/save_plan.h"
#include "ashlar/checkpoint/writers/coordination.h"
#include "ashlar/checkpoint/writers/phases.h"
#include "ashlar/checkpoint/writers/writer_part.h"
#include "ashlar/core/files.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/core/log.h"

namespace ashlar::checkpoint {

class StepWriter final : public AttemptFiles {
 public:
  // retry_delay_s: before the second try of a write; four times longer before each later one.
  // times: collects the times of phases; host: the host of this rank, as reported to the others.
  StepWriter(FileSystem& files, std::string root, SavePlan& plan, double retry_delay_s, Log& log,
             PhaseRecorder& times, std::string host = "");

  void begin();  // directories
  // Chunks in order, file after file, with their CRC32C; bytes may be empty for an empty file.
  void write_chunk(size_t file, int64_t chunk, std::span<const std::byte> bytes, uint32_t crc);
  // The leader, once no part is missing: commits and returns the step's directory.  parts: of the
  // others, if they came over the control channel; else they are in the directory.
  std::string publish(Fence& fence, std::optional<AllParts> parts = std::nullopt);
  // The times of this writer and of those whose parts publish() had, by rank.
  std::vector<RankTimes> rank_times() const;
  void abandon(Fence& fence) noexcept;  // the leader: removes what was written, as far as possible

  int64_t step() const override { return plan_.step; }
  const Id& attempt() const override { return plan_.attempt; }
  const std::string& directory() const override { return tmp_; }
  bool is_there() const override { return files_.stat(tmp_).has_value(); }
  bool begun() const { return begun_; }  // the directories were made
  std::vector<int> missing_writers() override;
  // Checks the sizes of the files here, on the rank that wrote them.
  WriterPart make_part() override;
  void publish_part() override;
  void check_witness(const std::string& path, int64_t size_bytes) override;

 private:
  void stage(const char* name, function_ref<void()> body);
  RankTimes own_times() const;
  void write_small(const std::string& path, std::string_view text);
  void sync_directories();
  void join_own_files();
  void merge_writers(std::optional<AllParts> parts);
  void remove_late_parts(const std::string& step);
  void make_visible(Fence& fence, const std::string& step, std::string_view commit);
  void write_whole(const std::string& name, std::string_view text);
  void write_retrying(function_ref<void()> write);
  std::string in_tmp(std::string_view name) const;
  std::string guard() const;

  FileSystem& files_;
  std::string root_, tmp_;
  SavePlan& plan_;
  double retry_delay_s_;
  Log& log_;
  PhaseRecorder& times_;
  std::string host_;
  std::unique_ptr<File> file_;  // being written
  Clock::time_point file_begin_;
  std::vector<float> file_s_;           // of those written
  std::vector<RankTimes> other_times_;  // the leader's, from the parts
  bool begun_ = false;
  bool joined_ = false;   // own files are in the index
  bool visible_ = false;  // renamed into place
};

}  // namespace ashlar::checkpoint
