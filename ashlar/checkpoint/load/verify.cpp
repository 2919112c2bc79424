#include "ashlar/checkpoint/load/verify.h"

#include <algorithm>
#include <unordered_map>

#include "ashlar/checkpoint/format/cover.h"
#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/checkpoint/load/chunk_reader.h"
#include "ashlar/core/checksum.h"

namespace ashlar::checkpoint {
namespace {

class Verifier {
 public:
  Verifier(const StepReader& reader, VerifyLevel level, Log& log, VerifyPart part)
      : reader_(reader),
        level_(level),
        log_(log),
        chunks_(reader.index()),
        is_first_(part.number == 0),
        is_last_(part.number + 1 == part.of) {
    ASHLAR_ASSERT(0 <= part.number && part.number < part.of);
    const int64_t count = chunks_.first(index().files.size());
    begin_ = count * part.number / part.of;
    end_ = count * (part.number + 1) / part.of;
    for (size_t i = 0; i < index().files.size(); ++i) {
      const int64_t first = chunks_.first(i);
      // Empty files at the end begin after the last chunk.
      if (begin_ <= first && (first < end_ || is_last_)) files_.push_back(i);
    }
  }

  VerifyReport run() {
    if (is_first_) check_name();
    if (!sizes_are_right()) return std::move(report_);
    report_.files = int64_t(files_.size());
    if (level_ == VerifyLevel::kQuick) return std::move(report_);
    list_boxes();
    for (const size_t i : files_) guarded(index().files[i].path, -1, [&] { check_header(i); });
    if (is_first_) check_blobs();
    if (level_ == VerifyLevel::kFiles) return std::move(report_);
    check_chunks();
    if (is_first_) check_cover();
    return std::move(report_);
  }

 private:
  const Index& index() const { return reader_.index(); }
  void add(std::string file, int64_t chunk, std::string message) {
    report_.findings.push_back({std::move(file), chunk, std::move(message)});
  }

  // A step that was copied under the name of another is not that step.
  void check_name() {
    const auto named = step_of_path(reader_.directory());
    if (named && *named != reader_.step())
      add(kCommitName, -1,
          fmt::format("{}: COMMIT is of step {}, but its directory is named as step {}",
                      reader_.directory(), reader_.step(), *named));
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

  // A step that lacks a file is not examined further.
  bool sizes_are_right() {
    guarded(reader_.directory(), -1, [&] {
      for (const size_t i : files_) reader_.check_size(i);
    });
    return report_.ok();
  }

  void list_boxes() {
    boxes_of_.resize(index().files.size());
    for (size_t t = 0; t < index().tensors.size(); ++t) {
      const IndexTensor& tensor = index().tensors[t];
      for (size_t b = 0; b < tensor.boxes.size() && !tensor.alias; ++b)
        boxes_of_[tensor.boxes[b].file].emplace_back(uint32_t(t), uint32_t(b));
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
    for (const auto& [tensor_index, box_index] : boxes_of_[file_index]) {
      const IndexTensor& tensor = index().tensors[tensor_index];
      const IndexBox& box = tensor.boxes[box_index];
      const auto found = entries.find(tensor.logical.name);
      ASHLAR_REQUIRE(found != entries.end() && found->second->dtype == tensor.logical.dtype &&
                         std::ranges::equal(found->second->shape, box.box.length.dims()) &&
                         found->second->begin + file.data_begin == box.byte_offset,
                     kCorrupt, "{}: tensor '{}' is not where the index says", file.path,
                     tensor.logical.name);
    }
    const size_t boxes = boxes_of_[file_index].size();
    ASHLAR_REQUIRE(boxes == header.entries.size(), kCorrupt,
                   "{}: the header has {} tensors but the index {}", file.path,
                   header.entries.size(), boxes);
  }

  void check_blobs() {
    for (const IndexBlob& blob : index().blobs)
      guarded(index().files[blob.file].path, -1, [&] { reader_.read_blob(blob.name); });
  }

  void check_chunks() {
    int64_t bytes = 0;
    ChunkReader::Lots lots;
    for (int64_t chunk = begin_; chunk < end_; ++chunk) {
      lots.push_back({{{chunk, chunk + 1}, false}});
      bytes += chunks_.bytes(chunk);
    }
    Progress progress(log_, "verifying " + reader_.directory(), bytes, "B");
    report_.chunks = int64_t(lots.size());
    ChunkReaderOptions options;
    options.failures = ChunkReaderOptions::Failures::kAll;
    ChunkReader reads(reader_, chunks_, lots, options,
                      [](int64_t, int64_t, std::span<const std::byte>) {});
    for (const auto& lot : lots) {
      reads.next();
      reads.release();
      progress.advance(chunks_.bytes(lot[0].chunks.begin));
    }
    report_.bytes = reads.bytes_read();
    for (const LoadFailure& failure : reads.failures()) {
      if (failure.kind != ErrorKind::kCorrupt) throw Error(failure.kind, failure.message);
      const size_t file = chunks_.file(failure.place);
      add(index().files[file].path, failure.place - chunks_.first(file), failure.message);
    }
  }

  void check_cover() {
    for (const IndexTensor& tensor : index().tensors) {
      const auto error =
          find_cover_error(tensor.logical.global_shape, tensor.boxes.size(),
                           [&](size_t i) -> const Box& { return tensor.boxes[i].box; });
      if (error) add(kIndexName, -1, fmt::format("tensor '{}': {}", tensor.logical.name, *error));
    }
  }

  const StepReader& reader_;
  VerifyLevel level_;
  Log& log_;
  const ChunkNumbers chunks_;
  const bool is_first_, is_last_;  // of the parts
  int64_t begin_ = 0, end_ = 0;    // chunks of this part
  std::vector<size_t> files_;      // that begin among them
  VerifyReport report_;
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> boxes_of_;  // by file: tensor, box of it
};

}  // namespace

std::optional<VerifyLevel> parse_verify_level(std::string_view name) {
  if (name == "quick") return VerifyLevel::kQuick;
  if (name == "files") return VerifyLevel::kFiles;
  if (name == "deep") return VerifyLevel::kDeep;
  return std::nullopt;
}

VerifyReport verify_step(const StepReader& reader, VerifyLevel level, Log& log, VerifyPart part) {
  return Verifier(reader, level, log, part).run();
}

VerifyReport verify_step(FileSystem& files, const std::string& directory, VerifyLevel level,
                         Log& log, VerifyPart part) {
  try {
    return verify_step(StepReader(files, directory), level, log, part);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCorrupt) throw;
    VerifyReport report;
    report.findings.push_back({directory, -1, error.what()});
    return report;
  }
}

}  // namespace ashlar::checkpoint
