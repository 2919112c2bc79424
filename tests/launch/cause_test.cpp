#include "ashlar/launch/cause.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace ashlar::launch {
namespace {

Evidence exit_of(int code, std::string text = "") {
  return {EvidenceKind::kExit, 0, code, std::move(text)};
}
Evidence signal_of(int number) {
  return {EvidenceKind::kSignal, 1, number, ""};
}
Evidence seen(EvidenceKind kind, int rank = 3) {
  return {kind, rank, 0, "seen"};
}

struct CauseCase {
  std::vector<Evidence> evidence;
  FaultClass fault;
  bool restart;
  int exit_code;
};

// The exit codes are those of docs/errors.md.
TEST(Cause, OfEveryKindOfEnd) {
  const std::vector<CauseCase> cases{
      {{exit_of(27)}, FaultClass::kPreempted, false, 27},
      {{exit_of(28)}, FaultClass::kPreempted, false, 28},
      {{signal_of(SIGTERM)}, FaultClass::kPreempted, false, 27},
      {{exit_of(2)}, FaultClass::kConfiguration, false, 2},
      {{exit_of(64)}, FaultClass::kConfiguration, false, 64},
      {{exit_of(127)}, FaultClass::kConfiguration, false, 64},
      {{exit_of(22)}, FaultClass::kMemory, false, 22},
      {{exit_of(23)}, FaultClass::kNumeric, false, 23},
      {{exit_of(24)}, FaultClass::kData, true, 24},
      {{exit_of(25)}, FaultClass::kStorage, true, 25},
      {{exit_of(26)}, FaultClass::kCorruptStep, true, 26},
      {{exit_of(29)}, FaultClass::kHardware, false, 29},
      {{exit_of(30)}, FaultClass::kHang, true, 30},
      {{exit_of(30, "rank 0 and rank 3 do not call the same: rank 0 calls ...")},
       FaultClass::kMismatch,
       false,
       30},
      {{exit_of(70)}, FaultClass::kCrash, true, 70},
      {{signal_of(SIGABRT)}, FaultClass::kCrash, true, 134},
      {{signal_of(SIGSEGV)}, FaultClass::kCrash, true, 139},
      {{signal_of(SIGKILL)}, FaultClass::kKilled, true, 137},
      {{seen(EvidenceKind::kOutOfMemory), signal_of(SIGKILL)}, FaultClass::kMemory, true, 22},
      {{seen(EvidenceKind::kGone), signal_of(SIGKILL)}, FaultClass::kKilled, true, 137},
      {{seen(EvidenceKind::kGone)}, FaultClass::kUnknown, true, 70},
      {{seen(EvidenceKind::kSuspended)}, FaultClass::kHang, true, 20},
      {{seen(EvidenceKind::kMissing)}, FaultClass::kHang, true, 20},
      {{seen(EvidenceKind::kSilent)}, FaultClass::kHang, true, 20},
      {{seen(EvidenceKind::kStuck)}, FaultClass::kFabric, true, 20},
      {{seen(EvidenceKind::kDisagree)}, FaultClass::kMismatch, false, 30},
      {{exit_of(1)}, FaultClass::kUnknown, true, 1},
  };
  for (const CauseCase& item : cases) {
    const Cause cause = classify(item.evidence);
    EXPECT_STREQ(name_of(cause.fault), name_of(item.fault));
    EXPECT_EQ(cause.remedy.restart, item.restart) << name_of(item.fault);
    EXPECT_EQ(cause.exit_code, item.exit_code) << name_of(item.fault);
    EXPECT_EQ(cause.evidence.size(), item.evidence.size());
  }
}

// A rank that is missing is the cause, and those that waited for it in vain are not.
TEST(Cause, IsTheRankForWhichOthersWaited) {
  const Cause cause =
      classify(std::vector{exit_of(30, "waited 300 s"), seen(EvidenceKind::kMissing, 7)});
  EXPECT_EQ(cause.fault, FaultClass::kHang);
  EXPECT_EQ(cause.rank, 7);
  EXPECT_EQ(cause.text, "seen");
  EXPECT_EQ(cause.evidence.size(), 2u);
}

TEST(Cause, SignatureIgnoresNumbers) {
  const Cause one = classify(std::vector{exit_of(24, "text.bin: byte 17 of 200")});
  const Cause other = classify(std::vector{exit_of(24, "text.bin: byte 9 of 31")});
  EXPECT_EQ(one.signature(), other.signature());
  EXPECT_EQ(one.signature(), "data: text.bin: byte # of #");
  EXPECT_NE(one.signature(), classify(std::vector{exit_of(24, "text.idx: byte 9")}).signature());
}

}  // namespace
}  // namespace ashlar::launch
