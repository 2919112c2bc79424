// The directory through which the holder of a checkpoint root changes it, so that an earlier holder
// cannot.
//
// The holder of the lease owns the directory ROOT/.lease/fence-TOKEN.  Every rename that others can
// see goes through it: what is removed or set aside is first renamed into it, and what appears is
// renamed out of it.  A process that takes the lease over empties that directory and removes it.
// From then on each such rename of the earlier holder lacks its source or its target, however long
// the call was in flight: the earlier holder can change nothing any more.
//
// Entry of a fence                  what becomes of it when another process closes the fence
//   bad-step-S-ATTEMPT              being set aside: moves on to .bad/, and old-... to .superseded/
//   anything else                   an attempt before its commit, a step being removed, a text:
//                                   .trash-UUID, which the next holder removes
//
// Errors   kStorage of the call that failed.  Before it is thrown, `explain` may throw a better
//          error: that another process closed the fence, and which process has the root now.
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
  // Makes the directory, durably, in a root that has a directory for leases.  token: 32 hex digits.
  Fence(FileSystem& files, std::string root, const std::string& token,
        std::function<void()> explain);

  FileSystem& files() const { return files_; }
  const std::string& root() const { return root_; }
  // No other process has closed it, as far as this one can see.
  bool open() const { return files_.stat(directory_).has_value(); }

  // Renames a directory to a name that must be free.  If that fails, the directory stays where it
  // was or is left in the fence.
  void publish(const std::string& from, const std::string& to);
  // Renames a step to DIRECTORY/NAME, which must be free.
  enum class Aside : uint8_t { kBad, kSuperseded };
  void set_aside(const std::string& step, Aside where, const std::string& name);
  // Moves a file or directory away from its name; returns its new path, for removal.
  std::string take_away(const std::string& path);
  void remove(const std::string& path);  // takes away and removes; absent is fine
  // Writes the whole text under that name, durably, or leaves what was there: never a mix.
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

// Removes what may be left behind, without an error, since an earlier error says more.
void remove_quietly(FileSystem& files, const std::string& path);
// Paths of the fences in a root.
std::vector<std::string> fences_in(FileSystem& files, const std::string& root);
std::string fence_path(const std::string& root, const std::string& token);
// Empties and removes a fence; if it is not there, it is closed already.
void close_fence(FileSystem& files, const std::string& root, const std::string& fence);

}  // namespace ashlar::checkpoint
