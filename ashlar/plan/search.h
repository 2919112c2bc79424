// `ashlar plan search`: the best layouts of a recipe on the machine of a profile, and why others
// are worse.  docs/plan.md has the guide.
//
// How it works.  A search goes through four stages, each slower and more exact than the one before:
//
//   rules        what the trainer refuses, and groups that the links of a node do not suit
//   formulas     memory and time in closed form (sizing/step_time.h); memory only cuts what is
//                above the machine's by more than the formulas were ever wrong
//   dry runs     exact memory of the fullest ranks, in the order of the formulas' times, until
//                enough layouts fit that differ in more than details
//   simulation   the step of these (plan/simulate.h)
//
// Everything is deterministic: the same input gives the same answer.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/log.h"
#include "ashlar/plan/search_memory.h"
#include "ashlar/plan/search_space.h"
#include "ashlar/plan/simulate.h"
#include "ashlar/sizing/step_time.h"

namespace ashlar::plan {

// The share of the closed memory that counts against the machine's: the formulas were at most this
// much above a dry run (tests/plan/search_test.cpp).
inline constexpr double kCertainShare = 0.75;

struct SearchOptions {
  Goal goal = Goal::kTime;
  int num_ranks = 1;
  int ranks_per_node = 0;  // sim/machine_costs.h
  std::string engine;
  std::vector<std::string> fixed;  // "section.key=value"
  int top = 5, num_simulated = 20;
  int64_t memory_bytes = 0;  // of a rank; 0: the machine's
};

// A layout with all that is known of it.
struct SearchedLayout {
  LayoutChoice choice;
  std::string keys;                                          // that differ from the recipe's
  ParallelSpec parallel;                                     // resolved
  int64_t micro_batch = 1, sequence_length = 1, tokens = 0;  // tokens of a step
  sizing::StepTime time;                                     // in closed form
  double promise_s = 0;  // in closed form, with the best size of buckets
  double formula_bytes = 0;
  std::optional<RankMemory> memory;
  std::optional<SimulatedStep> step;

  double step_s() const { return step ? step->step_s + step->between_s : time.total_s; }
  double tokens_per_s() const { return double(tokens) / step_s(); }
};

// A change of one key of the best layout.
struct Neighbour {
  enum class Why : uint8_t { kRefused, kLinks, kMemory, kSlower, kEqual };
  std::string key;  // "parallel.tp=8"
  Why why = Why::kSlower;
  std::string reason;      // in words
  double slower = 0;       // its time over the best one's, minus 1; 0: unknown
  int64_t over_bytes = 0;  // kMemory: more than the machine has; goal min-memory: than the best
};

// The effect of +-10 % of a number of the profile.
struct Sensitivity {
  std::string number;
  double less = 0, more = 0;         // change of the best layout's time, relative
  std::string less_best, more_best;  // the layout that would be best instead; "": the same
  bool simulated = false;            // these are simulated
};

// Ranks of the best layout that need the same memory.
struct ClassShare {
  std::vector<int> ranks;
  int64_t peak_bytes = 0;
  std::array<int64_t, kNumTags> tag_bytes{};
  sim::RankShare share;  // of the first of them
};

struct SearchResult {
  std::vector<SearchedLayout> best;  // best first
  std::vector<Neighbour> neighbours;
  std::vector<Sensitivity> sensitivity;
  std::vector<ClassShare> classes;
  int64_t num_layouts = 0, num_refused = 0, num_links = 0, num_formula = 0, num_timed = 0;
  int64_t num_dry_runs = 0, num_too_large = 0, num_simulated = 0;
  std::map<std::string, int64_t> refusals;     // by the key that the rule names first
  std::optional<SearchedLayout> nearest_miss;  // if nothing fits: what needs least
  int64_t memory_bytes = 0;
  std::string memory_from;  // "device.memory"
  double flop_a_token = 0, peak_flop = 0;
  std::string peak_from;
  std::vector<std::string> notes;
};

// Errors   kConfig: as simulate_step; no layout is legal.
SearchResult search(const Recipe& base, DType compute, const MachineFile& machine,
                    const SearchOptions& options, Log& log);
// The best layouts alone, best first, in a part of the time.  Empty: none is legal and fits.
std::vector<SearchedLayout> best_layouts(const Recipe& base, DType compute,
                                         const MachineFile& machine, const SearchOptions& options,
                                         Log& log);

std::string describe(const SearchResult& result, const Recipe& base, const MachineFile& machine,
                     const SearchOptions& options);
std::string to_json(const SearchResult& result, const Recipe& base, const MachineFile& machine,
                    const SearchOptions& options);

}  // namespace ashlar::plan
