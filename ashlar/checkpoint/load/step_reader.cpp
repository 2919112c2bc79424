#include "ashlar/checkpoint/load/step_reader.h"

#include <algorithm>

#include "ashlar/checkpoint/format/raise.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

std::string read_checked(FileSystem& files, const std::string& path, const FileDigest& digest,
                         StaleRetry& retry) {
  const auto file = open_committed(files, path, digest.size_bytes, retry);
  std::string text(size_t(digest.size_bytes), '\0');
  file->read_at(std::as_writable_bytes(std::span(text)), 0);
  const FileDigest found = digest_of(text);
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

StepReader::StepReader(FileSystem& files, std::string directory, LoadRanks* ranks)
    : files_(files),
      directory_(std::move(directory)),
      ranks_(ranks),
      retry_(std::make_unique<StaleRetry>(files, directory_)),
      read_memory_(this->ranks().commons().read_memory()) {
  Texts texts;
  throw_first(this->ranks(), failure_of(0, [&] {
                if (this->ranks().rank() == 0) texts = read_texts();
              }));
  for (std::string* text : {&texts.commit, &texts.manifest, &texts.index})
    *text = this->ranks().from_leader(std::move(*text));
  parse(std::move(texts));
  for (size_t i = 0; i < index_.tensors.size(); ++i) tensor_of_[index_.tensors[i].logical.name] = i;
}

// The size of COMMIT is not known beforehand: a text that is cut short may still be stale.
std::string StepReader::read_commit() const {
  const std::string path = join(directory_, kCommitName);
  for (;;) {
    const auto info = stat_with_retry(files_, path, *retry_);
    ASHLAR_REQUIRE(info && info->type == FileInfo::Type::kFile, kCorrupt,
                   "{}: no COMMIT file; this is not a committed checkpoint step", directory_);
    ASHLAR_REQUIRE(info->size_bytes <= kMaxCommitBytes, kCorrupt,
                   "{}: the file has {} bytes; at most {} are allowed", path, info->size_bytes,
                   kMaxCommitBytes);
    std::string text = read_text(files_, path, kMaxCommitBytes, LinkPolicy::kRefuse);
    if (text.ends_with('\n') || !retry_->wait()) return text;
  }
}

StepReader::Texts StepReader::read_texts() const {
  Texts texts;
  texts.commit = read_commit();
  const std::string path = join(directory_, kCommitName);
  const Commit commit = parse_commit(texts.commit, path);
  ASHLAR_REQUIRE(commit.manifest.size_bytes <= kMaxManifestBytes, kCorrupt,
                 "{}: the manifest has {} bytes; at most {} are allowed", path,
                 commit.manifest.size_bytes, kMaxManifestBytes);
  ASHLAR_REQUIRE(commit.index.size_bytes <= kMaxIndexBytes, kCorrupt,
                 "{}: the index has {} bytes; at most {} are allowed", path,
                 commit.index.size_bytes, kMaxIndexBytes);
  texts.manifest = read_checked(files_, join(directory_, kManifestName), commit.manifest, *retry_);
  texts.index = read_checked(files_, join(directory_, kIndexName), commit.index, *retry_);
  return texts;
}

// The same on every rank.
void StepReader::parse(Texts texts) {
  commit_ = parse_commit(texts.commit, join(directory_, kCommitName));
  manifest_ = parse_manifest(texts.manifest, join(directory_, kManifestName));
  index_ = parse_index(std::as_bytes(std::span(texts.index)), join(directory_, kIndexName));
  ASHLAR_REQUIRE(index_.attempt == commit_.attempt && manifest_.attempt == commit_.attempt &&
                     manifest_.step == commit_.step && manifest_.run_id == commit_.run_id,
                 kCorrupt, "{}: COMMIT, manifest and index are of different saves", directory_);
  check_agreement();
}

void StepReader::check_agreement() const {
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
  }
}

