// How unevenly ranks work: slow ranks, hot experts, loads of experts from a run.
//
// A trace counts every expert with the same number of rows.  Under expert parallelism the ranks of
// a group "ep" hold the experts in their order, as many each; with an uneven load the kernels and
// messages of a rank that depend on expert rows take its load over the mean.  Where every rank has
// all experts, ranks stay even whatever the load.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/sim/program.h"

namespace ashlar::sim {

// Choices of every expert in a step, by block.
using ExpertLoads = std::map<int32_t, std::vector<double>>;

// The last row of expert loads in a run's metrics (docs/metrics.md).
// Errors   kData: there is none, or it is damaged.
ExpertLoads parse_loads(std::string_view metrics, const std::string& name);

struct ImbalanceOptions {
  std::map<int, double> slow;  // rank: factor of its kernels' times
  std::optional<double> hot;   // the load of expert 0 over the mean
  std::optional<ExpertLoads> loads;
};

class Imbalance {
 public:
  // Errors   kConfig: no such rank; more than one expert's load; kData: loads of other experts.
  Imbalance(const RankPrograms& programs, const ImbalanceOptions& options);

  double of_kernel(int rank, const ProgramEvent& event) const;
  double of_rows(int rank, int32_t block) const;  // a block that has no loads: the mean of blocks
  // Whether any rank has other experts than another.
  bool splits_experts() const { return splits_experts_; }

 private:
  const RankPrograms& programs_;
  std::vector<double> slow_;                     // by rank
  std::vector<std::map<int32_t, double>> rows_;  // by rank and block
  std::vector<double> mean_rows_;                // by rank
  bool splits_experts_ = false;
};

}  // namespace ashlar::sim
