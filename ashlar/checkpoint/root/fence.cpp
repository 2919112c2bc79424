// How it works.  A rename of the holder has one end in the fence:
//
//   publish     X -> fence/new-UUID -> step-S     set_aside   step-S -> fence/bad-NAME -> .bad/NAME
//   take_away   X -> fence/gone-UUID              write       fence/text-UUID -> path
//
// close_fence() moves everything out and then removes the directory, and repeats that until it
// succeeds; only an empty directory can be removed.  It would not be enough to check that a fence
// is open before a rename, since the process may sleep in between.  Nor would it be enough to
// rename the directory aside, since a call in flight may have found the directory already, by
// handle.  But no call can rename into or out of a directory that was removed, neither by path nor
// by handle.
#include "ashlar/checkpoint/root/fence.h"

#include <algorithm>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

constexpr std::string_view kFencePrefix = "fence-";
struct AsideNames {
  std::string_view prefix;  // in a fence
  const char* directory;    // of the root
};
constexpr AsideNames kAside[] = {{"bad-", kBadDirectory}, {"old-", kSupersededDirectory}};
constexpr int kClosingRounds = 100;  // an earlier holder that lives keeps filling its fence

// Moves one entry of a fence that is being closed to where it belongs.
void carry_out(FileSystem& files, const std::string& root, const std::string& fence,
               const std::string& name) {
  const std::string from = join(fence, name);
  const auto aside =
      std::find_if(std::begin(kAside), std::end(kAside),
                   [&](const AsideNames& each) { return name.starts_with(each.prefix); });
  const bool kept = aside != std::end(kAside);
  std::string to = join(root, kTrashPrefix + to_text(random_id()));
  if (kept) {
    const std::string directory = join(root, aside->directory);
    make_own_directory(files, directory);
    to = join(directory, name.substr(aside->prefix.size()));
    if (files.stat(to)) to = fmt::format("{}-{}", to, to_text(random_id()));
  }
  try {
    files.rename_new(from, to);
  } catch (const Error&) {
    if (files.stat(from)) throw;  // else the earlier holder was faster
  }
  if (kept) files.sync_directory(parent_of(to));
}

}  // namespace

void remove_quietly(FileSystem& files, const std::string& path) {
  try {
    files.remove_all(path);
  } catch (const Error&) {  // the first error says more
  }
}

std::string fence_path(const std::string& root, const std::string& token) {
  return join(join(root, kLeaseDirectory), fmt::format("{}{}", kFencePrefix, token));
}

std::vector<std::string> fences_in(FileSystem& files, const std::string& root) {
  const std::string directory = join(root, kLeaseDirectory);
  std::vector<std::string> fences;
  for (const std::string& name : files.list(directory))
    if (name.starts_with(kFencePrefix)) fences.push_back(join(directory, name));
  return fences;
}

void close_fence(FileSystem& files, const std::string& root, const std::string& fence) {
  for (int round = 1; files.stat(fence); ++round) {
    try {
      for (const std::string& name : files.list(fence)) carry_out(files, root, fence, name);
      files.remove(fence);
    } catch (const Error&) {
      if (round == kClosingRounds && files.stat(fence)) throw;
    }
  }
  files.sync_directory(parent_of(fence));  // a fence must not come back after a power cut
}

Fence::Fence(FileSystem& files, std::string root, const std::string& token,
             std::function<void()> explain)
    : files_(files),
      root_(std::move(root)),
      directory_(fence_path(root_, token)),
      explain_(std::move(explain)) {
  files_.make_directories(directory_);
  files_.sync_directory(parent_of(directory_));
  files_.sync_directory(root_);
}

template <typename F>
auto Fence::explained(F&& body) {
  try {
    return body();
  } catch (const Error&) {
    explain_();
    throw;
  }
}

std::string Fence::inside(std::string_view purpose) const {
  return join(directory_, fmt::format("{}-{}", purpose, to_text(random_id())));
}

// Over a network a rename that was made may be answered with an error, because the first answer was
// lost and the call was repeated.  No other process uses the name inside.
void Fence::rename(const std::string& from, const std::string& inside) {
  try {
    files_.rename_new(from, inside);
  } catch (const Error&) {
    if (files_.stat(from) || !files_.stat(inside)) throw;
  }
}

void Fence::rename_through(const std::string& from, const std::string& inside,
                           const std::string& to) {
  rename(from, inside);
  try {
    files_.rename_new(inside, to);
  } catch (const Error&) {
    try {
      files_.rename_new(inside, from);
    } catch (const Error&) {  // the first error says more; the next start finds it in the fence
    }
    throw;
  }
}

void Fence::publish(const std::string& from, const std::string& to) {
  explained([&] { rename_through(from, inside("new"), to); });
}

void Fence::set_aside(const std::string& step, Aside where, const std::string& name) {
  const AsideNames& names = kAside[size_t(where)];
  const std::string directory = join(root_, names.directory);
  explained([&] {
    make_own_directory(files_, directory);
    rename_through(step, join(directory_, fmt::format("{}{}", names.prefix, name)),
                   join(directory, name));
    files_.sync_directory(directory);
    files_.sync_directory(root_);
  });
}

std::string Fence::take_away(const std::string& path) {
  const std::string gone = inside("gone");
  explained([&] { rename(path, gone); });
  return gone;
}

void Fence::remove(const std::string& path) {
  std::string gone;
  try {
    gone = take_away(path);
  } catch (const Error& error) {
    // An earlier holder that ends late may remove what was its own.
    if (error.kind() != ErrorKind::kStorage || files_.stat(path)) throw;
    return;
  }
  explained([&] { files_.remove_all(gone); });
}

void Fence::write(const std::string& path, std::string_view text) {
  const std::string aside = inside("text");
  explained([&] {
    try {
      const auto file = files_.create(aside);
      file->write_at(std::as_bytes(std::span(text)), 0);
      file->sync();
      file->close();
      files_.replace(aside, path);
    } catch (const Error&) {
      remove_quietly(files_, aside);
      throw;
    }
    files_.sync_directory(parent_of(path));
  });
}

}  // namespace ashlar::checkpoint
