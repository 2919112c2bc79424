#include "ashlar/checkpoint/verify.h"

#include <algorithm>
#include <unordered_map>

#include "ashlar/checkpoint/cover.h"
#include "ashlar/checkpoint/safetensors.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

class Verifier {
 public:
  Verifier(const StepReader& reader, VerifyLevel level, Log& log)
      : reader_(reader), level_(level), log_(log) {}

  VerifyReport run() {
    report_.files = int64_t(index().files.size());
    if (level_ == VerifyLevel::kQuick) return std::move(report_);
    for (size_t i = 0; i < index().files.size(); ++i)
      guarded(index().files[i].path, -1, [&] { check_header(i); });
    for (const IndexBlob& blob : index().blobs)
      guarded(index().files[blob.file].path, -1, [&] { reader_.read_blob(blob.name); });
    if (level_ == VerifyLevel::kFiles) return std::move(report_);
    check_chunks();
    check_cover();
    return std::move(report_);
  }

 private:
  const Index& index() const { return reader_.index(); }
  void add(std::string file, int64_t chunk, std::string message) {
    report_.findings.push_back({std::move(file), chunk, std::move(message)});
  }

  template <typename F>
  void guarded(const std::string& file, int64_t chunk, F&& body) {
    try {
      body();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      add(file, chunk, error.what());
    }
  }

  void check_header(size_t file_index) {
    const IndexFile& entry = index().files[file_index];
    if (entry.kind != FileKind::kSafetensors) return;
    const auto file = reader_.open(file_index);
    std::vector<std::byte> head(size_t(entry.data_begin));
    file->read_at(head, 0);
    const uint32_t crc = crc32c(head);
    if (crc != entry.header_crc)
      add(entry.path, 0,
          fmt::format("{}: header checksum is {:08x} but {:08x} was recorded", entry.path, crc,
                      entry.header_crc));
    const SafetensorsHeader header =
        parse_safetensors(head, entry.size_bytes, entry.path, ErrorKind::kCorrupt);
    ASHLAR_REQUIRE(header.data_begin == entry.data_begin && header.data_begin % kAlignment == 0,
                   kCorrupt, "{}: data begins at {} but the index says {}", entry.path,
                   header.data_begin, entry.data_begin);
    for (const auto& [key, value] :
         {std::pair<std::string, std::string>{"ashlar.file_uuid", to_text(entry.uuid)},
          {"ashlar.attempt", to_text(index().attempt)}}) {
      const auto found = header.metadata.find(key);
      ASHLAR_REQUIRE(found != header.metadata.end() && found->second == value, kCorrupt,
                     "{}: {} is {}; expected {}: the file belongs to another save", entry.path, key,
                     found == header.metadata.end() ? "missing" : found->second, value);
    }
    check_entries(file_index, header);
  }

  void check_entries(size_t file_index, const SafetensorsHeader& header) {
    const IndexFile& file = index().files[file_index];
    std::unordered_map<std::string_view, const TensorEntry*> entries;
    for (const TensorEntry& entry : header.entries) entries[entry.name] = &entry;
    size_t boxes = 0;
    for (const IndexTensor& tensor : index().tensors) {
      if (tensor.alias) continue;
      for (const IndexBox& box : tensor.boxes) {
        if (box.file != file_index) continue;
        ++boxes;
        const auto found = entries.find(tensor.logical.name);
        ASHLAR_REQUIRE(found != entries.end() && found->second->dtype == tensor.logical.dtype &&
                           std::ranges::equal(found->second->shape, box.box.length.dims()) &&
                           found->second->begin + file.data_begin == box.byte_offset,
                       kCorrupt, "{}: tensor '{}' is not where the index says", file.path,
                       tensor.logical.name);
      }
    }
    ASHLAR_REQUIRE(boxes == header.entries.size(), kCorrupt,
                   "{}: the header has {} tensors but the index {}", file.path,
                   header.entries.size(), boxes);
  }

  void check_chunks() {
    int64_t total = 0;
    for (const IndexFile& file : index().files) total += file.size_bytes;
    Progress progress(log_, "verifying " + reader_.directory(), total, "B");
    std::vector<std::byte> buffer(size_t{kChunkBytes});
    for (size_t i = 0; i < index().files.size(); ++i) {
      const IndexFile& entry = index().files[i];
      const auto file = reader_.open(i);
      for (int64_t chunk = 0; chunk < num_chunks(entry.size_bytes); ++chunk) {
        guarded(entry.path, chunk, [&] {
          const auto bytes = reader_.read_chunk(*file, i, chunk, buffer);
          report_.bytes += int64_t(bytes.size());
        });
        ++report_.chunks;
        progress.advance(std::min(kChunkBytes, entry.size_bytes - chunk * kChunkBytes));
      }
    }
  }

  void check_cover() {
    for (const IndexTensor& tensor : index().tensors) {
      std::vector<Box> boxes;
      for (const IndexBox& box : tensor.boxes) boxes.push_back(box.box);
      if (const auto error = find_cover_error(tensor.logical.global_shape, boxes))
        add(kIndexName, -1, fmt::format("tensor '{}': {}", tensor.logical.name, *error));
    }
  }

  const StepReader& reader_;
  VerifyLevel level_;
  Log& log_;
  VerifyReport report_;
};

}  // namespace

std::optional<VerifyLevel> parse_verify_level(std::string_view name) {
  if (name == "quick") return VerifyLevel::kQuick;
  if (name == "files") return VerifyLevel::kFiles;
  if (name == "deep") return VerifyLevel::kDeep;
  return std::nullopt;
}

VerifyReport verify_step(const StepReader& reader, VerifyLevel level, Log& log) {
  return Verifier(reader, level, log).run();
}

VerifyReport verify_step(FileSystem& files, const std::string& directory, VerifyLevel level,
                         Log& log) {
  try {
    return verify_step(StepReader(files, directory), level, log);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    VerifyReport report;
    report.findings.push_back({directory, -1, error.what()});
    return report;
  }
}

}  // namespace ashlar::checkpoint
