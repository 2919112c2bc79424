// The decays of one head inside a part of a tile, moved into what its products read and write.
//
// With c_i the sum of log a over the part's tokens up to i, the recurrence of a head or token decay
// is the one without decay of other values and outputs, and with gates of channels that of other
// queries and keys; M is the state:
//
//   w_j' = e^(-c_j) w_j    o_i = e^(c_i) o_i'          M after the part = e^(c_end) M'
//   k_j' = e^(-c_j) k_j    q_i' = e^(c_i) q_i          where the delta rule reads, k_i e^(c_i)
//
// A part ends before the token at which e^(c_i) would fall below kFaintest in any channel; usual
// gates leave a tile whole.  So no factor overflows, bf16 rounds relative to each number, and what
// token i reads depends on tokens up to it alone.  What a first token would pass by less than
// kFaintest does not pass.
#pragma once

#include "ashlar/kernels/cpu/recurrence/amx_passes.h"
#include "ashlar/kernels/cpu/recurrence/tile_decay.h"

namespace ashlar::kernels::cpu::amx {

inline constexpr int64_t kTile = Recurrence::kTile;

class Decays {
 public:
  Decays(const RecurrenceArgs& x, Pieces<float>& memory);
  // Fills the factors of the part that begins with the tile, and returns it.
  Tile begin(int64_t h, const Tile& tile);

  bool none() const { return x_.decay == Decay::kNone; }
  bool channels() const { return x_.decay == Decay::kChannel; }
  bool rows() const { return !none() && !channels(); }
  // e^(c_i) and e^(-c_i): of rows or, of channels, of elements in rows of padded(dk).
  const float* in() const { return in_; }
  const float* inverse() const { return inverse_; }
  const float* whole() const { return whole_; }  // [padded(dk)]: e^(c_end)
  // Clears the rows of a state that do not pass the first token.
  void drop(float* state, int64_t cols) const;
  bool drops(int64_t channel) const { return drops_ && dropped_[channel] != 0; }

 private:
  int64_t begin_rows(int64_t h, const Tile& tile);
  int64_t begin_channels(int64_t h, const Tile& tile);

  const RecurrenceArgs& x_;
  const RowOps<float>& ops_;
  const int64_t stride_;
  bool drops_ = false;
  float *a_, *in_, *inverse_, *whole_, *dropped_;
};

}  // namespace ashlar::kernels::cpu::amx
