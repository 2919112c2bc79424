// The size of a step on disk, added up from the plans of its writers one after another, so that a
// mesh of any size can be counted without keeping the plans.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ashlar/checkpoint/format/index.h"
#include "ashlar/checkpoint/save/save_plan.h"

namespace ashlar::checkpoint {

struct StepSize {
  int64_t files = 0;  // of the step, all but COMMIT, manifest.json and index.bin
  int64_t boxes = 0;  // in index.bin, including those of aliases
  int64_t index_bytes = 0;
  // The files of model and optimizer of one writer, headers included.
  int64_t max_writer_files = 0, max_writer_boxes = 0, max_writer_bytes = 0;
  double mean_writer_bytes = 0.0;
  int64_t data_files = 0, data_bytes = 0;  // the same for all writers
  friend bool operator==(const StepSize&, const StepSize&) = default;
};

class StepMeter {
 public:
  // Called once with the plan of each writer, before join_files().
  void add(const SavePlan& plan);
  void add(const StepMeter& others);  // of other writers
  StepSize size() const;

 private:
  struct Stored {
    int64_t num_boxes = 0;
    int ndim = 0;
  };
  void add(const FilePlan& file);
  void add_timing();
  StepSize size_of_all() const;
  StepSize size_;
  int64_t num_writers_ = 0;
  SectionCounts counts_{};
  std::map<std::string, Stored, std::less<>> tensors_;
  std::map<std::string, std::string> aliases_;
};

}  // namespace ashlar::checkpoint
