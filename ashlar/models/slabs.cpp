#include "ashlar/models/slabs.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "ashlar/core/threads.h"

namespace ashlar::models {
namespace {

// A range with the position of its first element in the reader's files.
struct Placed {
  TensorRange range;
  int64_t place, element_bytes;
};

class Cutter {
 public:
  void add(Placed placed) {
    TensorRange& rest = placed.range;
    while (rest.count > 0) {
      const int64_t count = std::min(rest.count, room(placed));
      if (count == 0) {
        end_slab();
        continue;
      }
      slabs_.back().push_back({rest.tensor, rest.first, count});
      used_ += count;
      rest.first += count;
      rest.count -= count;
      placed.place += count * placed.element_bytes;
    }
  }
  std::vector<Slab> take() {
    if (slabs_.back().empty()) slabs_.pop_back();
    return std::move(slabs_);
  }

 private:
  // Elements until the slab is full, or until the last border of chunks before that; 0: the next
  // slab takes more of them.
  int64_t room(const Placed& placed) const {
    const int64_t left = kSlabElements - used_;
    if (placed.range.count <= left) return left;
    const int64_t begin = placed.place / placed.element_bytes;
    const int64_t chunk = checkpoint::kChunkBytes / placed.element_bytes;
    const int64_t border = (begin + left) / chunk * chunk;
    if (border > begin) return border - begin;
    return used_ > 0 ? 0 : left;
  }
  void end_slab() {
    slabs_.emplace_back();
    used_ = 0;
  }

  std::vector<Slab> slabs_{1};
  int64_t used_ = 0;  // elements of the last slab
};

}  // namespace

std::vector<Slab> cut_into_slabs(std::span<const LogicalTensor> tensors,
                                 std::span<const TensorRange> ranges, const TensorReader& reader) {
  std::vector<Placed> placed;
  for (const TensorRange& range : ranges) {
    const BytePosition place = reader.position_of(tensors[range.tensor].name);
    placed.push_back({range, place.begin + range.first * place.element_bytes, place.element_bytes});
  }
  std::ranges::stable_sort(placed, {}, &Placed::place);
  Cutter cutter;
  for (const Placed& each : placed) cutter.add(each);
  return cutter.take();
}

int64_t num_elements(const Slab& slab) {
  int64_t count = 0;
  for (const TensorRange& range : slab) count += range.count;
  return count;
}

void add_pieces(const LogicalTensor& logical, const TensorRange& range, const Tensor& data,
                std::vector<Piece>& pieces) {
  std::byte* at = data.data;
  for (const Box& box :
       boxes_of_range(Box::whole(logical.global_shape), range.first, range.first + range.count)) {
    pieces.push_back({logical, box, Tensor{at, data.dtype, Device::kCpu, box.length}});
    at += box.length.numel() * size_of(data.dtype);
  }
}

int num_workers(int num_threads) {
  return num_threads == 0 ? kMaxWorkers : std::clamp(num_threads, 1, kMaxWorkers);
}

void for_each_slab(std::span<const Slab> slabs, int num_threads, Log* log, const std::string& label,
                   function_ref<void(const Slab& slab, int worker)> body) {
  int64_t total = 0;
  for (const Slab& slab : slabs) total += num_elements(slab);
  std::optional<Progress> progress;
  if (log) progress.emplace(*log, label, total, "elements");
  std::mutex mutex;                  // of the progress
  std::atomic<bool> failed = false;  // the remaining slabs are skipped
  Threads threads(num_workers(num_threads));
  threads.run(int64_t(slabs.size()), [&](int64_t n, int worker) {
    const Slab& slab = slabs[size_t(n)];
    if (failed) return;
    try {
      body(slab, worker);
    } catch (...) {
      failed = true;
      throw;
    }
    const std::lock_guard lock(mutex);
    if (progress) progress->advance(num_elements(slab));
  });
}

}  // namespace ashlar::models
