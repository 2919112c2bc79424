// Costs by name: seconds of a kernel by its op, of an operation by its label.
#pragma once

#include <map>
#include <string>

#include "ashlar/sim/costs.h"

namespace ashlar::sim::testing_support {

struct SimpleCosts : Costs {
  explicit SimpleCosts(const RankPrograms& programs) : programs(programs) {}

  void build(FlowSets& sets) override {
    if (num_cores > 0) cores_resource = sets.add_resource(num_cores);
    if (disk_rate > 0) disk_resource = sets.add_resource(disk_rate);
  }
  double kernel_s(int rank, const ProgramEvent& event) const override {
    const auto slower = slow.find(rank);
    return kernels.at(programs.kernels[size_t(event.value)].op) *
           (slower != slow.end() ? slower->second : 1);
  }
  std::vector<OperationPart> parts(const RankGroup&, const RankOperation& o) const override {
    return {{.latency_s = on_cores ? 0 : operations.at(std::string(programs.label(o))),
             .core_s = on_cores ? operations.at(std::string(programs.label(o))) : 0}};
  }
  OperationPart message(int, int, int64_t) const override { return {.latency_s = message_s}; }
  CoreShare cores(int) const override { return {cores_resource, 1}; }
  double read_bytes() const override { return bytes_to_read; }
  int disk(int) const override { return disk_resource; }

  const RankPrograms& programs;
  std::map<std::string, double> kernels, operations;
  std::map<int, double> slow;
  double message_s = 0, bytes_to_read = 0, disk_rate = 0;
  int num_cores = 0;  // 0: kernels run alone
  bool on_cores = false;
  int cores_resource = -1, disk_resource = -1;
};

}  // namespace ashlar::sim::testing_support
