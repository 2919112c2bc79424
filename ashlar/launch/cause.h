// The cause of an attempt's end: observations, and the table that draws the conclusion.
//
// An attempt is one start of a run's ranks.  Whatever is observed about its end is an Evidence.
// Each row of the table has a predicate over one Evidence, the class that it speaks for, a
// confidence, and the remedy.  The row of the highest confidence wins, and the report keeps all
// evidence.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ashlar::launch {

enum class EvidenceKind : uint8_t {
  kExit,         // value: the exit code of the attempt, or of the rank that failed first
  kSignal,       // value: the signal that ended it
  kGone,         // the process of a rank is gone, and the attempt has not ended yet
  kOutOfMemory,  // the kernel killed a process of this control group for its memory
  kSuspended,    // a rank has been suspended (state T of /proc) for seconds
  kMissing,      // nothing moves, and the others wait in a collective for this rank
  kDisagree,     // the ranks are in different operations of one number
  kStuck,        // nothing moves, and every rank has come to the collective
  kSilent,       // nothing moves, and no collective says why
  kNodeLost,     // the agent of a node that has ranks is not heard any more
};
struct Evidence {
  EvidenceKind kind = EvidenceKind::kExit;
  int rank = -1;  // -1: unknown, or the attempt as a whole
  int value = 0;
  std::string text;  // for people: the last error of the rank, or what was seen
};

enum class FaultClass : uint8_t {
  kPreempted,
  kCrash,
  kKilled,
  kMemory,
  kHang,
  kMismatch,
  kFabric,
  kNodeLost,
  kHardware,
  kStorage,
  kCorruptStep,
  kNumeric,
  kData,
  kConfiguration,
  kUnknown,
};
const char* name_of(FaultClass fault);

// The launcher's answer to a cause.
struct Remedy {
  bool restart = true;    // false: it stops, with the code of the cause
  int most_in_a_row = 0;  // restarts without progress in between before it stops; 0: any number
  bool suspects_step = false;  // the step that was loaded may be to blame
};

struct Cause {
  FaultClass fault = FaultClass::kUnknown;
  double confidence = 0;
  Remedy remedy;
  EvidenceKind kind = EvidenceKind::kExit;  // of the evidence that decided; so are rank and text
  int rank = -1;
  int exit_code = 0;  // of the launcher, if it stops for this
  std::string text;
  std::vector<Evidence> evidence;

  // The same text for two ends that differ in numbers only: "crash: ashlar: internal error: ...".
  std::string signature() const;
};

// evidence: in the order of its arrival; not empty.  Of equal confidence the first one wins.
Cause classify(std::span<const Evidence> evidence);

}  // namespace ashlar::launch
