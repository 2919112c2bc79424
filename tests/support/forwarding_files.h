// A file system that hands every call to another: what tests change one thing of.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/files.h"

namespace ashlar::testing_support {

class ForwardingFiles : public FileSystem {
 public:
  explicit ForwardingFiles(FileSystem& inner) : inner_(inner) {}
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    return inner_.open(path, links);
  }
  std::unique_ptr<File> create(const std::string& path) override { return inner_.create(path); }
  std::unique_ptr<File> append(const std::string& path) override { return inner_.append(path); }
  std::unique_ptr<Mapping> map(const std::string& path, LinkPolicy links) override {
    return inner_.map(path, links);
  }
  std::optional<FileInfo> stat(const std::string& path, LinkPolicy links) override {
    return inner_.stat(path, links);
  }
  std::vector<std::string> list(const std::string& path) override { return inner_.list(path); }
  void make_directories(const std::string& path) override { inner_.make_directories(path); }
  void rename_new(const std::string& from, const std::string& to) override {
    inner_.rename_new(from, to);
  }
  void replace(const std::string& from, const std::string& to) override {
    inner_.replace(from, to);
  }
  void remove(const std::string& path) override { inner_.remove(path); }
  void remove_all(const std::string& path) override { inner_.remove_all(path); }
  void sync_directory(const std::string& path) override { inner_.sync_directory(path); }
  bool keeps_names(const std::string& path) override { return inner_.keeps_names(path); }
  int64_t free_bytes(const std::string& path) override { return inner_.free_bytes(path); }
  double visibility_s(const std::string& path) override { return inner_.visibility_s(path); }
  void pause(double seconds) override { inner_.pause(seconds); }

 protected:
  FileSystem& inner_;
};

// A file that is only read, likewise.
class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> inner) : inner_(std::move(inner)) {}
  int64_t size() const override { return inner_->size(); }
  void read_at(std::span<std::byte> out, int64_t offset) const override {
    inner_->read_at(out, offset);
  }
  void write_at(std::span<const std::byte> bytes, int64_t offset) override {
    inner_->write_at(bytes, offset);
  }
  void reserve(int64_t size_bytes) override { inner_->reserve(size_bytes); }
  void truncate(int64_t size_bytes) override { inner_->truncate(size_bytes); }
  void sync() override { inner_->sync(); }
  void close() override { inner_->close(); }

 protected:
  const std::unique_ptr<File> inner_;
};

}  // namespace ashlar::testing_support
