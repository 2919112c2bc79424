#include "ashlar/launch/cause.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "ashlar/core/error.h"
#include "ashlar/core/signals.h"

namespace ashlar::launch {
namespace {

constexpr int kSignalBase = 128;  // a shell's exit code of a signal is above it
constexpr int kHangExitCode = 20;
constexpr int kExecFailedCode = 127;  // there is no such program, as mpirun

bool exits_with(const Evidence& seen, std::initializer_list<int> codes) {
  return seen.kind == EvidenceKind::kExit && std::ranges::find(codes, seen.value) != codes.end();
}
bool exits_with(const Evidence& seen, ErrorKind kind) {
  return exits_with(seen, {int(kind)});
}
bool killed_by(const Evidence& seen, std::initializer_list<int> signals) {
  return seen.kind == EvidenceKind::kSignal &&
         std::ranges::find(signals, seen.value) != signals.end();
}

struct CauseRow {
  FaultClass fault;
  double confidence;
  Remedy remedy;
  bool (*holds)(const Evidence&);
};
using enum EvidenceKind;
constexpr Remedy kStop{.restart = false};
constexpr Remedy kOnce{.most_in_a_row = 1};
constexpr Remedy kThrice{.most_in_a_row = 3};
constexpr Remedy kRestart{};
constexpr Remedy kRestartAndSuspect{.suspects_step = true};

constexpr std::array kCauseRows{
    CauseRow{FaultClass::kPreempted, 1.0, kStop,
             [](const Evidence& e) {
               return exits_with(e, {int(ErrorKind::kPreempted), kUnsavedExitCode}) ||
                      killed_by(e, {SIGTERM, SIGINT, SIGHUP, SIGUSR1});
             }},
    CauseRow{FaultClass::kMemory, 1.0, kOnce,
             [](const Evidence& e) { return e.kind == kOutOfMemory; }},
    CauseRow{FaultClass::kMemory, 1.0, kStop,
             [](const Evidence& e) { return exits_with(e, ErrorKind::kMemory); }},
    CauseRow{
        FaultClass::kConfiguration, 1.0, kStop,
        [](const Evidence& e) {
          return exits_with(e, {int(ErrorKind::kConfig), int(ErrorKind::kLaunch), kExecFailedCode});
        }},
    CauseRow{FaultClass::kMismatch, 1.0, kStop,
             [](const Evidence& e) {
               return e.kind == kDisagree || (exits_with(e, ErrorKind::kComm) &&
                                              e.text.find("do not call the same") != e.text.npos);
             }},
    CauseRow{FaultClass::kCorruptStep, 1.0, kThrice,
             [](const Evidence& e) { return exits_with(e, ErrorKind::kCorrupt); }},
    CauseRow{FaultClass::kNodeLost, 0.95, kRestart,
             [](const Evidence& e) { return e.kind == kNodeLost; }},
    // A launcher of one machine has no other to go to (Policy).
    CauseRow{FaultClass::kHardware, 0.95, kStop,
             [](const Evidence& e) { return exits_with(e, ErrorKind::kDevice); }},
    CauseRow{FaultClass::kCrash, 0.9, kRestartAndSuspect,
             [](const Evidence& e) {
               return exits_with(e, {kBugExitCode}) ||
                      killed_by(e, {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE});
             }},
    CauseRow{FaultClass::kStorage, 0.9, kOnce,
             [](const Evidence& e) { return exits_with(e, ErrorKind::kStorage); }},
    CauseRow{FaultClass::kData, 0.9, kThrice,
             [](const Evidence& e) { return exits_with(e, ErrorKind::kData); }},
    CauseRow{FaultClass::kHang, 0.9, kRestartAndSuspect,
             [](const Evidence& e) { return e.kind == kSuspended || e.kind == kMissing; }},
    CauseRow{FaultClass::kNumeric, 0.8, kStop,
             [](const Evidence& e) { return exits_with(e, ErrorKind::kNumeric); }},
    CauseRow{FaultClass::kKilled, 0.7, kRestart,
             [](const Evidence& e) { return killed_by(e, {SIGKILL}); }},
    CauseRow{FaultClass::kFabric, 0.6, kRestart,
             [](const Evidence& e) { return e.kind == kStuck; }},
    CauseRow{
        FaultClass::kHang, 0.5, kRestartAndSuspect,
        [](const Evidence& e) { return e.kind == kSilent || exits_with(e, ErrorKind::kComm); }},
    CauseRow{FaultClass::kUnknown, 0.3, kRestartAndSuspect, [](const Evidence&) { return true; }},
};

// The code with which the launcher ends if it stops for this.
int code_of(FaultClass fault, const Evidence& seen) {
  switch (seen.kind) {
    case kExit:
      return seen.value == kExecFailedCode ? int(ErrorKind::kLaunch) : seen.value;
    case kSignal:
      return fault == FaultClass::kPreempted ? int(ErrorKind::kPreempted)
                                             : kSignalBase + seen.value;
    case kOutOfMemory:
      return int(ErrorKind::kMemory);
    case kDisagree:
      return int(ErrorKind::kComm);
    case kNodeLost:
      return int(ErrorKind::kDevice);
    case kGone:
      return kBugExitCode;
    case kSuspended:
    case kMissing:
    case kStuck:
    case kSilent:
      break;
  }
  return kHangExitCode;
}

}  // namespace

const char* name_of(FaultClass fault) {
  constexpr std::array kNames{"preempted",    "crash",   "killed",    "memory",        "hang",
                              "mismatch",     "fabric",  "node lost", "hardware",      "storage",
                              "corrupt step", "numeric", "data",      "configuration", "unknown"};
  return kNames[size_t(fault)];
}

std::string Cause::signature() const {
  std::string shape;
  for (const char c : text)
    if (!std::isdigit(static_cast<unsigned char>(c)))
      shape += c;
    else if (shape.empty() || shape.back() != '#')
      shape += '#';
  return fmt::format("{}: {}", name_of(fault), shape);
}

Cause classify(std::span<const Evidence> evidence) {
  ASHLAR_ASSERT(!evidence.empty());
  Cause cause;
  for (const Evidence& seen : evidence)
    for (const CauseRow& row : kCauseRows)
      if (row.confidence > cause.confidence && row.holds(seen)) {
        cause.fault = row.fault;
        cause.confidence = row.confidence;
        cause.remedy = row.remedy;
        cause.kind = seen.kind;
        cause.rank = seen.rank;
        cause.exit_code = code_of(row.fault, seen);
        cause.text = seen.text;
      }
  cause.evidence.assign(evidence.begin(), evidence.end());
  return cause;
}

}  // namespace ashlar::launch
