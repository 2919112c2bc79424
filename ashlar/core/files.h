// Files behind one interface: posix for work, memory and faulty for tests.
//
// Links    files that a user names (recipe, text, dataset, tokenizer, Hugging Face snapshot) may be
//          symbolic links.  A checkpoint, which must be the very file that was committed, is read
//          with kRefuse.  Links among the directories of a path are followed, except by
//          make_own_directory.
// Errors   kStorage with path, operation and errno text.  A read past the end is kStorage too, and
//          says how many bytes were wanted and how many there are.
// Threads  several threads may read one File, or write to different ranges of it, at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar {

enum class LinkPolicy : uint8_t { kFollow, kRefuse };

struct FileInfo {
  enum class Type { kFile, kDirectory, kLink, kOther };
  Type type;
  int64_t size_bytes;
  int64_t modified_s;  // seconds since 1970
};

class File {
 public:
  virtual ~File() = default;
  virtual int64_t size() const = 0;
  virtual void read_at(std::span<std::byte> out, int64_t offset) const = 0;  // all or kStorage
  // Like read_at and write_at, for large amounts that nobody reads again soon: the system keeps no
  // copy in memory (O_DIRECT), which takes a tenth of the CPU time.  Bytes go through read_at and
  // write_at if they do not begin at a multiple of kDirectBytes, in the file and in memory, if they
  // lie behind the last such multiple, or if the file system has no direct access.
  static constexpr int64_t kDirectBytes = 4096;
  virtual void read_direct(std::span<std::byte> out, int64_t offset) const { read_at(out, offset); }
  virtual void write_direct(std::span<const std::byte> bytes, int64_t offset) {
    write_at(bytes, offset);
  }
  // Hints that these bytes will be read soon, so that the system may begin to fetch them.
  virtual void prefetch(int64_t /*offset*/, int64_t /*bytes*/) const {}
  virtual void write_at(std::span<const std::byte> bytes, int64_t offset) = 0;
  virtual void reserve(int64_t size_bytes) = 0;  // fallocate: a full disk shows here; size() stays
  virtual void truncate(int64_t size_bytes) = 0;
  virtual void sync() = 0;   // on disk when it returns; after a failure the data must be rewritten
  virtual void close() = 0;  // checked; the destructor closes unchecked
};

// The bytes of a whole file, valid as long as the object lives.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Opens for reading; regular files only.
  virtual std::unique_ptr<File> open(const std::string& path,
                                     LinkPolicy links = LinkPolicy::kFollow) = 0;
  virtual std::unique_ptr<File> create(const std::string& path) = 0;  // must not exist yet
  // Creates the file if it is missing; a write_at at size() appends.  Follows no link.
  virtual std::unique_ptr<File> append(const std::string& path) = 0;
  virtual std::unique_ptr<Mapping> map(const std::string& path,
                                       LinkPolicy links = LinkPolicy::kFollow) = 0;
  // nullopt: no such name.  kRefuse describes a link itself (kLink), so that a name in use is seen
  // even if the link leads nowhere; kFollow describes its target, which may not exist.
  virtual std::optional<FileInfo> stat(const std::string& path,
                                       LinkPolicy links = LinkPolicy::kRefuse) = 0;
  virtual std::vector<std::string> list(const std::string& directory) = 0;  // names, sorted
  virtual void make_directories(const std::string& path) = 0;               // like mkdir -p
  virtual void rename_new(const std::string& from,
                          const std::string& to) = 0;                        // `to` must be absent
  virtual void replace(const std::string& from, const std::string& to) = 0;  // over `to`
  virtual void remove(const std::string& path) = 0;  // a file or an empty directory, or kStorage
  virtual void remove_all(const std::string& path) = 0;  // like rm -rf; absent is fine
  virtual void sync_directory(const std::string& path) = 0;
  // Whether sync_directory makes names durable here.  Where it does not, the call does nothing, and
  // the file system decides when names are durable.
  virtual bool keeps_names([[maybe_unused]] const std::string& directory) { return true; }
  virtual int64_t free_bytes(const std::string& path) = 0;
  // How long a file that another machine wrote may be missing here, or have an old size: network
  // file systems cache what they have seen.  `path` need not exist, but its parent should.
  virtual double visibility_s([[maybe_unused]] const std::string& path) { return 0; }
  // Returns after this time; a test's file system may advance a clock of its own instead.
  virtual void pause(double seconds);
  // Drops the cached pages of a synced file, so that the next read goes to the disk.  A hint: if
  // nothing is cached, or it cannot be dropped, nothing happens.
  virtual void drop_cached_pages([[maybe_unused]] const std::string& path) {}
};

// The kStorage error of one call on a file: the system's error, or a file that ends too early.
class StorageError : public Error {
 public:
  static constexpr int kShortRead = 0;
  StorageError(int number, const std::string& message)
      : Error(ErrorKind::kStorage, message), number_(number) {}
  int number() const { return number_; }  // an errno, or kShortRead

 private:
  int number_;
};

// The machine's file system.  Short writes, EINTR and EAGAIN are retried.  Unless it is given,
// visibility_s is 0 on known local file systems and kNetworkVisibility_s on all others.
inline constexpr double kNetworkVisibility_s = 60;  // as long as NFS keeps attributes by default
std::unique_ptr<FileSystem> posix_files(std::optional<double> visibility_s = {});

// A file system in memory (one root, absolute or relative paths as plain keys).
std::unique_ptr<FileSystem> memory_files();

// A file system whose calls go to `inner`, unless they are made to fail.  `decide` is asked before
// every call, with its number (from 0), its name (the method's; "read" and "write" for read_at and
// write_at) and its path.  A failed call does nothing, except that kShortWrite writes half of the
// bytes before it fails (on calls other than writes it is kIoError).  After kCrash this call and
// all later ones fail.
enum class Fault { kNone, kIoError, kDiskFull, kShortWrite, kCrash };
using FaultDecision =
    std::function<Fault(int64_t call, std::string_view operation, const std::string& path)>;
std::unique_ptr<FileSystem> faulty_files(FileSystem& inner, FaultDecision decide);

// Whole small files.  read_text: kStorage if the file is larger than max_bytes.
std::string read_text(FileSystem& files, const std::string& path, int64_t max_bytes = 64 << 20,
                      LinkPolicy links = LinkPolicy::kFollow);
// Writes a temporary file, syncs it, renames it over `path` and syncs the directory: a reader sees
// the old content or the new one, never a mix.
void write_text(FileSystem& files, const std::string& path, std::string_view text);
// Removes the files NAME.PROCESS.tmp that write_text left in a directory when its process was
// killed.  No other process may be writing there.
void remove_temporaries(FileSystem& files, const std::string& directory);

// Like FileSystem::make_directories, and durable: when this returns, the entry of every new
// directory is on disk.
void make_durable_directories(FileSystem& files, const std::string& path);

// FileSystem::make_directories for a directory that belongs to the program.  A link in its place
// leads to somebody else's directory and is refused (kStorage).
void make_own_directory(FileSystem& files, const std::string& path);

std::string join(const std::string& directory, std::string_view name);
std::string parent_of(const std::string& path);  // "." for a bare name

}  // namespace ashlar
