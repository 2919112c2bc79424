// The decays of one head inside a tile, moved into what its products read and write.
//
// With c_i the sum of log a over the tile's tokens up to i, the recurrence of a head or token decay
// is the one without decay of other values and outputs, and with gates of channels that of other
// queries and keys; M is the state:
//
//   w_j' = e^(-c_j) w_j    o_i = e^(c_i) o_i'          M after the tile = e^(c_end) M'
//   k_j' = e^(-c_j) k_j    q_i' = e^(c_i) q_i          where the delta rule reads, k_i e^(c_i)
//
// This holds as long as no e^(c_i) falls below kFaintest in any channel.  Before a token at which
// it would, the tile is cut: a segment ends, and c counts from 0 again.  Usual decays leave a tile
// whole.  In a cut tile
//
//   rows       what is left of a head or token decay is one factor at the start of each segment,
//              `between`, which pairs and states are multiplied by as they would be by decays
//   channels   pairs are products segment by segment (amx_segments.cpp), and what passes to and
//              from the state is multiplied by whole decays
//
// No factor overflows, bf16 rounds relative to each number, and what token i reads depends on
// tokens up to it alone.
#pragma once

#include "ashlar/kernels/cpu/recurrence/amx_passes.h"
#include "ashlar/kernels/cpu/recurrence/tile_decay.h"

namespace ashlar::kernels::cpu::amx {

inline constexpr int64_t kTile = Recurrence::kTile;

class Decays {
 public:
  Decays(const RecurrenceArgs& x, Pieces<float>& memory);
  void begin(int64_t h, const Tile& tile);

  bool none() const { return x_.decay == Decay::kNone; }
  bool channels() const { return x_.decay == Decay::kChannel; }
  bool rows() const { return !none() && !channels(); }
  bool cut() const { return cut_; }
  bool faint() const { return faint_; }  // pass_first changes the state
  // e^(c_i) and e^(-c_i): of rows or, of channels in a whole tile, of elements in rows of
  // padded(dk).
  const float* in() const { return in_; }
  const float* inverse() const { return inverse_; }
  // [padded(dk)]: the state after the tile is passed (the state before it) + made (what k_j' w_j'
  // sum up to).
  const float* passed() const { return passed_; }
  const float* made() const { return cut_ ? made_ : passed_; }
  // In a cut tile: factors of what reads the state before the tile, and of keys in the sum above.
  const float* from_state() const { return from_state_; }
  const float* to_end() const { return to_end_; }
  // The factors at the starts of segments, of rows in a cut tile; else null.
  const float* between() const { return cut_ && !channels() ? between_ : nullptr; }
  // Multiplies a state by the decays of a first token that are too faint to be in e^(c_i).
  void pass_first(float* state, int64_t cols) const;

  // Gates of channels in a cut tile: fills later [first, end) and earlier [0, end) of the segment
  // that begins at token `first`, and returns its end.
  int64_t segment(int64_t first) const;
  float* later(int64_t i) const { return later_ + i * stride_; }
  float* earlier() const { return earlier_; }

 private:
  void begin_rows(int64_t h, const Tile& tile);
  void begin_channels(int64_t h, const Tile& tile);

  const RecurrenceArgs& x_;
  const RowOps<float>& ops_;
  const int64_t stride_;
  int64_t n_ = 0, first_end_ = 0;  // tokens of the tile, of its first segment
  bool faint_ = false, cut_ = false;
  float *a_, *in_, *inverse_, *passed_, *made_, *first_, *from_state_, *to_end_, *between_;
  float *later_ = nullptr, *earlier_ = nullptr;  // [kTile, padded(dk)]
};

}  // namespace ashlar::kernels::cpu::amx
