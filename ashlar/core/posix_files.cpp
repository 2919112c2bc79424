#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <utility>

#include "ashlar/core/files.h"
#include "ashlar/core/files_error.h"

namespace ashlar {
namespace {

// Whether to repeat the failed call: a signal came, or the device was busy.
bool again() {
  if (errno == EAGAIN) sched_yield();
  return errno == EINTR || errno == EAGAIN;
}

template <typename Call>
auto retried(Call call) {
  auto result = call();
  while (result == -1 && again()) result = call();
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  // Linux frees the descriptor whatever close returns: never close it again.
  int close() {
    const int result = number_ < 0 ? 0 : ::close(std::exchange(number_, -1));
    return result == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int number_;
};

struct stat status_of(const Descriptor& descriptor, const std::string& path) {
  struct stat status;
  if (fstat(descriptor.get(), &status) != 0) fail_storage("stat", path, errno);
  return status;
}

// Opens a regular file.  O_NONBLOCK: a pipe in its place is refused, and not waited for.
Descriptor open_regular(std::string_view operation, const std::string& path, int flags) {
  const int all_flags = flags | O_CLOEXEC | O_NONBLOCK;
  Descriptor descriptor(retried([&] { return ::open(path.c_str(), all_flags, 0666); }));
  if (descriptor.get() < 0 && errno == ELOOP)
    fail_storage(operation, path, ELOOP,
                 " (a link that is refused here, or a loop of links; give the file itself)");
  if (descriptor.get() < 0) fail_storage(operation, path, errno);
  const mode_t mode = status_of(descriptor, path).st_mode;
  if (S_ISDIR(mode)) fail_storage(operation, path, EISDIR);
  ASHLAR_REQUIRE(S_ISREG(mode), kStorage, "{} {}: not a regular file", operation, path);
  return descriptor;
}

class PosixFile : public File {
 public:
  PosixFile(Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  int64_t size() const override { return status_of(descriptor_, path_).st_size; }

  void read_at(std::span<std::byte> out, int64_t offset) const override { read(out, offset, 0); }
  void read_direct(std::span<std::byte> out, int64_t offset) const override {
    read(out, offset, direct_part(out.data(), out.size(), offset));
  }

  void prefetch(int64_t offset, int64_t bytes) const override {
    posix_fadvise(descriptor_.get(), offset, bytes, POSIX_FADV_WILLNEED);
  }

  void write_at(std::span<const std::byte> bytes, int64_t offset) override {
    write(bytes, offset, 0);
  }
  void write_direct(std::span<const std::byte> bytes, int64_t offset) override {
    write(bytes, offset, direct_part(bytes.data(), bytes.size(), offset));
  }

  void reserve(int64_t size_bytes) override {
    if (size_bytes == 0) return;
    const int result =
        retried([&] { return fallocate(descriptor_.get(), FALLOC_FL_KEEP_SIZE, 0, size_bytes); });
    // A file system without the call promises nothing; the writes find out.
    if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
      fail_storage("reserve", path_, errno, fmt::format(" ({} bytes)", size_bytes));
  }

  void truncate(int64_t size_bytes) override {
    if (retried([&] { return ftruncate(descriptor_.get(), size_bytes); }) != 0)
      fail_storage("truncate", path_, errno);
  }

  void sync() override {
    if (retried([&] { return fsync(descriptor_.get()); }) != 0) fail_storage("sync", path_, errno);
  }

  void close() override {
    const int direct = direct_ ? direct_->close() : 0, plain = descriptor_.close();
    if (direct != 0 || plain != 0) fail_storage("close", path_, direct != 0 ? direct : plain);
  }

 private:
  // direct: this many bytes bypass the page cache, if the file system permits.
  void read(std::span<std::byte> out, int64_t offset, size_t direct) const {
    ASHLAR_ASSERT(offset >= 0);
    const auto call = [&](int descriptor, size_t from, size_t to) {
      return pread(descriptor, out.data() + from, to - from, offset + int64_t(from));
    };
    // The file is shorter than the caller believes.
    if (transfer("read", out.size(), direct, call) < out.size())
      fail_short_read(path_, out.size(), offset, size());
  }

  void write(std::span<const std::byte> bytes, int64_t offset, size_t direct) {
    ASHLAR_ASSERT(offset >= 0);
    const auto call = [&](int descriptor, size_t from, size_t to) {
      return pwrite(descriptor, bytes.data() + from, to - from, offset + int64_t(from));
    };
    if (transfer("write", bytes.size(), direct, call) < bytes.size())
      fail_storage("write", path_, EIO);
  }

  // The number of bytes that can bypass the page cache: none unless everything is aligned, and not
  // the end behind the last whole block.
  static size_t direct_part(const void* memory, size_t bytes, int64_t offset) {
    constexpr auto kStep = size_t(kDirectBytes);
    const bool laid_out =
        offset % kDirectBytes == 0 && reinterpret_cast<uintptr_t>(memory) % kStep == 0;
    return laid_out ? bytes / kStep * kStep : 0;
  }

  // Repeats the call until `bytes` are moved or a call moves none; returns the number moved.  After
  // a direct call that stops within a block, at the end of a file, or that is refused (EINVAL),
  // other calls move the rest.
  template <typename Call>
  size_t transfer(const char* operation, size_t bytes, size_t direct, Call call) const {
    const int past = direct > 0 ? direct_descriptor() : -1;
    if (past < 0) direct = 0;
    for (size_t done = 0; done < bytes;) {
      const bool is_direct = done < direct;
      const ssize_t count = retried([&] {
        return is_direct ? call(past, done, direct) : call(descriptor_.get(), done, bytes);
      });
      if (is_direct && (count == 0 || (count < 0 && errno == EINVAL))) {
        direct = 0;
        continue;
      }
      if (count < 0)
        fail_storage(operation, path_, errno, fmt::format(" (after {} of {} bytes)", done, bytes));
      if (count == 0) return done;
      done += size_t(count);
      if (done % size_t(kDirectBytes) != 0) direct = 0;
    }
    return bytes;
  }

  // The same file, reopened for direct calls; -1 if that is refused.
  int direct_descriptor() const {
    std::call_once(opened_direct_, [&] {
      const std::string again = fmt::format("/proc/self/fd/{}", descriptor_.get());
      const int mode = fcntl(descriptor_.get(), F_GETFL) & O_ACCMODE;
      Descriptor opened(
          retried([&] { return ::open(again.c_str(), mode | O_DIRECT | O_CLOEXEC); }));
      if (opened.get() >= 0) direct_.emplace(std::move(opened));
    });
    return direct_ ? direct_->get() : -1;
  }

  Descriptor descriptor_;
  std::string path_;
  mutable std::once_flag opened_direct_;
  mutable std::optional<Descriptor> direct_;
};

class PosixMapping : public Mapping {
 public:
  PosixMapping(const Descriptor& descriptor, const std::string& path)
      : size_(static_cast<size_t>(status_of(descriptor, path).st_size)) {
    if (size_ == 0) return;  // mmap refuses empty files
    data_ = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor.get(), 0);
    if (data_ == MAP_FAILED) fail_storage("map", path, errno);
  }
  ~PosixMapping() override {
    if (size_ != 0) munmap(data_, size_);
  }
  PosixMapping(const PosixMapping&) = delete;
  PosixMapping& operator=(const PosixMapping&) = delete;
  std::span<const std::byte> bytes() const override {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  size_t size_;
  void* data_ = nullptr;
};

FileInfo::Type type_of(mode_t mode) {
  if (S_ISREG(mode)) return FileInfo::Type::kFile;
  if (S_ISDIR(mode)) return FileInfo::Type::kDirectory;
  return S_ISLNK(mode) ? FileInfo::Type::kLink : FileInfo::Type::kOther;
}

bool is_directory(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// For file systems that cannot rename without replacing.  A link is refused if `to` exists.  For
// directories, and where there are no links either, another process could act between the check and
// the rename; such a file system offers nothing better.  Returns an errno.
int rename_new_checked(const std::string& from, const std::string& to) {
  struct stat status;
  if (lstat(from.c_str(), &status) != 0) return errno;
  if (S_ISREG(status.st_mode) && link(from.c_str(), to.c_str()) == 0)
    return unlink(from.c_str()) == 0 ? 0 : errno;
  if (lstat(to.c_str(), &status) == 0) return EEXIST;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int flag_of(LinkPolicy links) {
  return links == LinkPolicy::kRefuse ? O_NOFOLLOW : 0;
}

// Whether no other machine writes to the file system, so that every file is visible at once.  For a
// missing path, the nearest existing directory above it decides.  A file system that the system
// does not describe counts as shared.
bool is_local(const std::string& path) {
  constexpr uint64_t kXfs = 0x58465342, kZfs = 0x2FC12FC1, kBcachefs = 0xCA451A4E;
  constexpr uint64_t kLocal[] = {EXT4_SUPER_MAGIC, kXfs,        BTRFS_SUPER_MAGIC,
                                 F2FS_SUPER_MAGIC, kZfs,        kBcachefs,
                                 TMPFS_MAGIC,      RAMFS_MAGIC, OVERLAYFS_SUPER_MAGIC};
  struct statfs status;
  if (retried([&] { return statfs(path.c_str(), &status); }) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return false;
    const std::string parent = parent_of(path);
    return parent == path || is_local(parent);  // the working directory was removed
  }
  return std::ranges::find(kLocal, uint64_t(status.f_type)) != std::end(kLocal);
}

class PosixFiles : public FileSystem {
 public:
  explicit PosixFiles(std::optional<double> visibility_s) : visibility_s_(visibility_s) {}
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    return std::make_unique<PosixFile>(open_regular("open", path, O_RDONLY | flag_of(links)), path);
  }
  std::unique_ptr<File> create(const std::string& path) override {
    return std::make_unique<PosixFile>(open_regular("create", path, O_RDWR | O_CREAT | O_EXCL),
                                       path);
  }
  // Without O_APPEND: Linux would then ignore the offsets of writes.
  std::unique_ptr<File> append(const std::string& path) override {
    return std::make_unique<PosixFile>(open_regular("append", path, O_RDWR | O_CREAT | O_NOFOLLOW),
                                       path);
  }
  std::unique_ptr<Mapping> map(const std::string& path, LinkPolicy links) override {
    return std::make_unique<PosixMapping>(open_regular("map", path, O_RDONLY | flag_of(links)),
                                          path);
  }

  std::optional<FileInfo> stat(const std::string& path, LinkPolicy links) override {
    struct stat status;
    const int flags = links == LinkPolicy::kRefuse ? AT_SYMLINK_NOFOLLOW : 0;
    if (fstatat(AT_FDCWD, path.c_str(), &status, flags) == 0)
      return FileInfo{type_of(status.st_mode), status.st_size, status.st_mtime};
    // A loop of links leads nowhere.
    if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) fail_storage("stat", path, errno);
    return std::nullopt;
  }

  std::vector<std::string> list(const std::string& directory) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(directory.c_str()), closedir);
    if (!stream) fail_storage("list", directory, errno);
    std::vector<std::string> names;
    errno = 0;  // readdir returns null both at the end and for an error
    while (const dirent* entry = readdir(stream.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    if (errno != 0) fail_storage("list", directory, errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  void make_directories(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return;
    int number = errno;
    const std::string parent = parent_of(path);
    // Most calls find the directory: go down only if it is missing.
    if (number == ENOENT && parent != path && parent != ".") {
      make_directories(parent);
      number = mkdir(path.c_str(), 0777) == 0 ? 0 : errno;
    }
    // Another process may have created it meanwhile.
    if (number != 0 && !is_directory(path)) fail_storage("make_directories", path, number);
  }

  void rename_new(const std::string& from, const std::string& to) override {
    int number = 0;
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) != 0)
      number = errno;
    // The file system or the kernel does not know the flag.
    if (number == EINVAL || number == ENOSYS || number == EOPNOTSUPP)
      number = rename_new_checked(from, to);
    if (number != 0) fail_storage("rename_new", from, number, fmt::format(" (to {})", to));
  }

  void replace(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      fail_storage("replace", to, errno, fmt::format(" (by {})", from));
  }

  void remove(const std::string& path) override {
    if (::remove(path.c_str()) != 0) fail_storage("remove", path, errno);
  }

  void remove_all(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);  // follows no link
    if (error) fail_storage("remove_all", path, error.value());
  }

  void sync_directory(const std::string& path) override { keeps_names(path); }

  bool keeps_names(const std::string& path) override {
    const Descriptor descriptor(
        retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (descriptor.get() < 0) fail_storage("sync_directory", path, errno);
    const int result = retried([&] { return fsync(descriptor.get()); });
    // EINVAL: a file system without the call for directories.
    if (result != 0 && errno != EINVAL) fail_storage("sync_directory", path, errno);
    return result == 0;
  }

  int64_t free_bytes(const std::string& path) override {
    struct statvfs status;
    if (retried([&] { return statvfs(path.c_str(), &status); }) != 0)
      fail_storage("free_bytes", path, errno);
    return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  }

  void drop_cached_pages(const std::string& path) override {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }

  double visibility_s(const std::string& path) override {
    if (visibility_s_) return *visibility_s_;
    return is_local(path) ? 0 : kNetworkVisibility_s;
  }

 private:
  const std::optional<double> visibility_s_;
};

}  // namespace

std::unique_ptr<FileSystem> posix_files(std::optional<double> visibility_s) {
  return std::make_unique<PosixFiles>(visibility_s);
}

}  // namespace ashlar
