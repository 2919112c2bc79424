// Whether a measured number is normal.  A verdict is a pure function of what it is given: the same
// result file gives the same verdicts, in any order of its rows.
//
// The expected value is, in this order: an earlier measurement of the same machine, the median of
// the nodes that were measured together, a law of collectives with a usual efficiency, a published
// number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::machine {

enum class Verdict {
  kAboveModel,  // more than 1.05 of the expected: the hint explains what may be behind it
  kGood,        // at least 0.95
  kNormal,      // at least 0.85
  kLow,         // at least 0.70
  kBad,         // less
  kUnstable,    // repeats differ too much for a judgement
  kDisturbed,   // other programs took the machine meanwhile
  kUnknown,     // nothing to compare with
  kWrongData,   // an operation gave wrong results
  kTimedOut,    // a rank did not come
  kRankLost,    // the process of a rank is gone
};
inline constexpr int kNumVerdicts = int(Verdict::kRankLost) + 1;
std::string_view to_string(Verdict verdict);

// 0; 3 for kLow if strict; 4 kBad; 5 kWrongData; 6 kTimedOut; 7 kDisturbed: nothing could be said;
// 8 kRankLost.
int exit_code(Verdict verdict, bool strict);

inline constexpr double kMaxSpread = 0.10;        // coefficient of variation of a stable number
inline constexpr double kMaxForeignShare = 0.03;  // of a core-second, by other programs

// The coefficient of variation of repeats with this (p90 - p10) / median, if they are normally
// distributed.
double cv_of_spread(double spread);

// The kind of measurement, on which hints depend.
enum class Subject {
  kCollective,
  kProduct,
  kMemory,
  kStorage,
  kLaunch,
};

struct Measured {
  std::string name;  // "all_reduce 64 MiB on 8 ranks", for the row and the message
  Subject subject = Subject::kCollective;
  double value = 0;
  std::string unit;
  bool larger_is_better = true;
  double cv = 0;             // standard deviation / mean of the repeats
  double foreign_share = 0;  // processor time of others, per core and second
  std::string neighbour;     // the program that took most of it; "" if unknown
  int64_t num_wrong = 0;
  bool timed_out = false;
  std::string cause;  // what the measurement found out itself, as "rank 3 of host n07 is slow"
  int rank = -1;      // whose number it is; -1: all ranks'
};

struct Expected {
  double value = 0;
  std::string from;  // "measured 2026-11-26", "the median of 4 nodes", "7 x 64 GB/s x 0.70"
};

struct Judgement {
  std::string name;
  Verdict verdict = Verdict::kUnknown;
  double value = 0;
  std::string unit;
  std::optional<double> ratio;  // to the expected value, above 1 is better
  std::string expected;         // "312.9 GB/s, 7 x 64 GB/s x 0.70"
  std::string hint;             // not empty unless good or normal
  int rank = -1;                // as Measured's
};

Judgement judge(const Measured& measured, const std::optional<Expected>& expected);

// Judges equal measurements of several nodes by their median; one above it is kGood.  With fewer
// than 3 nodes, each is kUnknown.
std::vector<Judgement> judge_fleet(std::span<const Measured> nodes);

// The most serious of all: wrong data, then a lost rank, timed out, bad, low, disturbed, unstable,
// unknown, and the rest.
Verdict worst_of(std::span<const Judgement> judgements);

}  // namespace ashlar::machine
