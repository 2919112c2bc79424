// The reading of a run's datasets in the background, against their checksums (data/verify.h): one
// rank reads each copy for all that share it, and its error ends the others.
#pragma once

#include <memory>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/data/sources.h"
#include "ashlar/data/verify.h"

namespace ashlar::train {

// Without data.verify prepare() is not called, and the other methods do nothing.
class DataCheck {
 public:
  DataCheck(comm::Group& ranks, FileSystem& files, Log& log)
      : ranks_(ranks), files_(files), log_(log) {}

  // Logs what will be read.  All ranks call it.
  void prepare(const data::Sources& sources);
  // Starts the reading, on a rank that does it.  first_step: the step after which this start began.
  void begin(const data::Sources& sources, int64_t first_step);
  // Throws the error that was found, if any; waits at most patience_s for the reading to end.
  void require_good(double patience_s = 0.0);
  // Waits a little for the reading before the first save of a start: a run that ends before its
  // reading does would otherwise save weights trained on damaged tokens.  All ranks call it.
  void before_save();
  // Logs how much was read if the run ended before the reading.
  void report_rest();
  void stop() { verify_.reset(); }

 private:
  comm::Group& ranks_;
  FileSystem& files_;
  Log& log_;
  bool reads_ = false;  // this rank
  bool has_waited_ = false;
  int64_t first_step_ = 0;
  std::unique_ptr<data::BackgroundVerify> verify_;
};

}  // namespace ashlar::train
