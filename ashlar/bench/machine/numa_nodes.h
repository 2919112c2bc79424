// NUMA nodes with memory and CPUs, from /sys/devices/system/node.
#pragma once

#include <string>
#include <vector>

#include "ashlar/core/affinity.h"
#include "ashlar/core/files.h"

namespace ashlar::bench {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // of the node, ascending
  friend bool operator==(const NumaNode&, const NumaNode&) = default;
};

// Nodes that have CPUs, ascending; none where the system does not say (root is "/sys/devices/
// system/node", or a made-up tree).
std::vector<NumaNode> numa_nodes(FileSystem& files, const std::string& root);

// "0-3,8": the numbers of a list as the kernel writes it; none for another text.
std::vector<int> numbers_of_list(std::string_view list);

// Binds the calling thread, and threads that it starts, to those of the CPUs that it may use; the
// destructor undoes it.
class BoundToCpus {
 public:
  explicit BoundToCpus(const std::vector<int>& cpus);
  int num_cpus() const {
    return int(cpus_.size());
  }  // 0: none of them may be used, and nothing is bound

 private:
  const Cpus cpus_;
  const BoundThread bound_;
};

}  // namespace ashlar::bench
