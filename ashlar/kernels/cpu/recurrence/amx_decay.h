// The decays of one head inside a tile (tile_decay.h), as the products on AMX read them.
//
// Decays of a head or a token are factors of rows.  Gates of channels are factors of the elements
// of queries and keys, relative to the first token s of a segment, so that pairs are one product:
//
//   x_i . k_j e^(c_i - c_j) = (x_i e^(c_i - c_s)) . (k_j e^(c_s - c_j))        j <= i, s <= i
//
// A segment ends before the token at which e^(c_i - c_s) would fall below kFaintest in any channel;
// a tile of usual gates is one segment.  No factor overflows, bf16 rounds relative to each, and the
// pairs of token i depend on tokens up to it alone.
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
  // Factors of rows or, of channels, of elements in rows of padded(dk).
  const float* in() const { return in_; }
  const float* out() const { return out_; }
  const float* whole() const { return whole_; }  // [padded(dk)]: e^(c_end)
  PairDecays pairs(int64_t n, int64_t rows) const { return {between_, n, rows}; }

  // Gates of channels: fills later [first, end) and earlier [0, end) of the segment that begins at
  // token `first`, and returns its end.
  int64_t segment(int64_t first) const;
  float* later(int64_t i) const { return later_ + i * stride_; }
  float* earlier() const { return earlier_; }

 private:
  void begin_rows(int64_t h, const Tile& tile);
  void begin_channels(int64_t h, const Tile& tile);

  const RecurrenceArgs& x_;
  const RowOps<float>& ops_;
  const int64_t stride_;
  int64_t n_ = 0;
  float *between_, *in_, *out_, *whole_;
  float *a_ = nullptr, *later_ = nullptr, *earlier_ = nullptr;  // [kTile, padded(dk)]
};

}  // namespace ashlar::kernels::cpu::amx
