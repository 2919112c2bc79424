// Checks that prepared datasets still hold what was prepared.
//
// Opening a dataset checks the index and all sizes.  Damage to tokens shows only when the whole
// .bin is read and its CRC-32C is compared with the one in PREFIX.json.  Datasets of other programs
// have no PREFIX.json and so no checksum.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ashlar/core/error.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/data/sources.h"

namespace ashlar::data {

struct DatasetReport {
  std::string finding;                           // one line; "": no fault
  int64_t documents = 0, tokens = 0, bytes = 0;  // of .bin and .mask
  bool has_checksum = false;
};

// Checks index, sizes, sidecar, tokenizer and the whole .bin, until the first finding.  Shows
// progress. Errors  kData if no file begins with that prefix; kStorage if the machine cannot read.
DatasetReport verify_dataset(FileSystem& files, const std::string& prefix, Log& log);

// Reads the .bin files of a run on a separate thread, each file once, and skips those without a
// checksum.
//
// Cost     the thread has the lowest priority of the machine's scheduler and reads at most
//          `bytes_per_s`, so that compute and the loader's reading come first; 1 MiB of memory.
// Threads  all calls are for one thread.  The destructor stops reading.
class BackgroundVerify {
 public:
  static constexpr double kBytesPerS = 256 << 20;  // a tebibyte in 70 minutes
  BackgroundVerify(FileSystem& files, const Sources& sources, double bytes_per_s = kBytesPerS);
  ~BackgroundVerify();
  BackgroundVerify(const BackgroundVerify&) = delete;
  BackgroundVerify& operator=(const BackgroundVerify&) = delete;

  // The error of the first bad dataset: kData, or kStorage from reading it.  Waits at most
  // `patience_s` for reading to end.
  std::optional<Error> failure(double patience_s = 0);
  bool done() const;  // all is read, or a fault was found
  int64_t bytes_done() const;
  int64_t bytes_total() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::data
