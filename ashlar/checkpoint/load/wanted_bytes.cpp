#include "ashlar/checkpoint/load/wanted_bytes.h"

#include <algorithm>
#include <cstring>

#include "ashlar/tensor/host_bytes.h"

namespace ashlar::checkpoint {

BoxCopy::BoxCopy(const IndexBox& stored, DType from, const Box& part, const Piece& destination)
    : begin_(stored.byte_offset),
      from_(from),
      to_(destination.data),
      runs_(part, stored.box, destination.box),
      element_bytes_(size_of(from)),
      run_bytes_(runs_.length() * element_bytes_) {}

void BoxCopy::copy(std::span<const std::byte> bytes, int64_t offset) const {
  constexpr int kRunsAhead = 2;
  const int64_t end = offset + int64_t(bytes.size());
  Runs runs = runs_;
  runs.seek(element_at(offset));
  Runs ahead = runs;
  for (int i = 0; i < kRunsAhead && !ahead.done(); ++i) ahead.next();
  for (; !runs.done() && begin_of(runs) < end; runs.next()) {
    if (!ahead.done()) {
      prefetch(bytes, begin_of(ahead) - offset);
      ahead.next();
    }
    const int64_t first = std::max(begin_of(runs), offset);
    const int64_t last = std::min(begin_of(runs) + run_bytes_, end);
    copy_run(bytes.data() + (first - offset), last - first,
             runs.to() + (first - begin_of(runs)) / element_bytes_);
  }
  finish_copies_from_host();
}

int64_t BoxCopy::bytes_between(int64_t offset, int64_t end) const {
  int64_t bytes = 0;
  Runs runs = runs_;
  for (runs.seek(element_at(offset)); !runs.done() && begin_of(runs) < end; runs.next())
    bytes += std::min(begin_of(runs) + run_bytes_, end) - std::max(begin_of(runs), offset);
  return bytes;
}

// Fetches the first lines of a run: the processor cannot predict where the next short run is.
void BoxCopy::prefetch(std::span<const std::byte> bytes, int64_t begin) const {
  constexpr int64_t kLine = 64, kMostLines = 16;
  const int64_t most = std::min(run_bytes_, kMostLines * kLine);
  const int64_t end = std::min(begin + most, int64_t(bytes.size()));
  for (int64_t at = begin; at < end; at += kLine) __builtin_prefetch(bytes.data() + at);
}

void BoxCopy::copy_run(const std::byte* source, int64_t bytes, int64_t to) const {
  const int64_t to_bytes = size_of(to_.dtype);
  if (from_ == to_.dtype) return copy_from_host(to_, to * to_bytes, {source, size_t(bytes)});
  constexpr int64_t kElements = 1024;  // converted at a time
  std::byte converted[kElements * sizeof(double)];
  for (int64_t done = 0, count = bytes / element_bytes_; done < count; done += kElements) {
    const Shape shape{std::min(kElements, count - done)};
    const Tensor in{const_cast<std::byte*>(source) + done * element_bytes_, from_, Device::kCpu,
                    shape};
    const Tensor out{converted, to_.dtype, Device::kCpu, shape};
    copy_convert(in, out);
    copy_from_host(to_, (to + done) * to_bytes, {converted, size_t(out.bytes())});
  }
}

WantedBytes::WantedBytes(const StepReader& reader, const ChunkNumbers& chunks,
                         std::span<const Piece> destinations)
    : chunks_(chunks) {
  for (const Piece& piece : destinations) {
    const IndexTensor* stored = reader.find(piece.logical.name);
    if (!stored) continue;  // allowed to be missing
    for (const IndexBox& box : boxes_near(*stored, piece.box)) {
      const auto part = intersect(box.box, piece.box);
      if (!part) continue;
      const auto number = uint32_t(copies_.size());
      copies_.emplace_back(box, stored->logical.dtype, *part, piece);
      copies_.back().for_each_chunk(
          [&](int64_t chunk) { uses_.emplace_back(chunks.first(box.file) + chunk, number); });
    }
  }
  std::sort(uses_.begin(), uses_.end());
}

std::vector<ChunkRange> WantedBytes::ranges() const {
  std::vector<ChunkRange> ranges;
  for (const auto& [chunk, copy] : uses_) {
    if (ranges.empty() || chunk > ranges.back().end) ranges.push_back({chunk, chunk});
    ranges.back().end = chunk + 1;
  }
  return ranges;
}

template <typename F>
void WantedBytes::for_each_use(int64_t chunk, F&& call) const {
  for (auto use = std::lower_bound(uses_.begin(), uses_.end(), std::pair(chunk, uint32_t(0)));
       use != uses_.end() && use->first == chunk; ++use)
    call(copies_[use->second]);
}

void WantedBytes::copy(int64_t chunk, int64_t at, std::span<const std::byte> bytes) const {
  const int64_t offset = begin_of(chunk) + at;
  for_each_use(chunk, [&](const BoxCopy& box_copy) { box_copy.copy(bytes, offset); });
}

bool WantedBytes::nearly_whole(int64_t chunk) const {
  const int64_t begin = begin_of(chunk), size = chunks_.bytes(chunk);
  int64_t wanted = 0;
  for_each_use(chunk, [&](const BoxCopy& box_copy) {
    wanted += box_copy.bytes_between(begin, begin + size);
  });
  return wanted >= size - size / 16;
}

int64_t WantedBytes::begin_of(int64_t chunk) const {
  return (chunk - chunks_.first(chunks_.file(chunk))) * kChunkBytes;
}

void WantedByRank::copy(int64_t chunk, int64_t at, std::span<const std::byte> bytes) {
  const std::shared_lock lock(mutex_);
  if (wanted_) wanted_->copy(chunk, at, bytes);
}

void WantedByRank::leave() {
  const std::unique_lock lock(mutex_);
  wanted_ = nullptr;
}

uint64_t WantedByRanks::add(std::shared_ptr<WantedByRank> wanted) {
  const std::lock_guard lock(mutex_);
  by_number_[++last_] = std::move(wanted);
  return last_;
}

void WantedByRanks::remove(uint64_t number) {
  const std::lock_guard lock(mutex_);
  by_number_.erase(number);
}

std::shared_ptr<WantedByRank> WantedByRanks::find(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

SharedWantedBytes::Listed::Listed(std::shared_ptr<WantedByRanks> in, const WantedBytes& own)
    : list(std::move(in)), wanted(std::make_shared<WantedByRank>(own)), number(list->add(wanted)) {}

SharedWantedBytes::Listed::~Listed() {
  wanted->leave();
  list->remove(number);
}

SharedWantedBytes::SharedWantedBytes(LoadRanks& ranks, const WantedBytes& own)
    : own_(ranks.commons().wanted, own), all_{own_.wanted} {
  if (!ranks.shares_memory()) return;
  all_.clear();
  const auto numbers =
      ranks.all_gather({reinterpret_cast<const char*>(&own_.number), sizeof(own_.number)});
  for (const std::string& said : numbers) {
    uint64_t number = 0;
    std::memcpy(&number, said.data(), sizeof(number));
    if (auto wanted = own_.list->find(number)) all_.push_back(std::move(wanted));
  }
}

void SharedWantedBytes::copy(int64_t chunk, int64_t at, std::span<const std::byte> bytes) const {
  for (const auto& wanted : all_) wanted->copy(chunk, at, bytes);
}

}  // namespace ashlar::checkpoint
