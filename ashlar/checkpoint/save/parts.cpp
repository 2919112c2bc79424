#include "ashlar/checkpoint/save/parts.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/checkpoint/format/stale_retry.h"

namespace ashlar::checkpoint {
namespace {

constexpr int64_t kMaxErrorBytes = int64_t(1) << 20;

// Joins the index of a part to the leader's.  A part counts its files from 0; the file numbers of
// its boxes are shifted by the files that are there already.
class Merger {
 public:
  explicit Merger(Index& index) : index_(index) {
    for (size_t i = 0; i < index.tensors.size(); ++i) place_of_[index.tensors[i].logical.name] = i;
    for (const IndexFile& file : index.files) paths_.insert(file.path);
  }

  void add(Index part, int writer, const std::string& path) {
    ASHLAR_REQUIRE(part.attempt == index_.attempt && part.blobs.empty(), kCorrupt,
                   "{}: it is not a part of attempt {}", path, to_text(index_.attempt));
    const auto first_file = uint32_t(index_.files.size());
    for (IndexFile& file : part.files) add(std::move(file), writer, path);
    for (IndexTensor& tensor : part.tensors) {
      for (IndexBox& box : tensor.boxes) box.file += first_file;
      add(std::move(tensor), path);
    }
  }

 private:
  void add(IndexFile file, int writer, const std::string& path) {
    const bool data = file.kind == FileKind::kSafetensors &&
                      (file.component == Component::kModel || file.component == Component::kOptim);
    ASHLAR_REQUIRE(int64_t(file.writer) == writer_number(writer) && data, kCorrupt,
                   "{}: file '{}' is not one that writer {} may have", path, file.path,
                   writer_number(writer));
    ASHLAR_REQUIRE(paths_.insert(file.path).second, kCorrupt,
                   "{}: file '{}' is another writer's too", path, file.path);
    index_.files.push_back(std::move(file));
  }

  void add(IndexTensor tensor, const std::string& path) {
    const LogicalTensor& logical = tensor.logical;
    ASHLAR_REQUIRE(!tensor.alias && tensor.parent == ~uint32_t(0), kCorrupt,
                   "{}: tensor '{}' refers to another; only the leader says that", path,
                   logical.name);
    const auto [found, added] = place_of_.try_emplace(logical.name, index_.tensors.size());
    if (added) {
      index_.tensors.push_back(std::move(tensor));
      return;
    }
    IndexTensor& whole = index_.tensors[found->second];
    const Component here = component_of(index_, tensor), there = component_of(index_, whole);
    ASHLAR_REQUIRE(logical.dtype == whole.logical.dtype && logical.role == whole.logical.role &&
                       logical.global_shape == whole.logical.global_shape && here == there,
                   kCorrupt, "{}: tensor '{}' is {} {} in {} but another writer says {} {} in {}",
                   path, logical.name, ashlar::name_of(logical.dtype),
                   logical.global_shape.to_string(), name_of(here),
                   ashlar::name_of(whole.logical.dtype), whole.logical.global_shape.to_string(),
                   name_of(there));
    whole.boxes.insert(whole.boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
  }

  Index& index_;
  std::unordered_map<std::string, size_t> place_of_;
  std::set<std::string> paths_;
};

// A list of names may be stale; opening a file asks for that very name.
bool can_open(FileSystem& files, const std::string& path) {
  try {
    files.open(path, LinkPolicy::kRefuse);
    return true;
  } catch (const Error&) {
    return files.stat(path).has_value();
  }
}

// The leader must see the same files: writers that share no directory are detected here.
void check_sizes(FileSystem& files, const std::string& directory, const Index& part, int writer,
                 StaleRetry& retry) {
  for (const IndexFile& file : part.files) {
    const std::string written = join(directory, file.path);
    auto info = files.stat(written);
    while (!(info && info->size_bytes == file.size_bytes) && retry.wait())
      info = files.stat(written);
    ASHLAR_REQUIRE(info && info->size_bytes == file.size_bytes, kStorage,
                   "{}: it has {} bytes here but writer {} wrote {}", written,
                   info ? info->size_bytes : 0, writer_number(writer), file.size_bytes);
  }
}

}  // namespace

std::vector<int> missing_writers(FileSystem& files, const std::string& directory,
                                 const SavePlan& plan) {
  constexpr size_t kMostAsked = 16;  // by name, of those whose names are not in the list
  const std::vector<std::string> names = files.list(directory);
  const std::set<std::string_view> listed(names.begin(), names.end());
  std::vector<int> missing;
  for (int writer = 1; writer < plan.num_writers; ++writer) {
    const auto is_there = [&](const std::string& name) {
      return listed.contains(name) ||
             (missing.size() < kMostAsked && can_open(files, join(directory, name)));
    };
    if (is_there(part_error_name(writer)))
      raise(ErrorKind::kStorage, "writer {} of {}: {}", writer_number(writer), plan.num_writers,
            read_text(files, join(directory, part_error_name(writer)), kMaxErrorBytes,
                      LinkPolicy::kRefuse));
    if (!is_there(part_name(writer))) missing.push_back(writer);
  }
  return missing;
}

void merge_parts(FileSystem& files, const std::string& directory, SavePlan& plan) {
  Merger merger(plan.index);
  StaleRetry retry(files, directory);
  for (int writer = 1; writer < plan.num_writers; ++writer) {
    const std::string path = join(directory, part_name(writer));
    const std::string text = read_text(files, path, kMaxIndexBytes, LinkPolicy::kRefuse);
    Index part = parse_index(std::as_bytes(std::span(text)), path);
    check_sizes(files, directory, part, writer, retry);
    merger.add(std::move(part), writer, path);
  }
}

void merge_parts(std::vector<WriterPart> parts, SavePlan& plan) {
  Merger merger(plan.index);
  for (WriterPart& part : parts)
    merger.add(std::move(part.index), part.rank,
               fmt::format("part of writer {}", writer_number(part.rank)));
}

void remove_parts(FileSystem& files, const std::string& directory, const SavePlan& plan) {
  for (int writer = 1; writer < plan.num_writers; ++writer)
    files.remove(join(directory, part_name(writer)));
}

}  // namespace ashlar::checkpoint
