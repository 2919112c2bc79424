// How it works.  One map from path to node holds files and directories alike; there is no tree.
// Paths are normalised to keys (key_of), children are found by their keys' parents, and a rename of
// a directory renames the key of everything below it.  A file that was opened keeps its node, so
// that it outlives the removal of its name.
//
// Locks   mutex_ guards the map, a node's mutex its content; where both are held, mutex_ was first.
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "ashlar/core/files.h"
#include "ashlar/core/files_error.h"

namespace ashlar {
namespace {

// A file or directory, apart from its name: open files outlive a rename or removal, as on disk.
struct Node {
  explicit Node(FileInfo::Type type) : type(type), modified_s(std::time(nullptr)) {}
  const FileInfo::Type type;
  mutable std::shared_mutex mutex;  // guards the members below
  std::vector<std::byte> bytes;
  int64_t modified_s;
  bool is_directory() const { return type == FileInfo::Type::kDirectory; }
};
using NodePtr = std::shared_ptr<Node>;

class MemoryFile : public File {
 public:
  MemoryFile(NodePtr node, std::string path, bool writable)
      : node_(std::move(node)), path_(std::move(path)), writable_(writable) {}

  int64_t size() const override {
    const std::shared_lock lock(node("size").mutex);
    return static_cast<int64_t>(node_->bytes.size());
  }

  void read_at(std::span<std::byte> out, int64_t offset) const override {
    ASHLAR_ASSERT(offset >= 0);
    const std::shared_lock lock(node("read").mutex);
    const size_t start = static_cast<size_t>(offset), have = node_->bytes.size();
    if (out.empty()) return;
    if (start > have || out.size() > have - start)
      fail_short_read(path_, out.size(), offset, static_cast<int64_t>(have));
    std::memcpy(out.data(), node_->bytes.data() + start, out.size());
  }

  void write_at(std::span<const std::byte> bytes, int64_t offset) override {
    ASHLAR_ASSERT(offset >= 0);
    const std::unique_lock lock(writable_node("write").mutex);
    if (bytes.empty()) return;
    const size_t start = static_cast<size_t>(offset), end = start + bytes.size();
    if (node_->bytes.size() < end) node_->bytes.resize(end);
    std::memcpy(node_->bytes.data() + start, bytes.data(), bytes.size());
    node_->modified_s = std::time(nullptr);
  }

  void reserve(int64_t size_bytes) override {
    ASHLAR_ASSERT(size_bytes >= 0);
    const std::unique_lock lock(writable_node("reserve").mutex);
    node_->bytes.reserve(static_cast<size_t>(size_bytes));
  }

  void truncate(int64_t size_bytes) override {
    ASHLAR_ASSERT(size_bytes >= 0);
    const std::unique_lock lock(writable_node("truncate").mutex);
    node_->bytes.resize(static_cast<size_t>(size_bytes));
    node_->modified_s = std::time(nullptr);
  }

  void sync() override { node("sync"); }  // fails on a closed file, and does nothing else
  void close() override { closed_ = true; }

 private:
  Node& node(std::string_view operation) const {
    if (closed_) fail_storage(operation, path_, EBADF);
    return *node_;
  }
  Node& writable_node(std::string_view operation) const {
    if (!writable_) fail_storage(operation, path_, EBADF);
    return node(operation);
  }

  NodePtr node_;
  std::string path_;
  bool writable_, closed_ = false;
};

// Holds a copy, so that later writes do not move the bytes.
class MemoryMapping : public Mapping {
 public:
  explicit MemoryMapping(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// "a//b/./c/" -> "a/b/c"; "" and "./" -> "."; "/" stays.
std::string key_of(const std::string& path) {
  std::string key = path.starts_with('/') ? "/" : "";
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    if (!part.empty() && part != ".") {
      if (!key.empty() && key.back() != '/') key += '/';
      key += part;
    }
    begin = end + 1;
  }
  return key.empty() ? "." : key;
}

// There are no links here, so `Links` makes no difference.
class MemoryFiles : public FileSystem {
 public:
  MemoryFiles() {
    for (const char* root : {"/", "."})
      nodes_[root] = std::make_shared<Node>(FileInfo::Type::kDirectory);
  }

  std::unique_ptr<File> open(const std::string& path, LinkPolicy) override {
    return std::make_unique<MemoryFile>(existing_file("open", path), path, false);
  }

  std::unique_ptr<File> create(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    check_parent("create", path);
    if (find(path)) fail_storage("create", path, EEXIST);
    return std::make_unique<MemoryFile>(add_file(path), path, true);
  }

  std::unique_ptr<File> append(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    check_parent("append", path);
    NodePtr node = find(path);
    if (node && node->is_directory()) fail_storage("append", path, EISDIR);
    return std::make_unique<MemoryFile>(node ? node : add_file(path), path, true);
  }

  std::unique_ptr<Mapping> map(const std::string& path, LinkPolicy) override {
    const NodePtr node = existing_file("map", path);
    const std::shared_lock lock(node->mutex);
    return std::make_unique<MemoryMapping>(node->bytes);
  }

  std::optional<FileInfo> stat(const std::string& path, LinkPolicy) override {
    const std::lock_guard lock(mutex_);
    const NodePtr node = find(path);
    if (!node) return std::nullopt;
    const std::shared_lock node_lock(node->mutex);
    return FileInfo{node->type, static_cast<int64_t>(node->bytes.size()), node->modified_s};
  }

