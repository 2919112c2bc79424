#include <cerrno>
#include <mutex>
#include <utility>

#include "ashlar/core/files.h"
#include "ashlar/core/files_error.h"

namespace ashlar {
namespace {

// Shared by the file system and its files, which may outlive it.
class Decider {
 public:
  explicit Decider(FaultDecision decide) : decide_(std::move(decide)) {}

  // Throws the error that was decided on; true for a short write, which the caller makes itself.
  bool short_write(std::string_view operation, const std::string& path) {
    const std::lock_guard lock(mutex_);
    const int64_t call = num_calls_++;
    const Fault fault = crashed_ ? Fault::kCrash : decide_(call, operation, path);
    crashed_ = fault == Fault::kCrash;
    if (fault == Fault::kNone) return false;
    if (fault == Fault::kShortWrite && operation == "write") return true;
    if (fault == Fault::kDiskFull) fail_storage(operation, path, ENOSPC);
    fail_storage(operation, path, EIO, crashed_ ? " (crashed)" : "");
  }
  void check(std::string_view operation, const std::string& path) { short_write(operation, path); }

 private:
  FaultDecision decide_;
  std::mutex mutex_;
  int64_t num_calls_ = 0;
  bool crashed_ = false;
};

class FaultyFile : public File {
 public:
  FaultyFile(std::unique_ptr<File> inner, std::string path, std::shared_ptr<Decider> decider)
      : inner_(std::move(inner)), path_(std::move(path)), decider_(std::move(decider)) {}

  int64_t size() const override {
    decider_->check("size", path_);
    return inner_->size();
  }
  void read_at(std::span<std::byte> out, int64_t offset) const override {
    decider_->check("read", path_);
    inner_->read_at(out, offset);
  }
  void write_at(std::span<const std::byte> bytes, int64_t offset) override {
    if (!decider_->short_write("write", path_)) return inner_->write_at(bytes, offset);
    inner_->write_at(bytes.first(bytes.size() / 2), offset);
    fail_storage("write", path_, ENOSPC,
                 fmt::format(" (after {} of {} bytes)", bytes.size() / 2, bytes.size()));
  }
  void reserve(int64_t size_bytes) override {
    decider_->check("reserve", path_);
    inner_->reserve(size_bytes);
  }
  void truncate(int64_t size_bytes) override {
    decider_->check("truncate", path_);
    inner_->truncate(size_bytes);
  }
  void sync() override {
    decider_->check("sync", path_);
    inner_->sync();
  }
  void close() override {
    decider_->check("close", path_);
    inner_->close();
  }

 private:
  std::unique_ptr<File> inner_;
  std::string path_;
  std::shared_ptr<Decider> decider_;
};

class FaultyFiles : public FileSystem {
 public:
  FaultyFiles(FileSystem& inner, FaultDecision decide)
      : inner_(inner), decider_(std::make_shared<Decider>(std::move(decide))) {}

  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    decider_->check("open", path);
    return wrap(inner_.open(path, links), path);
  }
  std::unique_ptr<File> create(const std::string& path) override {
    decider_->check("create", path);
    return wrap(inner_.create(path), path);
  }
  std::unique_ptr<File> append(const std::string& path) override {
    decider_->check("append", path);
    return wrap(inner_.append(path), path);
  }
  std::unique_ptr<Mapping> map(const std::string& path, LinkPolicy links) override {
    decider_->check("map", path);
    return inner_.map(path, links);
  }
  std::optional<FileInfo> stat(const std::string& path, LinkPolicy links) override {
    decider_->check("stat", path);
    return inner_.stat(path, links);
  }
  std::vector<std::string> list(const std::string& directory) override {
    decider_->check("list", directory);
    return inner_.list(directory);
  }
  void make_directories(const std::string& path) override {
    decider_->check("make_directories", path);
    inner_.make_directories(path);
  }
  void rename_new(const std::string& from, const std::string& to) override {
    decider_->check("rename_new", from);
    inner_.rename_new(from, to);
  }
  void replace(const std::string& from, const std::string& to) override {
    decider_->check("replace", to);
    inner_.replace(from, to);
  }
  void remove(const std::string& path) override {
    decider_->check("remove", path);
    inner_.remove(path);
  }
  void remove_all(const std::string& path) override {
    decider_->check("remove_all", path);
    inner_.remove_all(path);
  }
  void sync_directory(const std::string& path) override {
    decider_->check("sync_directory", path);
    inner_.sync_directory(path);
  }
  bool keeps_names(const std::string& directory) override {
    decider_->check("keeps_names", directory);
    return inner_.keeps_names(directory);
  }
  int64_t free_bytes(const std::string& path) override {
    decider_->check("free_bytes", path);
    return inner_.free_bytes(path);
  }
  double visibility_s(const std::string& path) override { return inner_.visibility_s(path); }
  void pause(double seconds) override { inner_.pause(seconds); }

 private:
  std::unique_ptr<File> wrap(std::unique_ptr<File> file, const std::string& path) const {
    return std::make_unique<FaultyFile>(std::move(file), path, decider_);
  }

  FileSystem& inner_;
  std::shared_ptr<Decider> decider_;
};

}  // namespace

std::unique_ptr<FileSystem> faulty_files(FileSystem& inner, FaultDecision decide) {
  return std::make_unique<FaultyFiles>(inner, std::move(decide));
}

}  // namespace ashlar
