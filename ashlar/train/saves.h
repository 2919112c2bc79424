// The checkpoints of a run on its ranks.  Every rank writes its part of each, or one rank of each
// machine writes for all of it (node_saves.h); rank 0 leads, reports and counts.  All ranks call
// the same functions in the same order.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/checkpoint/writers/save_channel.h"
#include "ashlar/comm/group.h"
#include "ashlar/train/device_snapshot.h"
#include "ashlar/train/group_load_ranks.h"
#include "ashlar/train/node_saves.h"
#include "ashlar/train/records/metrics.h"
#include "ashlar/train/state.h"

namespace ashlar::train {

std::string checkpoint_root(const Recipe& recipe);  // the root of the run's steps

// Rank 0 runs body on a thread of its own, however long that takes; all ranks return when it has
// ended.
void while_leader(comm::Group& ranks, std::string_view label, const std::function<void()>& body);
// The same on all ranks.
void on_threads(comm::Group& ranks, std::string_view label, const std::function<void()>& body);

class Saves {
 public:
  // Takes the lease of the checkpoint root and finds the newest good step there.
  // local_ranks: the ranks on this machine, which share its memory.
  // side_copies: of the GPU that has the state; null: the host has it.
  Saves(const Recipe& recipe, FileSystem& files, Log& log, comm::Group& ranks, int local_ranks,
        StateWriter& writer, kernels::gpu::SideCopies* side_copies = nullptr);
  ~Saves();

  // Called before the first save.  metrics: rank 0's, which outlive this object; the others
  // describe what saves will contain.
  void begin(Metrics* metrics, const RunCounters& counters, const HealthState& health,
             const data::LoaderState& cursor);

  // Reads the newest step that every rank finds whole, and sets damaged ones aside.  take() fills
  // the rank's part of the state; if it throws kCorrupt the step is rejected.  False: there is no
  // step.
  bool resume(const std::function<void(const checkpoint::StepReader&)>& take);

  void before_update();
  // A save that fails is a warning, here or in report(), and is tried a second time; if both tries
  // of two saves in a row fail, that is an error (kStorage).
  void save(const RunCounters& counters, const HealthState& health,
            const data::LoaderState& cursor);
  // Called before the end: saves the step unless the recipe says never, and waits until all is on
  // disk.
  void finish(const RunCounters& counters, const HealthState& health,
              const data::LoaderState& cursor);
  // The newest committed step, once no save is in progress; -1: none.
  int64_t newest_step();
  // The run ends by an error, and other ranks may hang or be gone: waits a few seconds for saves in
  // progress, then gives them up; the saves of a single rank end by themselves.  reason: logged
  // before that, if it was not reported yet.
  void give_up(const std::string& reason);
  // Reports saves that were committed or failed, and steps that were read back, since the last
  // call.
  void report();
  // Rank 0: the last save failed, so that the state of the next step is to be saved instead.
  bool wants_second_try() const { return wants_second_try_; }

 private:
  bool leads() const { return ranks_.rank() == 0; }
  bool writes() const { return writers_.ranks[size_t(writers_.mine)] == ranks_.rank(); }
  void open(const std::string& run_id);
  void require_one_directory();
  void check_files_together();
  void check_together();
  void take_shared(checkpoint::SaveRequest& request);
  checkpoint::SaveRequest request(const RunCounters&, const HealthState&,
                                  const data::LoaderState& cursor);
  void start(const checkpoint::SaveRequest& what);
  bool unsaved(int64_t step);
  void await_end();
  void settle();
  bool too_many_failed() const;
  void failed(int64_t step, const Error& error, bool is_last = true);
  checkpoint::StepReader reader_of(int64_t step);

  const Recipe& recipe_;
  FileSystem& files_;
  Log& log_;
  comm::Group& ranks_;
  GroupLoadRanks load_ranks_;
  const int local_ranks_;
  StateWriter& writer_;
  const Writers writers_;
  std::optional<DeviceSnapshot> device_;  // of a state that a GPU has
  Metrics* metrics_ = nullptr;
  const std::string root_;
  bool just_read_ = false;  // the newest step was read whole, and is in the system's memory
  std::unique_ptr<checkpoint::SaveChannel> channel_;       // null: saves go through their directory
  std::unique_ptr<checkpoint::Checkpointer> checkpoints_;  // of a rank that writes
  int64_t last_saved_ = -1;
  bool wants_second_try_ = false;
  int64_t second_try_ = -1;  // the step that was saved instead of another
};

}  // namespace ashlar::train
