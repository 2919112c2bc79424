#include "ashlar/bench/checkpoint_baseline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/boxes.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/aligned_memory.h"
#include "ashlar/core/function_ref.h"
#include "ashlar/core/json.h"
#include "ashlar/core/threads.h"

namespace ashlar::bench {
namespace {

constexpr int64_t kCallBytes = int64_t(8) << 20;

std::string file_of(const std::string& directory, int rank) {
  return join(directory, fmt::format("rank-{}.bin", rank));
}

class UnsyncedFile : public File {
 public:
  explicit UnsyncedFile(std::unique_ptr<File> inner) : inner_(std::move(inner)) {}
  int64_t size() const override { return inner_->size(); }
  void read_at(std::span<std::byte> out, int64_t offset) const override {
    inner_->read_at(out, offset);
  }
  void read_direct(std::span<std::byte> out, int64_t offset) const override {
    inner_->read_direct(out, offset);
  }
  void prefetch(int64_t offset, int64_t bytes) const override { inner_->prefetch(offset, bytes); }
  void write_at(std::span<const std::byte> bytes, int64_t offset) override {
    inner_->write_at(bytes, offset);
  }
  void reserve(int64_t size_bytes) override { inner_->reserve(size_bytes); }
  void truncate(int64_t size_bytes) override { inner_->truncate(size_bytes); }
  void sync() override {}
  void close() override { inner_->close(); }

 private:
  std::unique_ptr<File> inner_;
};

class UnsyncedFiles : public FileSystem {
 public:
  explicit UnsyncedFiles(FileSystem& inner) : inner_(inner) {}
  std::unique_ptr<File> open(const std::string& path, LinkPolicy links) override {
    return inner_.open(path, links);
  }
  std::unique_ptr<File> create(const std::string& path) override {
    return std::make_unique<UnsyncedFile>(inner_.create(path));
  }
  std::unique_ptr<File> append(const std::string& path) override {
    return std::make_unique<UnsyncedFile>(inner_.append(path));
  }
  std::unique_ptr<Mapping> map(const std::string& path, LinkPolicy links) override {
    return inner_.map(path, links);
  }
  std::optional<FileInfo> stat(const std::string& path, LinkPolicy links) override {
    return inner_.stat(path, links);
  }
  std::vector<std::string> list(const std::string& directory) override {
    return inner_.list(directory);
  }
  void make_directories(const std::string& path) override { inner_.make_directories(path); }
  void rename_new(const std::string& from, const std::string& to) override {
    inner_.rename_new(from, to);
  }
  void replace(const std::string& from, const std::string& to) override {
    inner_.replace(from, to);
  }
  void remove(const std::string& path) override { inner_.remove(path); }
  void remove_all(const std::string& path) override { inner_.remove_all(path); }
  void sync_directory(const std::string&) override {}
  int64_t free_bytes(const std::string& path) override { return inner_.free_bytes(path); }

 private:
  FileSystem& inner_;
};

// Calls `call` for every part of a file, several at once, each with memory of its own.
void in_calls(int64_t bytes, function_ref<void(std::span<std::byte> part, int64_t at)> call) {
  constexpr int kCallsInFlight = 4;
  constexpr int64_t kBytes = int64_t(4) << 20;
  std::vector<AlignedMemory> memory;
  for (int i = 0; i < kCallsInFlight; ++i) {
    memory.push_back(aligned_memory(kBytes, "raw reads and writes"));
    std::memset(memory.back().get(), 1, size_t(kBytes));
  }
  Threads(kCallsInFlight).run((bytes + kBytes - 1) / kBytes, [&](int64_t n, int worker) {
    const int64_t at = n * kBytes;
    call({memory[size_t(worker)].get(), size_t(std::min(kBytes, bytes - at))}, at);
  });
}

// The place of a stored piece, as rank 0 lists it.
struct Stored {
  std::string name;
  Box box;
  int rank = 0;
  int64_t offset = 0, bytes = 0;
};

std::string text_of(const std::vector<Piece>& pieces) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Piece& piece : pieces)
    rows.push_back(
        {piece.logical.name, piece.box.offset.dims(), piece.box.length.dims(), piece.data.bytes()});
  return rows.dump();
}

Box box_of(const Json& offset, const Json& length) {
  const auto shape = [](const Json& dims) {
    return Shape(std::span<const int64_t>(dims.get<std::vector<int64_t>>()));
  };
  return {shape(offset), shape(length)};
}

// Rank 0's list: for each piece a rank that holds it, and the place in its file.
std::vector<Stored> assign(const std::vector<std::string>& plans) {
  std::map<std::string, std::vector<Stored>> holders;  // by piece
  std::vector<std::string> order;
  for (size_t rank = 0; rank < plans.size(); ++rank)
    for (const Json& row : parse_json(plans[rank], "plan", ErrorKind::kCorrupt)) {
      const std::string key = row[0].get<std::string>() + row[1].dump() + row[2].dump();
      auto& list = holders[key];
      if (list.empty()) order.push_back(key);
      list.push_back({row[0], box_of(row[1], row[2]), int(rank), 0, row[3]});
    }
  std::vector<int64_t> used(plans.size(), 0);
  std::vector<Stored> all;
  for (const std::string& key : order) {
    Stored* least = &holders[key].front();
    for (Stored& holder : holders[key])
      if (used[size_t(holder.rank)] < used[size_t(least->rank)]) least = &holder;
    least->offset = used[size_t(least->rank)];
    used[size_t(least->rank)] += least->bytes;
    all.push_back(*least);
  }
  return all;
}

