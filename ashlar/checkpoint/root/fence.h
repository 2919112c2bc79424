// What passes between the holder of a checkpoint root and the root, so that no earlier one can.
//
// The holder of the lease owns the directory ROOT/.lease/fence-TOKEN.  Every rename of its that
// others see leads through there: what is removed or set aside is first renamed into it, what
// appears is renamed out of it.  Whoever takes the lease over empties that directory and removes
// it.  From then on each such rename of the earlier holder lacks its source or its target, however
// long the call was on its way: the earlier holder can change nothing any more.
//
// What stands in a fence            and what becomes of it when another closes the fence
//   bad-step-S-ATTEMPT              being set aside: goes on to .bad/, old-... to .superseded/
//   anything else                   an attempt before its commit, a step being removed, a text:
//                                   .trash-UUID, which the next holder removes
//
// Errors   kStorage of the call that failed; before it is thrown, `explain` may throw what says
//          more: that the fence was closed by another process, and whose the root is now.
// Threads  several may use one Fence at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"

namespace ashlar::checkpoint {

class Fence {
 public:
  // Makes the directory, durable, in a root that has a directory for leases.  token: 32 hex digits.
  Fence(FileSystem& files, std::string root, const std::string& token,
        std::function<void()> explain);

  FileSystem& files() const { return files_; }
  const std::string& root() const { return root_; }
  // No other process has closed it, as far as can be seen from here.
  bool open() const { return files_.stat(directory_).has_value(); }

  // Renames a directory to a name that must be free.  If that fails it stands where it was, or is
  // left in the fence.
  void publish(const std::string& from, const std::string& to);
  // Renames a step to DIRECTORY/NAME, which must be free.
  enum class Aside : uint8_t { kBad, kSuperseded };
  void set_aside(const std::string& step, Aside where, const std::string& name);
  // Takes a file or directory away from its name; returns where it stands now, for removal.
  std::string take_away(const std::string& path);
  void remove(const std::string& path);  // takes away and removes; absent is fine
  // The whole text under that name, durable, or what was there before: never a mix.
  void write(const std::string& path, std::string_view text);

 private:
  void rename(const std::string& from, const std::string& inside);
  void rename_through(const std::string& from, const std::string& inside, const std::string& to);
  std::string inside(std::string_view purpose) const;
  template <typename F>
  auto explained(F&& body);
  FileSystem& files_;
  std::string root_, directory_;
  std::function<void()> explain_;
};

// For what may be left behind: an error before says more than that it could not be removed.
void remove_quietly(FileSystem& files, const std::string& path);
// Paths of the fences in a root.
std::vector<std::string> fences_in(FileSystem& files, const std::string& root);
std::string fence_path(const std::string& root, const std::string& token);
// Empties and removes a fence; one that is not there is closed already.
void close_fence(FileSystem& files, const std::string& root, const std::string& fence);

}  // namespace ashlar::checkpoint
