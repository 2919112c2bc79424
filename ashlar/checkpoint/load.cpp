// How it works.  StepReader::load in three parts:
//
//   Matcher    compares all that is stored with all that is wanted, and throws before a byte is
//              written to a destination; so the report names everything that does not match
//   Transfer   the common part of one stored box and one destination box, as runs that are
//              contiguous in both; it knows the next byte of the file that it needs
//   read_file  a heap of transfers by that byte.  It reads the chunk of the foremost transfer, lets
//              every transfer that needs bytes of the chunk copy them, and goes on
//
// So each chunk that somebody needs is read and checked once, in the order of the file, and no
// other; the memory is one chunk.  A run may go over the end of a chunk: its transfer keeps how far
// it is (done_) and returns to the heap.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "ashlar/checkpoint/boxes.h"
#include "ashlar/checkpoint/cover.h"
#include "ashlar/checkpoint/step_reader.h"
#include "ashlar/core/clock.h"

namespace ashlar::checkpoint {
namespace {

bool matches_any(std::string_view name, std::span<const std::string> patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(name, pattern); });
}

bool convertible(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16;
}

std::string some_of(std::span<const std::string> items) {
  constexpr size_t kMost = 5;
  std::string text = fmt::format("{}", fmt::join(items.first(std::min(kMost, items.size())), ", "));
  if (items.size() > kMost) text += fmt::format(" and {} more", items.size() - kMost);
  return text;
}

// Compares what is stored with what is wanted, as the options allow.
class Matcher {
 public:
  Matcher(const StepReader& reader, const LoadOptions& options)
      : reader_(reader), options_(options) {}

  LoadReport check(std::span<const Piece> destinations) {
    std::set<std::string_view> wanted;
    for (const Piece& piece : destinations) {
      ASHLAR_ASSERT(piece.data.device == Device::kCpu &&
                    piece.data.numel() == piece.box.length.numel() &&
                    inside(piece.box, piece.logical.global_shape));
      // A tensor may have several destinations, which agree in all that is checked but the box.
      if (wanted.insert(piece.logical.name).second) check(piece);
    }
    for (const IndexTensor& tensor : reader_.index().tensors)
      if (!tensor.alias && !wanted.contains(tensor.logical.name) && considered(tensor)) {
        const bool allowed = matches_any(tensor.logical.name, options_.allow_unexpected);
        (allowed ? report_.unexpected : unexpected_).push_back(tensor.logical.name);
      }
    report_.tensors = int64_t(wanted.size() - report_.missing.size());
    fail_on_findings();
    return std::move(report_);
  }

 private:
  bool considered(const IndexTensor& tensor) const {
    return options_.components.empty() ||
           std::count(options_.components.begin(), options_.components.end(),
                      component_of(reader_.index(), tensor)) > 0;
  }

  void check(const Piece& piece) {
    const LogicalTensor& wanted = piece.logical;
    const IndexTensor* stored = reader_.find(wanted.name);
    if (!stored) {
      const bool allowed = matches_any(wanted.name, options_.allow_missing);
      (allowed ? report_.missing : missing_).push_back(wanted.name);
      return;
    }
    if (!(stored->logical.global_shape == wanted.global_shape)) {
      mismatched_.push_back(fmt::format("{} is {} but {} is wanted", wanted.name,
                                        stored->logical.global_shape.to_string(),
                                        wanted.global_shape.to_string()));
      return;
    }
    const DType from = stored->logical.dtype, to = piece.data.dtype;
    if (from != to) {
      const bool asked =
          std::count(options_.cast.begin(), options_.cast.end(), std::pair(from, to));
      if (asked && convertible(from) && convertible(to))
        report_.cast.push_back(wanted.name);
      else
        mismatched_.push_back(
            fmt::format("{} is {} but {} is wanted", wanted.name, name_of(from), name_of(to)));
    }
    // Whole tensors, whatever part of them is wanted: a hole is damage wherever it lies.
    std::vector<Box> boxes;
    for (const IndexBox& box : stored->boxes) boxes.push_back(box.box);
    const auto error = find_cover_error(wanted.global_shape, boxes);
    ASHLAR_REQUIRE(!error, kCorrupt, "{}: tensor '{}': {}", reader_.directory(), wanted.name,
                   *error);
  }

