// A file system that knows what would survive a power cut.  Every file has written and synced
// bytes, every directory has current and synced entries; after_crash() builds the disk as a restart
// finds it.  Calls from several threads take turns.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/files.h"
#include "ashlar/core/rng.h"
#include "ashlar/core/text.h"

namespace ashlar::checkpoint {

inline const std::string kRoot = "/runs/a/checkpoints";

enum class Survives {
  kSyncedOnly,  // un-synced bytes, names and renames are gone
  kAll,         // everything written is there
  kTorn,        // each 512 bytes, and each name of a directory, old or new by chance
  kTornPages,   // the same with 4096 bytes
};

// The ways in which a crash may lose what was not synced: each with a seed of its own where chance
// has a part.  ASHLAR_TORN_SEEDS: how many seeds, instead of `seeds`, the two kinds of tearing
// have.
inline std::vector<std::pair<Survives, uint64_t>> losses(uint64_t seeds) {
  if (const char* text = std::getenv("ASHLAR_TORN_SEEDS")) seeds = std::stoull(text);
  std::vector<std::pair<Survives, uint64_t>> all{{Survives::kSyncedOnly, 0}, {Survives::kAll, 0}};
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    all.insert(all.end(), {{Survives::kTorn, seed}, {Survives::kTornPages, seed}});
  return all;
}

class CrashFiles : public FileSystem {
  // All disks of a test and their files: several writers may use one.
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex all;
    return all;
  }