void StepReader::check_size(size_t file_index) const {
  const IndexFile& file = index_.files[file_index];
  check_file(files_, join(directory_, file.path), file.size_bytes, *retry_);
}

const IndexTensor* StepReader::find(std::string_view name) const {
  const auto found = tensor_of_.find(name);
  return found == tensor_of_.end() ? nullptr : &index_.tensors[found->second];
}

std::unique_ptr<File> StepReader::open(size_t file_index) const {
  const IndexFile& file = index_.files[file_index];
  return open_committed(files_, join(directory_, file.path), file.size_bytes, *retry_);
}

bool StepReader::read_chunk(const File& file, size_t file_index, int64_t chunk, bool direct,
                            std::span<std::byte> memory, TakeBlock take) const {
  const IndexFile& entry = index_.files[file_index];
  const int64_t begin = chunk * kChunkBytes;
  const int64_t size = std::min(kChunkBytes, entry.size_bytes - begin);
  const bool whole = int64_t(memory.size()) >= size;
  ASHLAR_ASSERT(whole || (!memory.empty() && int64_t(memory.size()) % kBlockBytes == 0));
  // The system copies what it keeps: it does so a block at a time, while the caches have it.
  const int64_t request = direct ? int64_t(memory.size()) : kBlockBytes;
  if (!direct) file.prefetch(begin, size);
  uint32_t found = 0;
  for (int64_t at = 0; at < size; at += request) {
    const auto part = memory.subspan(whole ? size_t(at) : 0, size_t(std::min(request, size - at)));
    try {
      if (direct)
        file.read_direct(part, begin + at);
      else
        file.read_at(part, begin + at);
    } catch (const Error& error) {
      if (!is_stale(error) || !retry_->wait()) throw;
      return false;
    }
    for (size_t in_part = 0; in_part < part.size(); in_part += kBlockBytes) {
      const auto block =
          part.subspan(in_part, std::min(size_t{kBlockBytes}, part.size() - in_part));
      found = crc32c(block, found);
      take(at + int64_t(in_part), block);
    }
  }
  const uint32_t recorded = entry.chunk_crcs[size_t(chunk)];
  ASHLAR_REQUIRE(found == recorded, kCorrupt,
                 "{}: chunk {} (bytes {} to {}): checksum is {:08x} but {:08x} was recorded; the "
                 "file is damaged",
                 join(directory_, entry.path), chunk, begin, begin + size, found, recorded);
  return true;
}

bool StepReader::has_blob(std::string_view name) const {
  return std::any_of(index_.blobs.begin(), index_.blobs.end(),
                     [&](const IndexBlob& blob) { return blob.name == name; });
}

std::string StepReader::read_blob(std::string_view name) const {
  std::string text;
  throw_first(ranks(), failure_of(0, [&] {
                if (ranks().rank() == 0) text = read_own_blob(name);
              }));
  return ranks().from_leader(std::move(text));
}

std::string StepReader::read_own_blob(std::string_view name) const {
  const auto blob = std::find_if(index_.blobs.begin(), index_.blobs.end(),
                                 [&](const IndexBlob& each) { return each.name == name; });
  ASHLAR_REQUIRE(blob != index_.blobs.end(), kCorrupt, "{}: there is no extra file '{}'",
                 directory_, name);
  ASHLAR_REQUIRE(blob->length <= kMaxBlobBytes, kCorrupt,
                 "{}: the extra file '{}' has {} bytes; at most {} are allowed", directory_, name,
                 blob->length, kMaxBlobBytes);
  std::string text(size_t(blob->length), '\0');
  const auto file = open(blob->file);
  file->read_at(std::as_writable_bytes(std::span(text)), blob->offset);
  ASHLAR_REQUIRE(crc32c(text) == blob->crc, kCorrupt,
                 "{}: blob '{}': checksum is {:08x} but {:08x} was recorded; the file is damaged",
                 join(directory_, index_.files[blob->file].path), name, crc32c(text), blob->crc);
  return text;
}

}  // namespace ashlar::checkpoint
