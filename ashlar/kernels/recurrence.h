// Linear attention: mixers that carry the past of a head in one matrix, its state.
//
//   M_t = Diag(a_t) M_{t-1} + k_t w_t^T        o_t = scale M_t^T q_t        for t after t
//   w_t = v_t                                   linear attention with decay a
//   w_t = beta_t (v_t - (Diag(a_t) M_{t-1})^T k_t)   with beta: the (gated) delta rule
//
// a is 1 (no decay), a number per head, per token and head, or per token, head and key channel.  It
// is given as its logarithm, which is <= 0.  The state is 0 at the start of a document.  Tokens
// come in chunks, ranges of consecutive tokens through which the state is carried, from the state
// that enters the chunk to the one that leaves it.  The entering state is 0, or known (a cache), or
// comes from the ranks that hold the chunks before (parallel/cp_states.h).  These exchange the
// linear map that a chunk applies to the state that enters it:
//
//   leaving = transition entering + made        transition Diag(product of a), or a matrix
//                                                (dk x dk, delta rule); 0 where a document starts
//
// and in backward the same for gradients, from the end to the beginning:
//
//   d_entering = transition^T d_leaving + d_made
//
// Source   Katharopoulos et al. 2020, arXiv:2006.16236; gates: GLA, arXiv:2312.06635; delta rule:
//          arXiv:2406.06484, gated: arXiv:2412.06464; chunks of ranks: LASP-2, arXiv:2502.07563.
// Shapes   T tokens, K heads of q and k, H value heads (value head h reads q and k of head
//          h / (H / K)), dk, dv channels, C chunks.  q k dq dk_ [T, K dk]; v out dv_ [T, H dv];
//          log_decay [H], [T, H] or [T, H dk]; beta [T, H]; states [C, H, dk, dv].
// Types    q k v: BF16, F32 or F64; everything else F32 (F64 with F64).  Sums and states are F32,
//          also where products multiply BF16.
// Cost     flop per token and head, with B = kTile; a token meets half the tokens of its tile:
//            forward             B dk + B dv + 4 dk dv       beta: B dk + B dv + 2 dk dv more
//            backward            3 B dk + 2 B dv + 10 dk dv  beta: 3 B dk + 3 B dv + 6 dk dv more
//            maps                2 dk dv          beta: 2 B dk + B dv + 2 dk dv + 4 dk dk more
//            maps of gradients   2 dk dv          beta: 2 B dk + 2 B dv + 4 dk dv more
// Memory   temporary tiles from ctx.workspace, one set per thread.
// Numerics a token's bits depend only on tokens up to it.  No exponent is above 0, on AMX
//          none above 51.  The same bits for any number of threads.
#pragma once

#include <span>

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

struct RecurrenceShape {
  int64_t K, H, dk, dv;
  double scale = 1.0;  // on q
};

// The granularity of a.
enum class Decay : uint8_t { kNone, kHead, kToken, kChannel };

// The recurrence, and its inputs in forward and backward.
struct Recurrence {
  // Tokens of a tile, which meet each other in products instead of through states.
  static constexpr int64_t kTile = 64;
  // Forward keeps the state before every token whose number is a multiple of this, for backward.
  static constexpr int64_t kStride = 256;

  RecurrenceShape shape;
  const Sequence& sequence;  // has the starts of documents
  std::span<const StateChunk> chunks;
  Decay decay = Decay::kNone;
  Matrix q, k, v;
  Tensor log_decay = {};  // absent: Decay::kNone
  Tensor beta_TH = {};    // absent: no delta rule
  Tensor entering = {};   // [C, H, dk, dv]; absent: 0
  // [ceil(T / kStride), H, dk, dv]: the states that forward keeps for backward.  The state before a
  // token that starts a document or a chunk is not read.  Absent: nothing is kept.
  Tensor kept = {};

  static int64_t num_kept(int64_t num_tokens) { return (num_tokens + kStride - 1) / kStride; }
};
TraceDims dims_of(const Recurrence&);  // heads, tokens, dv, dk

// Fills out [T, H dv] and, if present, kept and leaving [C, H, dk, dv]; leaving may be entering
// itself.
void recurrence_forward(const Context&, DType compute, const Recurrence&, const Matrix& out,
                        const Tensor& leaving = {});

struct RecurrenceGradients {
  Matrix dout;             // [T, H dv]
  Tensor d_leaving = {};   // [C, H, dk, dv]; absent: 0
  Matrix dq, dk, dv;       // filled
  Tensor dlog_decay = {};  // shaped as log_decay, filled; absent if decay is not per token
  Tensor dbeta_TH = {};    // filled; absent without beta
};
// Reads kept, as forward filled it.
void recurrence_backward(const Context&, DType compute, const Recurrence&,
                         const RecurrenceGradients&);

// The shape of transitions of `num_chunks` chunks: [C, H, dk, dk] with the delta rule, [C, H, dk]
// with Decay::kChannel, else [C, H].
Shape transition_shape(const RecurrenceShape&, Decay, bool delta, int64_t num_chunks);
// Fills the maps of the chunks; q, entering and kept are not read.
void recurrence_maps(const Context&, DType compute, const Recurrence&, const Tensor& transition,
                     const Tensor& made);
// Fills the gradients' d_made [C, H, dk, dv]; entering, kept and v are not read.
void recurrence_backward_maps(const Context&, DType compute, const Recurrence&, const Matrix& dout,
                              const Tensor& d_made);

// state [n, dk, dv] = transition state + made, for n heads; transition [n], [n, dk] or [n, dk, dk],
// transposed: its transpose.  made may be absent (0).
void apply_map(const Context&, const Tensor& transition, const Tensor& made, const Tensor& state,
               bool transposed);

}  // namespace ashlar::kernels
