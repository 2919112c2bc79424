// The times of a save by rank and phase (extra/timing.json of its step), and the ranks that are
// slow.
//
//   {"format":"ashlar-timing","v":1,"step":12000,"num_writers":1024,"writers":[
//   {"rank":0,"host":"n00","phases":{"copy":[0.01,1.5,4194304,0],...},"files":[0.2,...]},
//   ...
//   ]}
//
// A phase has the seconds from the call of save() to its first moment, the seconds spent in it, its
// bytes and its retries; phases that took no time are left out.  The leader writes the file before
// it commits, so that commit, verify and remove are not in it.  files: see RankTimes::file_s.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/checkpoint/writers/phases.h"

namespace ashlar::checkpoint {

inline constexpr std::string_view kTimingFile = "timing.json";  // under extra/
inline constexpr int64_t kMaxTimingBytes = int64_t(64) << 20;   // that are read

struct Timing {
  int64_t step = 0;
  int num_writers = 1;
  // By rank: all of them, or rank 0 alone if the others had no links to report their times.
  std::vector<RankTimes> ranks;
};

// Linear in the number of writers: 10,240 take some 20 ms and 3 MB.
std::string build_timing(const Timing& timing);
// kCorrupt "PATH: what is found; what is expected".
Timing parse_timing(std::string_view text, const std::string& path);

// A rank that took much longer than the others for its own work: planning, copying, hashing,
// writing, syncing or reading back.
struct Outlier {
  int rank = 0;
  std::string host;
  Phase phase{};
  double seconds = 0, median_s = 0;  // of this rank; of all that are compared
};
// Slowest first.  A phase compares the ranks that have data in it; rank 0, which plans for all, is
// left out of planning.  Times are compared for the same work: the time of a rank with more bytes
// than the median is reduced in proportion, or, if that is more, by the times of its smallest
// files, as many as it has more than the median.  The rank is an outlier if this exceeds the lower
// median by more than 5 times the lower median deviation, half of the median, and 10 ms.
std::vector<Outlier> find_outliers(std::span<const RankTimes> ranks);
// "rank 3 on n07 is slow: writing took 2.10 s, median 0.42 s"
std::string to_text(const Outlier& outlier);

struct PhaseSummary {
  double min_s = 0, median_s = 0, max_s = 0;  // the lower median
  int rank = 0;                               // with the maximum, the lowest of several
};
// nullopt: no rank spent a microsecond in it.
std::optional<PhaseSummary> summarize(std::span<const RankTimes> ranks, Phase phase);

double store_seconds(const RankTimes& times);  // hashing, writing and syncing

}  // namespace ashlar::checkpoint
