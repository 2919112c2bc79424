// The peak that MFU is a share of: flop/s of all ranks and threads of a run at once, so that ranks
// which share CPUs are not counted as if each had them for itself.  A run keeps it in
// RUN_DIR/peak.json, so that the MFU of all its starts is a share of the same number, as long as
// they are on such machines, in such numbers, with such threads.
#pragma once

#include <optional>
#include <string>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/kernels/context.h"
#include "ashlar/train/loop.h"

namespace ashlar::train {

// The peak of a run: the one that it keeps, or a new one.  All ranks call all methods.
class Peak {
 public:
  Peak(const kernels::Context& ctx, DType compute, const RankResources& resources,
       FileSystem& files, std::string run_dir);
  double find();  // flop/s
  // Threads that have just started may share a CPU for a while: after the first step a new peak is
  // measured again, and the better of the two moments kept.
  double improve();
  bool is_kept() const { return is_kept_; }  // it was found in peak.json

 private:
  double measure();

  const kernels::Context& ctx_;
  const DType compute_;
  const RankResources resources_;
  FileSystem& files_;
  const std::string run_dir_;
  std::string setup_;
  double flops_ = 0.0;
  bool is_kept_ = false;
};

// Measured on all ranks together: the best of three moments, each as long as it takes for ranks and
// threads that take turns on a CPU to have theirs.  num_cpus: of this machine.  All ranks call it.
double measure_peak(const kernels::Context& ctx, DType compute, comm::Group& ranks, int local_ranks,
                    int num_cpus);

// What a peak belongs to: type of the products, and how many ranks have which processor,
// instruction set and number of threads.  The same on all ranks, which all call it.
std::string peak_setup(const kernels::Context& ctx, DType compute, comm::Group& ranks);

// The peak that the run keeps, if it is of such a setup.  A file that cannot be read is as none.
std::optional<double> kept_peak(FileSystem& files, const std::string& run_dir,
                                const std::string& setup);
void keep_peak(FileSystem& files, const std::string& run_dir, const std::string& setup,
               double peak_flops);

}  // namespace ashlar::train
