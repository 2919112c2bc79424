// A training step on several ranks: its time, the bytes that every rank sent compared with the
// formulas' floor, and the share of communication that is hidden under compute.
//
//   ran      time of operations on the communication thread, including waits for other ranks
//   waited   time of the training thread in Work::wait: the part of `ran` that is not hidden
//
// Overlap study: steps with the recipe's parallel.overlap, with overlap false, and muted
// (comm/group.h: the same ranks, kernels and threads, but operations move nothing and end at once),
// in turn.
//
//   hidden share = (t_waiting - t_overlapped) / (t_waiting - t_muted)
//
// parallel.overlap applies to gradients and weights of the data ranks only; halos, gathered keys
// and the sums of tensor parallelism always wait, and the ring of keys always computes meanwhile.
//
// Lanes (comm/group.h) help when bulk operations are slow.  delay_bulk_ms delays every operation of
// the data ranks, which reduce gradients and gather weights, as a slow network would; one_lane
// makes sums and keys queue behind them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/statistics.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/loop.h"

namespace ashlar::bench {

struct RanksOptions {
  int64_t steps = 10;
  bool overlap_study = false;  // needs two ranks
  double delay_bulk_ms = 0;    // delay of every operation of the data ranks, on every rank
  bool one_lane = false;       // all groups share one lane
  std::string engine;          // for the report
};

// One label of one group, in a step: mean over the ranks.
struct TrafficLine {
  std::string group, op, label;
  double launches = 0, sent_bytes = 0;
  double floor_bytes = 0;  // traffic_floor.h; 0: no formula
  double ran_s = 0, waited_s = 0;
};

struct OverlapStudy {
  Summary waiting, muted;  // seconds of a step, muted of the slowest rank; overlapped: RanksReport
  double waiting_s = 0;    // `waited` with overlap false
  double hidden_share = 0;
};

struct RanksReport {
  RanksOptions options;
  ParallelSpec parallel;  // resolved
  DType compute = DType::kF32;
  int num_ranks = 0, num_threads = 0;  // of each rank
  Summary step{};                      // seconds
  double tokens_per_s = 0;
  std::vector<TrafficLine> traffic;
  double sent_bytes = 0, max_sent_bytes = 0, waited_s = 0;  // of a rank in a step
  std::optional<OverlapStudy> study;
};

// Trains on random tokens.  Every rank calls it and gets the same, except for its own step times.
// Errors   kConfig: an overlap study of one rank; those of train::Trainer.
RanksReport measure_ranks(const Recipe& recipe, const train::RankResources& resources,
                          const RanksOptions& options);

std::string to_text(const RanksReport& report, const Recipe& recipe);
std::string to_json_line(const RanksReport& report, const Recipe& recipe);

}  // namespace ashlar::bench
