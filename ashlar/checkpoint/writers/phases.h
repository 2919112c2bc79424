// The phases of a writer's save and the times that they took, which ranks report to the leader.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/control/wire.h"
#include "ashlar/core/clock.h"

namespace ashlar::checkpoint {

enum class Phase : uint8_t {
  kWait,    // for a place among the saves in progress; for the members' copies
  kPlan,    // laying out files
  kCopy,    // the snapshot; at the same time as writing
  kHash,    // checksums of chunks, by the thread that copies
  kWrite,   // creating files and writing chunks
  kSync,    // files and directories
  kPart,    // reporting the part; the leader: waiting for the parts of all others
  kMerge,   // the leader: joining the parts of all to one index
  kCommit,  // the leader: index, manifest, COMMIT, rename
  kVerify,  // reading back what another writer wrote
  kRemove,  // the leader: removing old steps
};
inline constexpr int kNumPhases = 11;
std::string_view name_of(Phase phase);  // "writing": what a rank is doing
std::string_view key_of(Phase phase);   // "write": in files

struct PhaseTime {
  double start_s = 0;  // from the call of save() to the phase's first moment
  double seconds = 0;  // spent in it, all stretches together
  int64_t bytes = 0, retries = 0;
  bool any() const { return seconds > 0 || bytes > 0 || retries > 0; }
};
using PhaseTimes = std::array<PhaseTime, kNumPhases>;

// Collects the times of one save, which several threads measure.
class PhaseRecorder {
 public:
  explicit PhaseRecorder(Clock::time_point start) : start_(start) {}
  // Adds a stretch of the phase, from `begin` until now, or until `end`.
  void add(Phase phase, Clock::time_point begin, int64_t bytes = 0, int64_t retries = 0);
  void add_until(Phase phase, Clock::time_point begin, Clock::time_point end, int64_t bytes = 0,
                 int64_t retries = 0);
  PhaseTimes times() const;

 private:
  Clock::time_point start_;
  mutable std::mutex mutex_;
  PhaseTimes times_;
};

// One writer's times in one save, or one reader's in reading back.
struct RankTimes {
  int rank = 0;
  std::string host;  // "": not known
  PhaseTimes phases{};
  // Seconds from the creation of each of its files until it was synced, in the order in which the
  // index lists them; of a reader, what reading each took.
  std::vector<float> file_s;
};
// Encoding as a part of a message, and decoding.  kComm: the bytes are no times.
void put(control::WireWriter& out, const RankTimes& times);
RankTimes get_rank_times(control::WireReader& in);

// The current activity of a rank for an attempt.
struct RankStatus {
  Id attempt{};
  int rank = 0;
  std::string host;  // "": not known yet
  Phase phase = Phase::kWait;
  bool silent = false;                 // nothing was heard of it since `since`
  double since = 0;                    // when that began, by the clock of the caller
  int64_t bytes = 0, total_bytes = 0;  // done of; both 0 where the phase counts none
};
std::string place_of(int rank, const std::string& host);  // "rank 613 on n07"
// "rank 613 on n07: writing, 12 s, 1.2 of 4.0 GB"
std::string to_text(const RankStatus& status, double now);

}  // namespace ashlar::checkpoint