  std::vector<std::string> list(const std::string& directory) override {
    const std::lock_guard lock(mutex_);
    check_directory("list", directory, directory);
    return children(key_of(directory));
  }

  void make_directories(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> missing;
    for (std::string key = key_of(path); !nodes_.contains(key); key = parent_of(key))
      missing.push_back(key);
    // The deepest directory that exists; the loop ends, since both roots are nodes.
    const std::string& deepest = missing.empty() ? key_of(path) : parent_of(missing.back());
    if (!nodes_.at(deepest)->is_directory())
      fail_storage("make_directories", path, missing.empty() ? EEXIST : ENOTDIR);
    for (const std::string& key : missing)
      nodes_[key] = std::make_shared<Node>(FileInfo::Type::kDirectory);
  }

  void rename_new(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    int number = rename_error(from, to);
    if (number == 0 && find(to)) number = EEXIST;
    if (number != 0) fail_storage("rename_new", from, number, fmt::format(" (to {})", to));
    move(key_of(from), key_of(to));
  }

  void replace(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    int number = rename_error(from, to);
    if (number == 0) number = replace_error(from, to);
    if (number != 0) fail_storage("replace", to, number, fmt::format(" (by {})", from));
    if (key_of(from) == key_of(to)) return;
    nodes_.erase(key_of(to));
    move(key_of(from), key_of(to));
  }

  void remove(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const NodePtr node = find(path);
    if (!node) fail_storage("remove", path, ENOENT);
    const std::string key = key_of(path);
    if (is_root(key)) fail_storage("remove", path, EBUSY);
    if (node->is_directory() && !children(key).empty()) fail_storage("remove", path, ENOTEMPTY);
    nodes_.erase(key);
  }

  void remove_all(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const std::string key = key_of(path);
    if (is_root(key)) fail_storage("remove_all", path, EBUSY);
    std::erase_if(nodes_, [&](const auto& entry) {
      return entry.first == key || entry.first.starts_with(key + "/");
    });
  }

  void sync_directory(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    check_directory("sync_directory", path, path);
  }

  // Memory has no limit of its own.
  int64_t free_bytes(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    if (!find(path)) fail_storage("free_bytes", path, ENOENT);
    return INT64_MAX;
  }

 private:
  static bool is_root(const std::string& key) { return key == "/" || key == "."; }

  NodePtr find(const std::string& path) const {
    const auto place = nodes_.find(key_of(path));
    return place == nodes_.end() ? nullptr : place->second;
  }

  NodePtr add_file(const std::string& path) {
    return nodes_[key_of(path)] = std::make_shared<Node>(FileInfo::Type::kFile);
  }

  NodePtr existing_file(std::string_view operation, const std::string& path) const {
    const std::lock_guard lock(mutex_);
    NodePtr node = find(path);
    if (!node) fail_storage(operation, path, ENOENT);
    if (node->is_directory()) fail_storage(operation, path, EISDIR);
    return node;
  }

  int directory_error(const std::string& directory) const {
    const NodePtr node = find(directory);
    if (!node) return ENOENT;
    return node->is_directory() ? 0 : ENOTDIR;
  }
  void check_directory(std::string_view operation, const std::string& path,
                       const std::string& directory) const {
    if (const int number = directory_error(directory)) fail_storage(operation, path, number);
  }
  void check_parent(std::string_view operation, const std::string& path) const {
    check_directory(operation, path, parent_of(key_of(path)));
  }

  std::vector<std::string> children(const std::string& key) const {
    std::vector<std::string> names;
    for (const auto& [path, node] : nodes_)
      if (!is_root(path) && parent_of(path) == key)
        names.push_back(path.substr(path.rfind('/') + 1));
    return names;  // sorted, since the keys are and share their beginning
  }

  int rename_error(const std::string& from, const std::string& to) const {
    if (!find(from)) return ENOENT;
    if (const int number = directory_error(parent_of(key_of(to)))) return number;
    if (is_root(key_of(from)) || is_root(key_of(to))) return EBUSY;
    return key_of(to).starts_with(key_of(from) + "/") ? EINVAL : 0;
  }
  int replace_error(const std::string& from, const std::string& to) const {
    const NodePtr target = find(to);
    if (!target || key_of(from) == key_of(to)) return 0;
    const bool directory = find(from)->is_directory();
    if (target->is_directory() != directory) return directory ? ENOTDIR : EISDIR;
    return directory && !children(key_of(to)).empty() ? ENOTEMPTY : 0;
  }

  void move(const std::string& from, const std::string& to) {
    std::map<std::string, NodePtr> moved;
    for (const auto& [key, node] : nodes_)
      if (key == from || key.starts_with(from + "/")) moved[to + key.substr(from.size())] = node;
    std::erase_if(nodes_, [&](const auto& entry) {
      return entry.first == from || entry.first.starts_with(from + "/");
    });
    nodes_.merge(moved);
  }

  mutable std::mutex mutex_;
  std::map<std::string, NodePtr> nodes_;  // by key_of the path
};

}  // namespace

std::unique_ptr<FileSystem> memory_files() {
  return std::make_unique<MemoryFiles>();
}

}  // namespace ashlar
