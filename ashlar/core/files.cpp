#include "ashlar/core/files.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

void write_and_sync(FileSystem& files, const std::string& path, std::string_view text) {
  const auto file = files.create(path);
  file->write_at(std::as_bytes(std::span(text)), 0);
  file->sync();
  file->close();
}

}  // namespace

void FileSystem::pause(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::string read_text(FileSystem& files, const std::string& path, int64_t max_bytes,
                      LinkPolicy links) {
  const auto file = files.open(path, links);
  const int64_t size = file->size();
  ASHLAR_REQUIRE(size <= max_bytes, kStorage, "read {}: the file has {} bytes; expected at most {}",
                 path, size, max_bytes);
  std::string text(static_cast<size_t>(size), '\0');
  file->read_at(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

void write_text(FileSystem& files, const std::string& path, std::string_view text) {
  // The process number keeps two writers apart.  A file that a killed process of the same number
  // left is removed first.
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  if (files.stat(temporary)) files.remove(temporary);
  try {
    write_and_sync(files, temporary, text);
    files.replace(temporary, path);
  } catch (const Error&) {
    try {
      files.remove_all(temporary);
    } catch (const Error&) {  // the first error is more informative
    }
    throw;
  }
  files.sync_directory(parent_of(path));
}

void remove_temporaries(FileSystem& files, const std::string& directory) {
  constexpr std::string_view kEnd = ".tmp";
  for (const std::string& name : files.list(directory)) {
    if (!name.ends_with(kEnd)) continue;
    const std::string_view rest = std::string_view(name).substr(0, name.size() - kEnd.size());
    const size_t dot = rest.find_last_not_of("0123456789");
    if (dot != rest.npos && dot > 0 && dot + 1 < rest.size() && rest[dot] == '.')
      files.remove_all(join(directory, name));
  }
}

void make_durable_directories(FileSystem& files, const std::string& path) {
  std::vector<std::string> made;
  for (std::string at = path; !files.stat(at); at = parent_of(at)) {
    made.push_back(at);
    if (parent_of(at) == at || parent_of(at) == ".") break;
  }
  files.make_directories(path);
  for (const std::string& directory : made) files.sync_directory(parent_of(directory));
}

void make_own_directory(FileSystem& files, const std::string& path) {
  const auto info = files.stat(path);
  ASHLAR_REQUIRE(!info || info->type != FileInfo::Type::kLink, kStorage,
                 "make_directories {}: it is a link; expected a directory, whose files this "
                 "program may change and remove: remove the link",
                 path);
  files.make_directories(path);
}

std::string join(const std::string& directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  return fmt::format("{}{}{}", directory, directory.back() == '/' ? "" : "/", name);
}

std::string parent_of(const std::string& path) {
  const size_t name_end = path.find_last_not_of('/');
  if (name_end == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.rfind('/', name_end);
  if (slash == std::string::npos) return ".";
  const size_t end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

}  // namespace ashlar
