// The peak that MFU refers to: flop/s of all ranks and threads of a run at once, so that ranks
// which share CPUs are not counted as if each had them alone.  A run keeps it in RUN_DIR/peak.json,
// so that the MFU of all its starts refers to one number as long as machines, their number and
// threads stay alike.
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
  // stated: of a data sheet, which is neither measured nor kept.
  Peak(const kernels::Context& ctx, DType compute, const RankResources& resources,
       FileSystem& files, std::string run_dir, std::optional<double> stated = {});
  double find();  // flop/s
  // Threads that have just started may share a CPU for a while: measures a new peak again after the
  // first step and keeps the better of the two.
  double improve();
  std::string_view origin() const {
    return stated_ ? "of its data sheet" : is_kept_ ? "as in peak.json" : "measured";
  }

 private:
  double measure();

  const kernels::Context& ctx_;
  const DType compute_;
  const RankResources resources_;
  FileSystem& files_;
  const std::string run_dir_;
  const std::optional<double> stated_;
  std::string setup_;
  double flops_ = 0.0;
  bool is_kept_ = false;
};

// Measures on all ranks together, and gives the best of three measurements, each long enough for
// ranks and threads that share a CPU to have their turns.  num_cpus: on this machine.  All ranks
// call it.
double measure_peak(const kernels::Context& ctx, DType compute, comm::Group& ranks, int local_ranks,
                    int num_cpus);

// The setup that a peak belongs to: the type of the products, and the number of ranks with each
// processor, instruction set and number of threads.  All ranks call it and get the same.
std::string peak_setup(const kernels::Context& ctx, DType compute, comm::Group& ranks);

// The peak that the run keeps, if it is of this setup.  A file that cannot be read counts as none.
std::optional<double> kept_peak(FileSystem& files, const std::string& run_dir,
                                const std::string& setup);
void keep_peak(FileSystem& files, const std::string& run_dir, const std::string& setup,
               double peak_flops);

}  // namespace ashlar::train
