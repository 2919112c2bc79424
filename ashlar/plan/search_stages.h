// The stages of a search (search.h), for its parts: rules and formulas of one choice, and exact
// memory and simulation of a layout.
#pragma once

#include "ashlar/plan/search.h"
#include "ashlar/sizing/bucket_bytes.h"
#include "ashlar/sizing/machine_rates.h"

namespace ashlar::plan {

// With more ranks, one of every share of the model is simulated for all with that share.
inline constexpr int kMostReplayedRanks = 64;
// A step of more micro-batches is extrapolated from two short ones.
inline constexpr int64_t kMostReplayedMicroBatches = 64;

class SearchStages {
 public:
  SearchStages(const Recipe& base, DType compute, const MachineFile& machine,
               const SearchOptions& options, Log& log);

  // The rule that refuses a choice.
  struct Refusal {
    bool links = false;  // node_rule, which the user can force
    std::string reason;
  };
  // The layout of a choice with time and memory in closed form; a refusal by links comes with it.
  struct Judged {
    std::optional<Refusal> refusal;
    std::optional<SearchedLayout> layout;
  };
  Judged judge(const LayoutChoice& choice) const;
  // The least time in closed form over all sizes of buckets; everything else stays.
  double promise_s(const SearchedLayout& layout) const;
  // The refusal of a choice by links alone, which takes no recipe; "" if there is none.
  std::string links_problem(const LayoutChoice& choice) const;

  bool may_fit(const SearchedLayout& layout) const {
    return memory_bytes_ <= 0 || kCertainShare * layout.formula_bytes <= double(memory_bytes_);
  }
  // By a dry run.
  bool fits(SearchedLayout& layout);
  void simulate(SearchedLayout& layout);
  // The layout that needs least of those that were dry-run.
  const std::optional<SearchedLayout>& smallest() const { return smallest_; }

  const SearchSpace& space() const { return space_; }
  const sizing::MachineRates& rates() const { return rates_; }
  const MachineFile& machine() const { return machine_; }
  const SearchOptions& options() const { return options_; }
  DType compute() const { return compute_; }
  Log& log() const { return log_; }
  int64_t memory_bytes() const { return memory_bytes_; }
  int64_t num_dry_runs() const { return int64_t(memory_.num_layouts()); }
  int64_t num_simulated() const { return num_simulated_; }
  // The recipe of a choice, with parallel.bucket_bytes as a number.
  Recipe recipe_of(const LayoutChoice& choice) const;
  sizing::StepShape shape_of(const SearchedLayout& layout) const;
  // The step of a layout on another machine.
  SimulatedStep simulated_on(const MachineFile& machine, const SearchedLayout& layout);

 private:
  const MachineFile& machine_;
  const SearchOptions& options_;
  DType compute_;
  Log& log_;
  SearchSpace space_;
  sizing::MachineRates rates_;
  sizing::SaturatingSizes sizes_;
  bool mesh_ = false;
  int64_t memory_bytes_ = 0, num_simulated_ = 0;
  LayoutMemory memory_;
  std::optional<SearchedLayout> smallest_;
};

// Means of the ranks that were replayed.
sim::RankShare mean_share(const SimulatedStep& step);

// The parts of a step in closed form, by name.
std::vector<std::pair<std::string, double>> parts_of(const sizing::StepTime& time);

std::vector<Neighbour> neighbours_of(SearchStages& stages, const SearchedLayout& best);
std::vector<Sensitivity> sensitivity_of(SearchStages& stages,
                                        const std::vector<SearchedLayout>& layouts);
std::vector<ClassShare> classes_of(SearchStages& stages, const SearchedLayout& best);

}  // namespace ashlar::plan
