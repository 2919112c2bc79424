// Tiles of attention, written on scores.h: a warp has 32 lines of a tile, and the block goes over
// the other side in steps of 32 columns, which of bf16 it keeps in shared memory.
#pragma once

#include <type_traits>

#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/rows.h"
#include "ashlar/kernels/gpu/scores.h"
#include "ashlar/kernels/gpu/tile.h"

namespace ashlar::device {

inline constexpr int kStep = 32, kMaxWarps = 4, kMaxThreads = kMaxWarps * kWarp;
inline constexpr int kSharedLimit = kWarp == 64 ? 64 << 10 : 163 << 10;  // of sm_80; sm_90 has more

// Where copies to shared memory are asynchronous, those of the next columns run during a step.
template <typename Element>
inline constexpr int kStages = 1;
template <>
inline constexpr int kStages<Bf16> = kWarp == 64 ? 1 : 2;

// Operands in shared memory are filled up with zeros to this width, a whole number of slices.  The
// sums of a block are those of a slice, 32 kTiles columns.
ASHLAR_BOTH constexpr int padded_width(int width) {
  return width <= 32 ? 32 : width <= 64 ? 64 : (width + 127) / 128 * 128;
}
// Lines begin in different banks, except where they would not fit.
ASHLAR_BOTH constexpr int stride_of(int padded) {
  return padded + (kWarp == 64 && padded > 128 ? 0 : 8);
}

ASHLAR_DEVICE float infinity() {
  return bits_to_float(0x7f800000u);
}

template <typename Element>
ASHLAR_DEVICE float power_of_e(float x);
template <>
ASHLAR_DEVICE float power_of_e<float>(float x) {
  return exp(x);
}
template <>
ASHLAR_DEVICE float power_of_e<Bf16>(float x) {
  return fast_exp2(mul(x, 1.44269504f));
}

// Lines [row, row + count) of one side, up to kStep of them, for a query head.
struct Columns {
  int head, row, count, position;
};

// The columns that a tile meets, one query head after the other.
class Walk {
 public:
  ASHLAR_DEVICE Walk(const AttentionCall& call, const AttentionTile& tile, int head, int end_head)
      : call_(call), tile_(tile), head_(head), end_head_(end_head), segment_(tile.first) {}
  ASHLAR_DEVICE bool next(Columns& columns) {
    for (; head_ < end_head_; ++head_, segment_ = tile_.first) {
      for (; segment_ < tile_.end; ++segment_, at_ = 0) {
        const AttentionSegment s = call_.segments[segment_];
        const int begin = tile_.low - s.position, end = tile_.high - s.position;
        if (at_ < begin) at_ = begin;
        const int count = (end < s.length ? end : s.length) - at_;
        if (count <= 0) continue;
        columns = {head_, s.row + at_, count < kStep ? count : kStep, s.position + at_};
        at_ += kStep;
        return true;
      }
    }
    return false;
  }

 private:
  const AttentionCall& call_;
  const AttentionTile& tile_;
  int head_, end_head_, segment_, at_ = 0;
};

// One operand: a head of a tensor [rows, heads * size], from its column first_column on.
struct HeadSource {
  const void* data;
  int heads, size, first_column;
  template <typename Element>
  ASHLAR_DEVICE const Element* at(int row, int head) const {
    return (const Element*)data + (int64_t(row) * heads + head) * size + first_column;
  }
  ASHLAR_DEVICE int width() const { return size - first_column; }
};

template <typename Element>
class Operand;

// Takes `stages` times `lines` lines of shared memory.
template <>
class Operand<Bf16> {
 public:
  ASHLAR_DEVICE Operand(std::byte*& room, const HeadSource& source, int padded, int lines,
                        int stages, bool by_vectors)
      : room_((Bf16*)room),
        source_(source),
        padded_(padded),
        lines_(lines),
        by_vectors_(by_vectors) {
    room += size_t(stages * lines * stride_of(padded)) * sizeof(Bf16);
  }
  // Copies lines [row, row + count), and zeros after them.
  ASHLAR_DEVICE void load(int stage, int row, int count, int head) {
    const int packs = padded_ / kPack, width = source_.width();
    for (int i = thread_index(); i < lines_ * packs; i += block_size()) {
      const int line = i / packs, column = i % packs * kPack;
      Bf16* to = room_ + (stage * lines_ + line) * stride_of(padded_) + column;
      const Bf16* from = source_.at<Bf16>(row + line, head) + column;
      if (line >= count || column >= width)
        store_vector(to, {});
      else if (by_vectors_)
        copy_async(to, from);
      else
        for (int e = 0; e < kPack; ++e) to[e] = column + e < width ? from[e] : Bf16{0};
    }
  }
  ASHLAR_DEVICE Lines<Bf16> lines(int stage) const {
    const int width = source_.width() < padded_ ? source_.width() : padded_;
    return {room_ + stage * lines_ * stride_of(padded_), stride_of(padded_),
            (width + WarpTile::kDepth - 1) / WarpTile::kDepth * WarpTile::kDepth};
  }

