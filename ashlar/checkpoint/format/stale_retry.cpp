#include "ashlar/checkpoint/format/stale_retry.h"

#include <algorithm>
#include <cerrno>
#include <exception>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

bool is_plain(const std::optional<FileInfo>& info) {
  return info && info->type == FileInfo::Type::kFile;
}

// A checkpoint holds no links.
void require_committed(const std::optional<FileInfo>& info, const std::string& path,
                       int64_t size_bytes) {
  ASHLAR_REQUIRE(info, kCorrupt, "{}: the file is missing", path);
  ASHLAR_REQUIRE(is_plain(info), kCorrupt,
                 "{}: not a plain file; links and directories are refused", path);
  ASHLAR_REQUIRE(info->size_bytes == size_bytes, kCorrupt,
                 "{}: the file has {} bytes; {} were committed", path, info->size_bytes,
                 size_bytes);
}

}  // namespace

StaleRetry::StaleRetry(FileSystem& files, const std::string& directory)
    : files_(files), limit_s_(files.visibility_s(directory)) {}

bool StaleRetry::wait() {
  const std::lock_guard lock(mutex_);  // threads that wait meanwhile look again when this one does
  if (waited_s_ >= limit_s_) return false;
  const double delay_s = std::min(std::clamp(waited_s_, 0.05, 5.0), limit_s_ - waited_s_);
  files_.pause(delay_s);
  waited_s_ += delay_s;
  return true;
}

void check_file(FileSystem& files, const std::string& path, int64_t size_bytes, StaleRetry& retry) {
  for (;;) {
    const auto info = files.stat(path);
    const bool decided = info && (!is_plain(info) || info->size_bytes == size_bytes);
    if (decided || !retry.wait()) return require_committed(info, path, size_bytes);
  }
}

std::unique_ptr<File> open_committed(FileSystem& files, const std::string& path, int64_t size_bytes,
                                     StaleRetry& retry) {
  for (;;) {
    std::optional<FileInfo> info;
    std::exception_ptr refused;
    try {
      // An open file has the server's size; a name may have one that was seen earlier.
      auto file = files.open(path, LinkPolicy::kRefuse);
      info = {FileInfo::Type::kFile, file->size(), 0};
      if (info->size_bytes == size_bytes) return file;
    } catch (const Error& error) {
      info = files.stat(path);
      // The file is there but cannot be opened: waiting does not help.
      if (is_plain(info) && !is_stale(error)) throw;
      refused = std::current_exception();
    }
    const bool other = info && !is_plain(info);
    if (!other && retry.wait()) continue;
    require_committed(info, path, size_bytes);
    std::rethrow_exception(refused);
  }
}

std::optional<FileInfo> stat_with_retry(FileSystem& files, const std::string& path,
                                        StaleRetry& retry) {
  for (;;) {
    const auto info = files.stat(path);
    if (info || !retry.wait()) return info;
  }
}

bool is_stale(const Error& error) {
  const auto* storage = dynamic_cast<const StorageError*>(&error);
  return storage && (storage->number() == ENOENT || storage->number() == ESTALE ||
                     storage->number() == StorageError::kShortRead);
}

}  // namespace ashlar::checkpoint
