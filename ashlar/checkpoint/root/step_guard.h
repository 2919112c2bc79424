// Protection of steps against removal: by readers that have them open, and by pins.
//
// Each step has a guard, the directory ROOT/.lease/step-S-ATTEMPT/.  The holder of the root makes
// it before the step is visible and removes it before the step is removed; no other process does
// either.  A reader puts a lease into it, UUID.json, and a user who pins the step the file
// pin.json.  The file system removes a directory only while it is empty, and in one that is gone
// no process can make a file.  So reader and holder need not ask each other: either the lease is
// there and the step stays, or the guard is gone and the reader looks for another step.
//
// A reader's lease ends when the reader removes it.  The lease of a dead process is removed, and so
// is one that a process which cannot be judged from here has not refreshed for six intervals while
// the holder looked (lease_holder.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ashlar/checkpoint/root/fence.h"
#include "ashlar/checkpoint/root/lease_holder.h"
#include "ashlar/checkpoint/root/recovery.h"

namespace ashlar::checkpoint {

// ROOT/.lease/step-S-ATTEMPT.
std::string guard_path(const std::string& root, int64_t step, const std::string& attempt);
// The step is still there, of the same attempt.
bool is_there(FileSystem& files, const std::string& root, const StepRef& ref);
// Makes a file in the step's guard.  kGone: the step is gone, or goes at this moment.  kNone: it
// stays but has no guard, or one that this process may not write to.  If the guard is gone while
// the step is there, the call looks again for two seconds.
enum class GuardEntry : uint8_t { kEntered, kGone, kNone };
GuardEntry enter_guard(FileSystem& files, const std::string& root, const StepRef& ref,
                       const std::string& name, std::string_view text);

void pin(FileSystem& files, const std::string& root, const StepRef& ref);
void unpin(FileSystem& files, const std::string& root, const StepRef& ref);
bool is_pinned(FileSystem& files, const std::string& root, const StepRef& ref);
// Leases of readers in the step's guard, dead ones too.
std::vector<LeaseHolder> readers_of(FileSystem& files, const std::string& root, const StepRef& ref);

// The guards of a root's steps, for the holder of its lease.
class StepGuards {
 public:
  using Now = std::function<double()>;  // seconds, of a clock that never goes back
  StepGuards(Fence& fence, LeaseHolder me, Now now = nullptr);  // null: the machine's clock

  // Makes those of all steps that there are; removes those of steps that are gone.
  void make_all();
  // False: the step is pinned or being read, and stays.
  bool remove(const StepRef& ref);

 private:
  struct Seen {
    std::string text;
    double since_s;
  };
  bool has_ended(const std::string& lease);

  Fence& fence_;
  LeaseHolder me_;
  Now now_;
  std::map<std::string, Seen> seen_;  // leases of readers that cannot be judged, by path
};

}  // namespace ashlar::checkpoint