 private:
  Bf16* room_;
  HeadSource source_;
  int padded_, lines_;
  bool by_vectors_;
};

// Stays where it is.
template <>
class Operand<float> {
 public:
  ASHLAR_DEVICE Operand(std::byte*&, const HeadSource& source, int, int, int, bool)
      : source_(source) {}
  ASHLAR_DEVICE void load(int, int row, int count, int head) {
    lines_ = {source_.at<float>(row, head), int64_t(source_.heads) * source_.size, count,
              source_.width()};
  }
  ASHLAR_DEVICE const Lines<float>& lines(int) const { return lines_; }

 private:
  HeadSource source_;
  Lines<float> lines_ = {};
};

// Calls load(stage, columns) and use(stage, columns) for all columns of a walk.  Copies that were
// issued before the call are there in use.
template <int stages, typename Load, typename Use>
ASHLAR_DEVICE void for_each_columns(Walk walk, Load load, Use use) {
  Columns now, then = {};
  bool some = walk.next(now);
  if (stages == 2 && some) load(0, now);
  copy_commit();
  for (int stage = 0; some; stage = (stage + 1) % stages) {
    const bool more = walk.next(then);
    if (stages == 1)
      load(0, now);
    else if (more)
      load(1 - stage, then);
    copy_commit();
    copy_wait<stages - 1>();
    sync_block();
    use(stage, now);
    sync_block();  // before these columns are overwritten
    now = then;
    some = more;
  }
}

// Queries see keys at their own position and up to window - 1 before it.
enum class AttentionSide { kQueries, kKeys };
template <AttentionSide rows>
class Sight {
 public:
  // Rows [position, + 32) against columns.
  ASHLAR_DEVICE Sight(int position, const Columns& columns, int window)
      : distance_(rows == AttentionSide::kQueries ? position - columns.position
                                                  : columns.position - position),
        count_(columns.count),
        window_(window) {}
  ASHLAR_DEVICE bool sees(int row, int column) const {
    const int distance =
        distance_ + (rows == AttentionSide::kQueries ? row - column : column - row);
    return column < count_ && distance >= 0 && distance < window_;
  }
  ASHLAR_DEVICE bool none() const { return most() < 0 || least() >= window_; }
  ASHLAR_DEVICE bool all() const { return least() >= 0 && most() < window_ && count_ == kStep; }

 private:
  ASHLAR_DEVICE int least() const {
    return distance_ - (rows == AttentionSide::kQueries ? count_ - 1 : kStep - 1);
  }
  ASHLAR_DEVICE int most() const {
    return distance_ + (rows == AttentionSide::kQueries ? kStep - 1 : count_ - 1);
  }
  int distance_, count_, window_;
};

// This is what a block does.
template <int kTiles>
struct AttentionWork {
  ASHLAR_DEVICE AttentionWork(const AttentionCall& call, int num_heads, int width) {
    const int slices = (width + 32 * kTiles - 1) / (32 * kTiles);
    head = block_index() % num_heads;
    first_column = block_index() / num_heads % slices * 32 * kTiles;
    tile = call.tiles[block_index() / num_heads / slices];
    first_line = thread_index() / kWarp * kStep;
  }
  int head, first_column;
  AttentionTile tile;
  int first_line;  // of this warp
};

template <typename Element>
ASHLAR_DEVICE std::byte* room_of_warp() {
  return shared_memory() + thread_index() / kWarp * WarpScores<Element>::kRoomBytes;
}

// A block holds lines of the tile, of widths a and b, and columns of widths c and d.
struct BlockShape {
  int warps, bytes;
};
template <typename Element>
BlockShape shape_of(int a, int b, int c, int d) {
  if (sizeof(Element) == sizeof(float))
    return {kMaxWarps, kMaxWarps * WarpScores<Element>::kRoomBytes};
  const auto stride = [](int width) { return width == 0 ? 0 : stride_of(padded_width(width)); };
  BlockShape shape{kMaxWarps, 0};
  for (;; shape.warps /= 2) {
    shape.bytes =
        kStep * int(sizeof(Bf16)) *
        (shape.warps * (stride(a) + stride(b)) + kStages<Element> * (stride(c) + stride(d)));
    if (shape.bytes <= kSharedLimit || shape.warps == 1) return shape;
  }
}
static_assert(2 * kStep * 2 * stride_of(256) * sizeof(Bf16) <= kSharedLimit,
              "the widest operands of a warp fit");

template <typename Element>
BlockShape forward_shape(int head_size, int value_size) {
  const int slice = value_size < 128 ? value_size : 128;
  return shape_of<Element>(head_size, 0, head_size, slice);
}
template <typename Element>
BlockShape backward_shape(int head_size, int value_size) {
  return shape_of<Element>(head_size, value_size, head_size, value_size);
}

// Calls use(an Element, number of tiles of a slice), of at most kMost tiles.
template <int kMost, typename Use>
std::string with_slices(ElementType type, int width, Use use) {
  if (type == ElementType::kF32) return use(float(), std::integral_constant<int, 1>());
  if (width <= 32) return use(Bf16(), std::integral_constant<int, 1>());
  if constexpr (kMost == 4)
    if (width > 64) return use(Bf16(), std::integral_constant<int, 4>());
  return use(Bf16(), std::integral_constant<int, 2>());
}

template <int tiles>
int64_t num_blocks(const AttentionCall& c, int num_heads, int width) {
  return int64_t(c.num_tiles) * num_heads * ((width + 32 * tiles - 1) / (32 * tiles));
}

}  // namespace ashlar::device