std::string to_text(const std::vector<Stored>& all) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Stored& s : all)
    rows.push_back({s.name, s.box.offset.dims(), s.box.length.dims(), s.rank, s.offset, s.bytes});
  return rows.dump();
}

std::vector<Stored> from_text(const std::string& text) {
  std::vector<Stored> all;
  for (const Json& row : parse_json(text, "plan", ErrorKind::kCorrupt))
    all.push_back({row[0], box_of(row[1], row[2]), row[3], row[4], row[5]});
  return all;
}

void write_in_calls(File& file, std::span<const std::byte> bytes, int64_t offset) {
  for (int64_t at = 0; at < int64_t(bytes.size()); at += kCallBytes) {
    const int64_t count = std::min(kCallBytes, int64_t(bytes.size()) - at);
    file.write_at(bytes.subspan(size_t(at), size_t(count)), offset + at);
  }
}

void copy_common(const Stored& stored, const std::byte* bytes, const Piece& piece) {
  const auto common = checkpoint::intersect(stored.box, piece.box);
  if (!common) return;
  const int64_t size = size_of(piece.data.dtype);
  for (checkpoint::Runs run(*common, stored.box, piece.box); !run.done(); run.next())
    std::memcpy(piece.data.data + run.to() * size, bytes + run.from() * size,
                size_t(run.length() * size));
}

}  // namespace

std::unique_ptr<FileSystem> without_sync(FileSystem& files) {
  return std::make_unique<UnsyncedFiles>(files);
}

void drop_cached(const std::string& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

void raw_write(FileSystem& files, const std::string& directory, int rank, int64_t bytes) {
  const auto file = files.create(file_of(directory, rank));
  file->reserve(bytes);
  in_calls(bytes, [&](std::span<std::byte> part, int64_t at) { file->write_direct(part, at); });
  file->sync();
  file->close();
}

void raw_read(FileSystem& files, const std::string& directory, int rank, int64_t bytes) {
  const auto file = files.open(file_of(directory, rank));
  in_calls(bytes, [&](std::span<std::byte> part, int64_t at) { file->read_direct(part, at); });
}

void plain_save(FileSystem& files, const std::string& directory, comm::Group& ranks,
                const std::vector<Piece>& pieces) {
  const std::vector<std::string> plans = comm::all_said(ranks, text_of(pieces), "plans");
  const std::string text = comm::text_from_leader(
      ranks, ranks.rank() == 0 ? to_text(assign(plans)) : std::string(), "plan");
  std::map<std::string, const Piece*> own;
  for (const Piece& piece : pieces)
    own[piece.logical.name + checkpoint::to_text(piece.box)] = &piece;
  std::vector<std::pair<Stored, std::vector<std::byte>>> copies;
  for (const Stored& stored : from_text(text))
    if (stored.rank == ranks.rank()) {
      const Tensor& data = own.at(stored.name + checkpoint::to_text(stored.box))->data;
      copies.push_back({stored, {data.data, data.data + data.bytes()}});
    }
  const auto file = files.create(file_of(directory, ranks.rank()));
  for (const auto& [stored, bytes] : copies) write_in_calls(*file, bytes, stored.offset);
  file->sync();
  file->close();
  ranks.barrier("saved").wait();
  if (ranks.rank() == 0) {
    write_text(files, join(directory, "metadata.json"), text);
    files.sync_directory(directory);
  }
  ranks.barrier("committed").wait();
}

void plain_load(FileSystem& files, const std::string& directory, const std::vector<Piece>& pieces) {
  std::map<std::string_view, std::vector<const Piece*>> wanted;
  for (const Piece& piece : pieces) wanted[piece.logical.name].push_back(&piece);
  std::map<int, std::unique_ptr<File>> opened;
  for (const Stored& stored :
       from_text(read_text(files, join(directory, "metadata.json"), int64_t(1) << 32))) {
    const auto found = wanted.find(stored.name);
    if (found == wanted.end()) continue;
    bool needed = false;
    for (const Piece* piece : found->second)
      needed |= checkpoint::intersect(stored.box, piece->box).has_value();
    if (!needed) continue;
    auto& file = opened[stored.rank];
    if (!file) file = files.open(file_of(directory, stored.rank));
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(size_t(stored.bytes));
    for (int64_t at = 0; at < stored.bytes; at += kCallBytes)
      file->read_at({bytes.get() + at, size_t(std::min(kCallBytes, stored.bytes - at))},
                    stored.offset + at);
    for (const Piece* piece : found->second) copy_common(stored, bytes.get(), *piece);
  }
}

}  // namespace ashlar::bench
