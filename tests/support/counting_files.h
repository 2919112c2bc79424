// A file system that counts what is asked of another: calls on names and sizes, bytes read.
#pragma once

#include <atomic>

#include "tests/support/forwarding_files.h"

namespace ashlar::testing_support {

class CountingFiles : public ForwardingFiles {
 public:
  explicit CountingFiles(FileSystem& inner) : ForwardingFiles(inner) {}
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    ++metadata_calls;
    return std::make_unique<CountingFile>(inner_.open(path, links), *this);
  }
  std::optional<FileInfo> stat(const std::string& path, LinkPolicy links) override {
    ++metadata_calls;
    return inner_.stat(path, links);
  }
  std::vector<std::string> list(const std::string& path) override {
    ++metadata_calls;
    return inner_.list(path);
  }

  std::atomic<int64_t> metadata_calls = 0, reads = 0, bytes_read = 0;

 private:
  class CountingFile : public ForwardingFile {
   public:
    CountingFile(std::unique_ptr<File> inner, CountingFiles& counts)
        : ForwardingFile(std::move(inner)), counts_(counts) {}
    int64_t size() const override {
      ++counts_.metadata_calls;
      return inner_->size();
    }
    void read_at(std::span<std::byte> out, int64_t offset) const override {
      ++counts_.reads;
      counts_.bytes_read += int64_t(out.size());
      inner_->read_at(out, offset);
    }

   private:
    CountingFiles& counts_;
  };
};

}  // namespace ashlar::testing_support
