// The costs of programs on the machine of a profile: kernel_times.h, operation_times.h and links.h
// joined.
//
//   CPUs       ranks share the cores of their node; lanes too, unless the profile gives them cores
//              of their own (launch.lane_cores); operations take the times of measured curves
//   devices    a rank has its device; operations move over links, as a curve of this operation on
//              as many ranks says, else by law
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ashlar/sim/imbalance.h"
#include "ashlar/sim/kernel_times.h"
#include "ashlar/sim/links.h"
#include "ashlar/sim/operation_times.h"

namespace ashlar::sim {

// A calibration's factors are of these.
inline constexpr std::array<std::string_view, 2> kCategories = {"kernels", "operations"};

struct MachineOptions {
  int ranks_per_node = 0;  // 0: of devices, as many as a node has; of CPUs, all
  std::string engine;      // of the curves; "": the one with the most
  double read_bytes = 0;   // of a rank and step
};

class MachineCosts final : public Costs {
 public:
  // Everything is looked up here, once for each kind of kernel.
  // Errors   kConfig: the profile lacks a number that is needed, with the command that measures it.
  MachineCosts(const machine::Profile& profile, const RankPrograms& programs,
               const WorkTimes& kernels, const Imbalance& imbalance, const MachineOptions& options);

  void build(FlowSets& sets) override;
  double kernel_s(int rank, const ProgramEvent& event) const override;
  std::vector<OperationPart> parts(const RankGroup& group,
                                   const RankOperation& operation) const override;
  OperationPart message(int from, int to, int64_t bytes) const override;
  CoreShare cores(int rank) const override;
  int lane_cores(int rank) const override;
  double received_scale(int rank, const RankOperation& operation) const override;
  double wake_busy_s() const override { return wake_busy_s_; }
  double contention(const ProgramEvent& event) const override;
  double read_bytes() const override { return options_.read_bytes; }
  int disk(int rank) const override;

  bool on_devices() const { return on_devices_; }
  int ranks_per_node() const { return ranks_per_node_; }
  const std::string& engine() const { return times_.engine(); }
  double threads() const { return threads_; }
  // Seconds of kernels of a program run of all ranks, and of operations, by source.
  std::array<double, 3> kernel_seconds() const;
  std::vector<double> seconds_of_kernels() const;  // by RankPrograms::kernels
  std::array<double, 3> operation_seconds() const;
  const std::vector<WorkTime>& kernel_times() const { return kernel_times_; }

 private:
  OperationTime time_of(const RankOperation& operation, int64_t num_ranks) const;
  double factor(std::string_view category) const;  // of the calibration, or 1
  OperationPart slowed(OperationPart part) const;  // by the factor of operations
  std::vector<OperationPart> by_curve(const RankGroup& group, const RankOperation& operation) const;
  bool has_curve(const RankOperation& operation, int64_t num_ranks) const;
  bool curves_for_all() const;

  const machine::Profile& profile_;
  const RankPrograms& programs_;
  const Imbalance& imbalance_;
  const MachineOptions options_;
  bool on_devices_ = false;
  int ranks_per_node_ = 1;
  OperationTimes times_;
  std::optional<ClusterLinks> links_;
  std::vector<WorkTime> kernel_times_;                                // by RankPrograms::kernels
  std::vector<double> contention_;                                    // likewise
  std::map<std::tuple<std::string, size_t>, double> groups_at_once_;  // by name and size
  double threads_ = 1, wake_busy_s_ = 0;
  double kernel_factor_ = 1, operation_factor_ = 1;
  std::vector<int> node_cores_, node_disks_;  // resources, by node
  bool lanes_have_cores_ = false;
};

// The rate of the first mounted file system whose reads were measured; 0: none.
double disk_gbps(const machine::Profile& profile);

}  // namespace ashlar::sim