  void fail_on_findings() const {
    std::string text;
    const auto add = [&](std::string_view what, std::span<const std::string> items) {
      if (!items.empty())
        text += fmt::format("{}{} {}", text.empty() ? "" : "; ", what, some_of(items));
    };
    add("missing there:", missing_);
    add("not wanted here:", unexpected_);
    add("different:", mismatched_);
    ASHLAR_REQUIRE(
        text.empty(), kConfig,
        "{} does not match this model: {}; use the recipe that the checkpoint was made with",
        reader_.directory(), text);
  }

  const StepReader& reader_;
  const LoadOptions& options_;
  LoadReport report_;
  std::vector<std::string> missing_, unexpected_, mismatched_;
};

// The common part of a stored box and a destination, copied as the file passes by.
class Transfer {
 public:
  Transfer(const IndexBox& stored, DType from, const Box& part, const Piece& destination)
      : begin_(stored.byte_offset),
        from_(from),
        to_(destination.data),
        runs_(part, stored.box, destination.box) {}

  int64_t next_byte() const { return begin_ + runs_.from() * size_of(from_) + done_; }
  bool done() const { return runs_.done(); }

  // Takes what lies in [offset, offset + chunk.size()) of the file.
  void copy(std::span<const std::byte> chunk, int64_t offset) {
    const int64_t end = offset + int64_t(chunk.size());
    const int64_t run_bytes = runs_.length() * size_of(from_);
    while (!runs_.done() && next_byte() < end) {
      const int64_t at = next_byte(), bytes = std::min(run_bytes - done_, end - at);
      copy_run(chunk.data() + (at - offset), bytes);
      done_ += bytes;
      if (done_ < run_bytes) return;
      done_ = 0;
      runs_.next();
    }
  }

 private:
  void copy_run(const std::byte* source, int64_t bytes) const {
    const int64_t count = bytes / size_of(from_);
    std::byte* target = to_.data + (runs_.to() + done_ / size_of(from_)) * size_of(to_.dtype);
    if (from_ == to_.dtype) {
      std::memcpy(target, source, size_t(bytes));
      return;
    }
    Tensor in{const_cast<std::byte*>(source), from_, Device::kCpu, Shape{count}};
    copy_convert(in, Tensor{target, to_.dtype, Device::kCpu, Shape{count}});
  }

  int64_t begin_;
  DType from_;
  Tensor to_;
  Runs runs_;
  int64_t done_ = 0;  // bytes of the current run; whole elements, since chunks end on them
};

int64_t read_file(const StepReader& reader, size_t file_index, std::vector<Transfer> waiting,
                  std::span<std::byte> buffer) {
  const auto later = [](const Transfer& a, const Transfer& b) {
    return a.next_byte() > b.next_byte();
  };
  std::make_heap(waiting.begin(), waiting.end(), later);
  const auto file = reader.open(file_index);
  int64_t bytes_read = 0;
  while (!waiting.empty()) {
    const int64_t chunk = waiting.front().next_byte() >> kChunkLog2;
    const auto bytes = reader.read_chunk(*file, file_index, chunk, buffer);
    bytes_read += int64_t(bytes.size());
    const int64_t offset = chunk * kChunkBytes, end = offset + int64_t(bytes.size());
    while (!waiting.empty() && waiting.front().next_byte() < end) {
      std::pop_heap(waiting.begin(), waiting.end(), later);
      waiting.back().copy(bytes, offset);
      if (waiting.back().done())
        waiting.pop_back();
      else
        std::push_heap(waiting.begin(), waiting.end(), later);
    }
  }
  return bytes_read;
}

}  // namespace

LoadReport StepReader::load(std::span<const Piece> destinations, const LoadOptions& options) const {
  const auto start = Clock::now();
  LoadReport report = Matcher(*this, options).check(destinations);
  std::map<size_t, std::vector<Transfer>> by_file;
  for (const Piece& piece : destinations) {
    const IndexTensor* stored = find(piece.logical.name);
    if (!stored) continue;  // allowed to be missing
    for (const IndexBox& box : stored->boxes)
      if (const auto part = intersect(box.box, piece.box))
        by_file[box.file].emplace_back(box, stored->logical.dtype, *part, piece);
  }
  // The buffer starts at an address aligned for every element type, and so does every chunk.
  std::vector<std::byte> buffer(size_t{kChunkBytes});
  for (auto& [file, transfers] : by_file)
    report.bytes_read += read_file(*this, file, std::move(transfers), buffer);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace ashlar::checkpoint
