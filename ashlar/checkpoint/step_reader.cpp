#include "ashlar/checkpoint/step_reader.h"

#include <algorithm>

#include "ashlar/checkpoint/raise.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

// A plain file of the expected size; a checkpoint holds no links.
void check_file(FileSystem& files, const std::string& path, int64_t size_bytes) {
  const auto info = files.stat(path);
  ASHLAR_REQUIRE(info, kCorrupt, "{}: the file is missing", path);
  ASHLAR_REQUIRE(info->type == FileInfo::Type::kFile, kCorrupt,
                 "{}: not a plain file; links and directories are refused", path);
  ASHLAR_REQUIRE(info->size_bytes == size_bytes, kCorrupt,
                 "{}: the file has {} bytes; {} were committed", path, info->size_bytes,
                 size_bytes);
}

std::string read_checked(FileSystem& files, const std::string& path, const Digest& digest) {
  check_file(files, path, digest.size_bytes);
  std::string text = read_text(files, path, digest.size_bytes, Links::kRefuse);
  const Digest found = digest_of(text);
  ASHLAR_REQUIRE(found.size_bytes == digest.size_bytes && found.crc == digest.crc &&
                     (!digest.xxh3 || digest.xxh3 == found.xxh3),
                 kCorrupt, "{}: checksum is {:08x} but {:08x} was committed; the file is damaged",
                 path, found.crc, digest.crc);
  return text;
}

}  // namespace

bool matches(std::string_view name, std::string_view pattern) {
  size_t star = pattern.npos, retry = 0, n = 0, p = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++n, ++p;
    } else if (star != pattern.npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

StepReader::StepReader(FileSystem& files, std::string directory)
    : files_(files), directory_(std::move(directory)) {
  read_metadata();
  check_files();
  for (size_t i = 0; i < index_.tensors.size(); ++i) tensor_of_[index_.tensors[i].logical.name] = i;
}

void StepReader::read_metadata() {
  const std::string commit_path = join(directory_, kCommitName);
  const auto info = files_.stat(commit_path);
  ASHLAR_REQUIRE(info && info->type == FileInfo::Type::kFile, kCorrupt,
                 "{}: no COMMIT file; this is not a committed checkpoint step", directory_);
  ASHLAR_REQUIRE(info->size_bytes <= kMaxCommitBytes, kCorrupt,
                 "{}: the file has {} bytes; at most {} are allowed", commit_path, info->size_bytes,
                 kMaxCommitBytes);
  commit_ =
      parse_commit(read_text(files_, commit_path, kMaxCommitBytes, Links::kRefuse), commit_path);
  const std::string manifest_path = join(directory_, kManifestName);
  ASHLAR_REQUIRE(commit_.manifest.size_bytes <= kMaxManifestBytes, kCorrupt,
                 "{}: the manifest has {} bytes; at most {} are allowed", commit_path,
                 commit_.manifest.size_bytes, kMaxManifestBytes);
  manifest_ = parse_manifest(read_checked(files_, manifest_path, commit_.manifest), manifest_path);
  const std::string index_path = join(directory_, kIndexName);
  const std::string index = read_checked(files_, index_path, commit_.index);
  index_ = parse_index(std::as_bytes(std::span(index)), index_path);
  ASHLAR_REQUIRE(index_.attempt == commit_.attempt && manifest_.attempt == commit_.attempt &&
                     manifest_.step == commit_.step && manifest_.run_id == commit_.run_id,
                 kCorrupt, "{}: COMMIT, manifest and index are of different saves", directory_);
}

void StepReader::check_files() const {
  ASHLAR_REQUIRE(int64_t(index_.files.size()) == commit_.files &&
                     index_.files.size() == manifest_.files.size(),
                 kCorrupt, "{}: COMMIT names {} files, the manifest {}, the index {}", directory_,
                 commit_.files, manifest_.files.size(), index_.files.size());
  for (size_t i = 0; i < index_.files.size(); ++i) {
    const IndexFile& file = index_.files[i];
    ASHLAR_REQUIRE(file.path == manifest_.files[i].path && file.uuid == manifest_.files[i].uuid &&
                       file.size_bytes == manifest_.files[i].size_bytes,
                   kCorrupt, "{}: file {} is '{}' in the manifest but '{}' in the index",
                   directory_, i, manifest_.files[i].path, file.path);
    check_file(files_, join(directory_, file.path), file.size_bytes);
  }
}

const IndexTensor* StepReader::find(std::string_view name) const {
  const auto found = tensor_of_.find(name);
  return found == tensor_of_.end() ? nullptr : &index_.tensors[found->second];
}

std::unique_ptr<File> StepReader::open(size_t file_index) const {
  return files_.open(join(directory_, index_.files[file_index].path), Links::kRefuse);
}

std::span<const std::byte> StepReader::read_chunk(const File& file, size_t file_index,
                                                  int64_t chunk,
                                                  std::span<std::byte> buffer) const {
  const IndexFile& entry = index_.files[file_index];
  const int64_t begin = chunk * kChunkBytes;
  const auto bytes = buffer.first(size_t(std::min(kChunkBytes, entry.size_bytes - begin)));
  file.read_at(bytes, begin);
  const uint32_t found = crc32c(bytes), recorded = entry.chunk_crcs[size_t(chunk)];
  ASHLAR_REQUIRE(found == recorded, kCorrupt,
                 "{}: chunk {} (bytes {} to {}): checksum is {:08x} but {:08x} was recorded; the "
                 "file is damaged",
                 join(directory_, entry.path), chunk, begin, begin + int64_t(bytes.size()), found,
                 recorded);
  return bytes;
}

bool StepReader::has_blob(std::string_view name) const {
  return std::any_of(index_.blobs.begin(), index_.blobs.end(),
                     [&](const IndexBlob& blob) { return blob.name == name; });
}

std::string StepReader::read_blob(std::string_view name) const {
  const auto blob = std::find_if(index_.blobs.begin(), index_.blobs.end(),
                                 [&](const IndexBlob& each) { return each.name == name; });
  ASHLAR_REQUIRE(blob != index_.blobs.end(), kCorrupt, "{}: there is no extra file '{}'",
                 directory_, name);
  std::string text(size_t(blob->length), '\0');
  const auto file = open(blob->file);
  file->read_at(std::as_writable_bytes(std::span(text)), blob->offset);
  ASHLAR_REQUIRE(crc32c(text) == blob->crc, kCorrupt,
                 "{}: blob '{}': checksum is {:08x} but {:08x} was recorded; the file is damaged",
                 join(directory_, index_.files[blob->file].path), name, crc32c(text), blob->crc);
  return text;
}

}  // namespace ashlar::checkpoint