 public:
  std::unique_ptr<File> open(const std::string& path, LinkPolicy = LinkPolicy::kFollow) override {
    const std::lock_guard lock(mutex());
    return std::make_unique<Handle>(need(path, false));
  }
  std::unique_ptr<File> create(const std::string& path) override {
    const std::lock_guard lock(mutex());
    Node& directory = *need(parent_of(path), true);
    require(!directory.entries.contains(last(path)), path, "create: exists");
    auto node = std::make_shared<Node>();
    directory.entries[last(path)] = node;
    return std::make_unique<Handle>(node);
  }
  std::unique_ptr<File> append(const std::string& path) override {
    const std::lock_guard lock(mutex());
    return look_up(path) ? open(path) : create(path);
  }
  std::unique_ptr<Mapping> map(const std::string& path, LinkPolicy = LinkPolicy::kFollow) override {
    const std::lock_guard lock(mutex());
    return std::make_unique<Whole>(need(path, false));
  }
  std::optional<FileInfo> stat(const std::string& path, LinkPolicy = LinkPolicy::kRefuse) override {
    const std::lock_guard lock(mutex());
    const auto node = look_up(path);
    if (!node) return std::nullopt;
    return FileInfo{node->directory ? FileInfo::Type::kDirectory : FileInfo::Type::kFile,
                    int64_t(node->data.size()), 0};
  }
  std::vector<std::string> list(const std::string& directory) override {
    const std::lock_guard lock(mutex());
    std::vector<std::string> names;
    for (const auto& [name, node] : need(directory, true)->entries) names.push_back(name);
    return names;
  }
  void make_directories(const std::string& path) override {
    const std::lock_guard lock(mutex());
    std::shared_ptr<Node> at = root_;
    for (const std::string& part : parts(path)) {
      auto& next = at->entries[part];
      if (!next) {
        next = std::make_shared<Node>();
        next->directory = true;
      }
      require(next->directory, path, "mkdir: a file is in the way");
      at = next;
    }
  }
  void rename_new(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex());
    require(!look_up(to), to, "rename: exists");
    move(from, to);
  }
  void replace(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex());
    move(from, to);
  }
  void remove(const std::string& path) override {
    const std::lock_guard lock(mutex());
    const auto node = look_up(path);
    require(node && node->entries.empty(), path, "remove: absent or not empty");
    need(parent_of(path), true)->entries.erase(last(path));
  }
  void remove_all(const std::string& path) override {
    const std::lock_guard lock(mutex());
    if (look_up(path)) need(parent_of(path), true)->entries.erase(last(path));
  }
  void sync_directory(const std::string& path) override {
    const std::lock_guard lock(mutex());
    const auto node = need(path, true);
    node->synced_entries = node->entries;
  }
  int64_t free_bytes(const std::string&) override { return int64_t(1) << 40; }

  std::unique_ptr<CrashFiles> after_crash(Survives survives, uint64_t seed) const {
    auto disk = std::make_unique<CrashFiles>();
    uint64_t state = seed;
    disk->root_ = survivor(*root_, survives, state);
    return disk;
  }

 private:
  struct Node {
    bool directory = false;
    std::vector<std::byte> data, synced_data;
    std::map<std::string, std::shared_ptr<Node>> entries, synced_entries;
  };

  class Handle : public File {
   public:
    explicit Handle(std::shared_ptr<Node> node) : node_(std::move(node)) {}
    int64_t size() const override {
      const std::lock_guard lock(mutex());
      return int64_t(node_->data.size());
    }
    void read_at(std::span<std::byte> out, int64_t offset) const override {
      const std::lock_guard lock(mutex());
      require(offset + int64_t(out.size()) <= size(), "file", "read: past the end");
      std::copy_n(node_->data.begin() + offset, out.size(), out.begin());
    }
    void write_at(std::span<const std::byte> bytes, int64_t offset) override {
      const std::lock_guard lock(mutex());
      const size_t end = size_t(offset) + bytes.size();
      if (end > node_->data.size()) node_->data.resize(end);
      std::copy(bytes.begin(), bytes.end(), node_->data.begin() + offset);
    }
    void reserve(int64_t size_bytes) override {
      const std::lock_guard lock(mutex());
      if (size() < size_bytes) node_->data.resize(size_t(size_bytes));
    }
    void truncate(int64_t size_bytes) override {
      const std::lock_guard lock(mutex());
      node_->data.resize(size_t(size_bytes));
    }
    void sync() override {
      const std::lock_guard lock(mutex());
      node_->synced_data = node_->data;
    }
    void close() override {}

   private:
    std::shared_ptr<Node> node_;
  };

  class Whole : public Mapping {
   public:
    explicit Whole(std::shared_ptr<Node> node) : node_(std::move(node)) {}
    std::span<const std::byte> bytes() const override {
      const std::lock_guard lock(mutex());
      return node_->data;
    }

   private:
    std::shared_ptr<Node> node_;
  };

  static void require(bool condition, const std::string& path, const char* what) {
    ASHLAR_REQUIRE(condition, kStorage, "{}: {}", path, what);
  }
  static std::vector<std::string> parts(const std::string& path) {
    std::vector<std::string> names = split(path, '/');
    std::erase_if(names, [](const std::string& name) { return name.empty() || name == "."; });
    return names;
  }
  static std::string last(const std::string& path) { return parts(path).back(); }

  std::shared_ptr<Node> look_up(const std::string& path) const {
    std::shared_ptr<Node> at = root_;
    for (const std::string& part : parts(path)) {
      const auto found = at->entries.find(part);
      if (found == at->entries.end()) return nullptr;
      at = found->second;
    }
    return at;
  }
  std::shared_ptr<Node> need(const std::string& path, bool directory) const {
    const auto node = look_up(path);
    require(node && node->directory == directory, path, "absent or of the wrong kind");
    return node;
  }
  void move(const std::string& from, const std::string& to) {
    const auto node = look_up(from);
    require(node != nullptr, from, "rename: absent");
    const auto target = need(parent_of(to), true);
    need(parent_of(from), true)->entries.erase(last(from));
    target->entries[last(to)] = node;
  }

  static bool coin(uint64_t& state) { return (state = splitmix64(state + 1)) >> 63; }

  static std::vector<std::byte> torn(const Node& node, size_t unit, uint64_t& state) {
    std::vector<std::byte> data = coin(state) ? node.data : node.synced_data;
    for (size_t begin = 0; begin < data.size(); begin += unit) {
      const std::vector<std::byte>& from = coin(state) ? node.data : node.synced_data;
      for (size_t i = begin; i < std::min(begin + unit, data.size()); ++i)
        data[i] = i < from.size() ? from[i] : std::byte(0);
    }
    return data;
  }

  static std::shared_ptr<Node> survivor(const Node& node, Survives survives, uint64_t& state) {
    auto copy = std::make_shared<Node>();
    copy->directory = node.directory;
    if (!node.directory) {
      copy->data = survives == Survives::kAll ? node.data
                   : survives == Survives::kSyncedOnly
                       ? node.synced_data
                       : torn(node, survives == Survives::kTorn ? 512 : 4096, state);
      copy->synced_data = copy->data;
      return copy;
    }
    std::set<std::string> names;
    for (const auto* entries : {&node.entries, &node.synced_entries})
      for (const auto& [name, child] : *entries) names.insert(name);
    for (const std::string& name : names) {
      const bool current =
          survives == Survives::kAll || (survives != Survives::kSyncedOnly && coin(state));
      const auto& entries = current ? node.entries : node.synced_entries;
      const auto found = entries.find(name);
      if (found != entries.end()) copy->entries[name] = survivor(*found->second, survives, state);
    }
    copy->synced_entries = copy->entries;
    return copy;
  }

  std::shared_ptr<Node> root_ = [] {
    auto node = std::make_shared<Node>();
    node->directory = true;
    return node;
  }();
};

}  // namespace ashlar::checkpoint
