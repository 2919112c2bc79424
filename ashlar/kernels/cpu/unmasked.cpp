// How it works.  A piece is the part of a document in a chunk.  Its sum is a product over its
// tokens, grouped by key heads (linear.h): a matrix [r dv, dk] for each, r value heads to a key
// head.  With the outside sum added, it is the weight of the products that make the output.
//
// The record of a call and its workspace do not depend on documents, which a dry run does not know:
// a call is recorded as one, and takes the workspace of a piece with all tokens.
#include "ashlar/kernels/unmasked.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/linear.h"

namespace ashlar::kernels::cpu {
namespace {

struct Piece {
  int64_t begin, end;
  int64_t chunk;
  bool goes_on_from_before;  // the chunk
  bool is_last;              // of the chunk
};

// body(piece) for all of them, in the order of the tokens.
template <typename Body>
void for_pieces(const Recurrence& x, Body body) {
  const std::span<const StateChunk> documents = x.sequence.documents();
  size_t d = 0;
  for (size_t c = 0; c < x.chunks.size(); ++c) {
    const StateChunk& chunk = x.chunks[c];
    while (documents[d].end <= chunk.begin) ++d;
    for (;; ++d) {
      const int64_t begin = std::max(documents[d].begin, chunk.begin),
                    end = std::min(documents[d].end, chunk.end);
      const bool is_last = end == chunk.end;
      body(Piece{begin, end, int64_t(c),
                 begin == chunk.begin && x.sequence.position_T()[size_t(begin)] > 0, is_last});
      if (is_last) break;
    }
  }
}

// body(context, piece) for all of them.
template <typename Body>
void run(const Context& ctx, const Recurrence& x, Body body) {
  Arena counts(Device::kMeta);
  Context quiet = ctx;
  quiet.trace = nullptr;
  Context meta = quiet;
  meta.device = Device::kMeta;
  meta.workspace = &counts;
  body(meta, Piece{0, x.sequence.num_tokens(), 0, true, true});
  const Arena::Scope scope(*ctx.workspace);
  {
    const Arena::Scope as_planned(*ctx.workspace);
    ctx.workspace->take(DType::kU8, {counts.peak_bytes()});
  }
  if (!ctx.meta()) for_pieces(x, [&](const Piece& piece) { body(quiet, piece); });
}

Matrix rows(const Matrix& m, const Piece& piece) {
  return m.row_range(piece.begin, piece.end);
}

// The states of a chunk [H, dk, dv] as weights by key heads.
Tensor by_key_heads(const RecurrenceShape& s, const Tensor& states) {
  return states.view({s.K, s.H / s.K * s.dv, s.dk});
}

class Weight {
 public:
  Weight(const Context& ctx, DType compute, const Recurrence& x)
      : ctx_(ctx), x_(x), scope_(*ctx.workspace) {
    const RecurrenceShape& s = x.shape;
    Arena& workspace = *ctx.workspace;
    const DType type = x.q.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    state_ = workspace.take(type, {s.H, s.dk, s.dv});
    scale_ = workspace.take(type, {s.H});
    kernels::fill(ctx, scale_, s.scale);
    operand_.w = by_key_heads(s, state_);
    const OperandLayout layout = kernels::operand_layout(ctx, s.K, operand_.n(), operand_.k(),
                                                         compute, /*for_backward=*/true);
    if (layout.forward_numel > 0)
      operand_.forward = workspace.take(layout.dtype, {layout.forward_numel});
    if (layout.backward_numel > 0)
      operand_.backward = workspace.take(layout.dtype, {layout.backward_numel});
  }

  // scale times the sum of left right^T over the piece and what is outside of it.
  const Operand& of(DType compute, const Piece& piece, const Matrix& left, const Matrix& right,
                    const Tensor& outside) {
    kernels::blockdiag_linear_backward_weight(ctx_, compute, rows(right, piece), rows(left, piece),
                                              operand_.w, /*accumulate=*/false);
    const auto num_chunks = int64_t(x_.chunks.size());
    if (outside && piece.goes_on_from_before) add_one(outside, piece.chunk);
    if (outside && piece.is_last) add_one(outside, num_chunks + piece.chunk);
    kernels::apply_map(ctx_, scale_, {}, state_, false);
    kernels::pack(ctx_, operand_);
    return operand_;
  }

 private:
  void add_one(const Tensor& states, int64_t n) {
    kernels::add(ctx_, states.slice(n, n + 1).view(state_.shape), state_);
  }

  const Context& ctx_;
  const Recurrence& x_;
  const Arena::Scope scope_;
  Tensor state_, scale_;
  Operand operand_;
};

}  // namespace

void unmasked_sums(const Context& ctx, DType compute, const Recurrence& x, const Matrix& left,
                   const Matrix& right, const Tensor& sums) {
  const auto num_chunks = int64_t(x.chunks.size());
  run(ctx, x, [&](const Context& ctx, const Piece& piece) {
    const auto sum = [&](int64_t n) {
      kernels::blockdiag_linear_backward_weight(ctx, compute, rows(right, piece), rows(left, piece),
                                                by_key_heads(x.shape, sums.slice(n, n + 1)),
                                                /*accumulate=*/false);
    };
    const Tensor first = sums.slice(num_chunks + piece.chunk, num_chunks + piece.chunk + 1);
    const bool is_first = piece.begin == x.chunks[size_t(piece.chunk)].begin;
    if (is_first && !piece.goes_on_from_before) kernels::fill(ctx, first, 0.0);
    if (is_first && piece.goes_on_from_before) sum(num_chunks + piece.chunk);
    if (piece.is_last && is_first && piece.goes_on_from_before)
      kernels::copy(ctx, first, sums.slice(piece.chunk, piece.chunk + 1));
    else if (piece.is_last)
      sum(piece.chunk);
  });
}

void unmasked_forward(const Context& ctx, DType compute, const Recurrence& x, const Tensor& outside,
                      const Matrix& out) {
  run(ctx, x, [&](const Context& ctx, const Piece& piece) {
    Weight weight(ctx, compute, x);
    const Operand& m = weight.of(compute, piece, x.k, x.v, outside);
    kernels::blockdiag_linear_forward(ctx, compute, rows(x.q, piece), m, rows(out, piece));
  });
}

void unmasked_backward(const Context& ctx, DType compute, const Recurrence& x,
                       const Tensor& outside, const RecurrenceGradients& g) {
  run(ctx, x, [&](const Context& ctx, const Piece& piece) {
    Weight weight(ctx, compute, x);
    const Operand& m = weight.of(compute, piece, x.k, x.v, outside);
    kernels::blockdiag_linear_backward_input(ctx, compute, rows(g.dout, piece), m,
                                             rows(g.dq, piece));
    const Operand& e = weight.of(compute, piece, x.q, g.dout, g.d_leaving);
    kernels::blockdiag_linear_backward_input(ctx, compute, rows(x.v, piece), e, rows(g.dk, piece));
    kernels::blockdiag_linear_forward(ctx, compute, rows(x.k, piece), e, rows(g.dv, piece));
  });
}

}  // namespace ashlar::kernels::cpu
