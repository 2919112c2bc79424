// Which datasets of the training blend begin again in a step.
//
// An epoch of a dataset is all its samples once.  Each epoch that lasts kLongEpoch steps or more is
// reported; for a smaller dataset only the second, from which on samples repeat.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ashlar/data/loader_state.h"
#include "ashlar/data/sources.h"

namespace ashlar::train {

inline constexpr double kLongEpoch = 100;

struct EpochBegun {
  std::string dataset;
  int64_t epoch = 0;  // the first is 1
  int64_t samples = 0;
  double steps = 0;  // that an epoch lasts, about
};

class Epochs {
 public:
  Epochs(std::span<const data::Source> sources, const data::LoaderState& state);
  // The epochs to report of the steps between the state before and this one.  Allocates only if
  // there are any.
  std::vector<EpochBegun> advance(const data::LoaderState& state);

 private:
  struct Dataset {
    std::string prefix;
    int64_t samples = 0, epoch = 0;  // of the last sample that was taken
    double steps = 0;
  };
  std::vector<Dataset> datasets_;
};

}  // namespace ashlar::train
