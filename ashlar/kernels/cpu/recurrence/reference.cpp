// How it works.  Token by token, by the formulas of recurrence.h.  A task is a chunk and a key
// head; it runs the value heads that read the key head one after the other, so that dq and dk have
// one order of summation.  A token changes the state in three steps:
//
//   decayed    S = Diag(a) M, or 0 where a document starts
//   written    w = v, or with beta  beta (v - S^T k)
//   M = S + k w^T
//
// Backward runs over blocks of kStride tokens, from the last to the first.  It recomputes the
// states of a block from the one that forward kept, then walks the tokens in reverse; D is the
// gradient of the state that a token leaves.  A is the type of sums: double with F64, else float.
#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/recurrence/args.h"

namespace ashlar::kernels::cpu {
namespace {

// States are [dk, n]: n columns of values, dv of them but for maps.
template <typename A>
struct Walk : HeadOfRecurrence<A> {
  using HeadOfRecurrence<A>::HeadOfRecurrence;
  using HeadOfRecurrence<A>::x;
  using HeadOfRecurrence<A>::h;
  int64_t n = x.shape.dv;

  int64_t size() const { return x.shape.dk * n; }

  void decay(int64_t t, A* M) const {
    if (x.starts_document(t)) return void(std::fill_n(M, size(), A(0)));
    for (int64_t c = 0; c < x.shape.dk; ++c) {
      const A a = std::exp(this->log_decay(t, c));
      for (int64_t e = 0; e < n; ++e) M[c * n + e] *= a;
    }
  }
  // The columns behind the values (the transition's, in maps) have values of 0.
  A value(int64_t t, int64_t e) const { return e < x.shape.dv ? this->v(t, e) : A(0); }
  A read(int64_t t, const A* S, int64_t e) const {  // (S^T k)_e
    A sum = 0;
    for (int64_t c = 0; c < x.shape.dk; ++c) sum += S[c * n + e] * this->k(t, c);
    return sum;
  }
  void written(int64_t t, const A* S, A* w) const {
    for (int64_t e = 0; e < n; ++e)
      w[e] = x.has_beta() ? this->beta(t) * (value(t, e) - read(t, S, e)) : value(t, e);
  }
  void write(int64_t t, const A* w, A* M) const {
    for (int64_t c = 0; c < x.shape.dk; ++c)
      for (int64_t e = 0; e < n; ++e) M[c * n + e] += this->k(t, c) * w[e];
  }
  // The state before token t becomes the one after it; w [n] is scratch.
  void step(int64_t t, A* M, A* w) const {
    decay(t, M);
    written(t, M, w);
    write(t, w, M);
  }
};

// State number i of head h in [.., H, dk, dv]; 0 where it is absent.
template <typename A>
void load_state(const RecurrenceArgs& x, const Tensor& states, int64_t i, int64_t h, A* M) {
  const Cells<A> from(states);
  for (int64_t e = 0; e < x.state_size(); ++e)
    M[e] = from ? from[(i * x.shape.H + h) * x.state_size() + e] : A(0);
}
template <typename A>
void store_state(const RecurrenceArgs& x, const A* M, const Tensor& states, int64_t i, int64_t h) {
  const Cells<A> to(states);
  if (!to) return;
  for (int64_t e = 0; e < x.state_size(); ++e)
    to.set((i * x.shape.H + h) * x.state_size() + e, M[e]);
}

// body(chunk, h, scratch) for all chunks and heads, with `size` elements of A a thread; nothing on
// meta but the workspace.
template <typename A, typename Body>
void for_heads(const RecurrenceArgs& x, int64_t size, Body body) {
  const Arena::Scope scope(*x.ctx.workspace);
  const Tensor scratch = x.ctx.workspace->take(dtype_of<A>, {x.ctx.threads->size(), size});
  if (x.ctx.meta()) return;
  const int64_t K = x.shape.K, group = x.shape.H / K;
  x.ctx.threads->run(int64_t(x.chunks.size()) * K, [&](int64_t task, int worker) {
    for (int64_t h = task % K * group; h < (task % K + 1) * group; ++h)
      body(task / K, h, scratch.as<A>() + worker * size);
  });
}

template <typename A>
void forward(const RecurrenceArgs& x, const Matrix& out, const Tensor& leaving) {
  const auto& [K, H, dk, dv, scale] = x.shape;
  const Cells<A> to(out);
  for_heads<A>(x, x.state_size() + dv, [&](int64_t chunk, int64_t h, A* M) {
    const Walk<A> walk(x, h);
    A* w = M + x.state_size();
    load_state(x, x.entering, chunk, h, M);
    for (int64_t t = x.chunks[size_t(chunk)].begin; t < x.chunks[size_t(chunk)].end; ++t) {
      if (t % Recurrence::kStride == 0) store_state(x, M, x.kept, t / Recurrence::kStride, h);
      walk.step(t, M, w);
      for (int64_t e = 0; e < x.shape.dv; ++e) {
        A sum = 0;
        for (int64_t c = 0; c < x.shape.dk; ++c) sum += walk.q(t, c) * M[c * x.shape.dv + e];
        to.set(t * out.stride + h * x.shape.dv + e, A(x.shape.scale) * sum);
      }
    }
    store_state(x, M, leaving, chunk, h);
  });
}

// One token back.  M is the state that it leaves, S the one before it with its decay.  D is the
// gradient of M, and becomes that of the state before the token.
template <typename A>
struct BackwardStep {
  const Walk<A>& walk;
  const RecurrenceGradients& g;
  bool adds;  // to dq and dk, which an earlier head has filled
  const A *S, *M, *w;
  A *D, *dw;

  void run(int64_t t) const {
    const RecurrenceArgs& x = walk.x;
    const int64_t dk = x.shape.dk, dv = x.shape.dv, H = x.shape.H, h = walk.h;
    const Cells<A> dout(g.dout), d_v(g.dv), dlog(g.dlog_decay), dbeta(g.dbeta_TH);
    const auto go = [&](int64_t e) { return dout[t * g.dout.stride + h * dv + e]; };
    for (int64_t c = 0; c < dk; ++c) {
      A sum = 0;
      for (int64_t e = 0; e < dv; ++e) {
        sum += M[c * dv + e] * go(e);
        D[c * dv + e] += A(x.shape.scale) * walk.q(t, c) * go(e);
      }
      put(g.dq, t, c, A(x.shape.scale) * sum);
    }
    for (int64_t e = 0; e < dv; ++e) dw[e] = walk.read(t, D, e);
    A sum_beta = 0;
    for (int64_t e = 0; e < dv; ++e) {
      if (x.has_beta()) sum_beta += dw[e] * (walk.v(t, e) - walk.read(t, S, e));
      d_v.set(t * g.dv.stride + h * dv + e, x.has_beta() ? walk.beta(t) * dw[e] : dw[e]);
    }
    if (dbeta) dbeta.set(t * H + h, sum_beta);
    A sum_decay = 0;
    for (int64_t c = 0; c < dk; ++c) {
      A sum = 0, dot = 0;
      for (int64_t e = 0; e < dv; ++e) {
        sum += D[c * dv + e] * w[e];
        if (!x.has_beta()) continue;
        const A dr = -walk.beta(t) * dw[e];  // of S^T k
        sum += S[c * dv + e] * dr;
      }
      for (int64_t e = 0; e < dv; ++e) {
        if (x.has_beta()) D[c * dv + e] -= walk.k(t, c) * walk.beta(t) * dw[e];
        dot += D[c * dv + e] * S[c * dv + e];
      }
      put(g.dk, t, c, sum);
      if (x.decay == Decay::kChannel) dlog.set((t * H + h) * dk + c, dot);
      sum_decay += dot;
    }
    if (x.decay == Decay::kToken) dlog.set(t * H + h, sum_decay);
    walk.decay(t, D);  // the same factors, and 0 before a document
  }

  void put(const Matrix& to, int64_t t, int64_t c, A value) const {
    const int64_t at = t * to.stride + walk.j * walk.x.shape.dk + c;
    adds ? Cells<A>(to).add(at, value) : Cells<A>(to).set(at, value);
  }
};

template <typename A>
void backward(const RecurrenceArgs& x, const RecurrenceGradients& g) {
  constexpr int64_t kStride = Recurrence::kStride;
  const int64_t size = x.state_size(), dv = x.shape.dv;
  // The states before the tokens of a block and after the last, S and D; w and dw.
  const int64_t num_states = std::min(kStride, x.sequence.num_tokens()) + 1;
  for_heads<A>(x, (num_states + 2) * size + 2 * dv, [&](int64_t chunk, int64_t h, A* states) {
    A *S = states + num_states * size, *D = S + size, *w = D + size, *dw = w + dv;
    const Walk<A> walk(x, h);
    const bool adds = h % (x.shape.H / x.shape.K) != 0;
    const auto [begin, end] = x.chunks[size_t(chunk)];
    load_state(x, g.d_leaving, chunk, h, D);
    for (int64_t block = (end - 1) / kStride; block >= begin / kStride; --block) {
      const int64_t first = std::max(begin, block * kStride),
                    last = std::min(end, (block + 1) * kStride);
      if (first == begin)
        load_state(x, x.entering, chunk, h, states);
      else
        load_state(x, x.kept, block, h, states);
      for (int64_t t = first; t < last; ++t) {
        A* M = states + (t - first + 1) * size;
        std::copy_n(M - size, size, M);
        walk.step(t, M, w);
      }
      for (int64_t t = last - 1; t >= first; --t) {
        const A* M = states + (t - first + 1) * size;
        std::copy_n(M - size, size, S);
        walk.decay(t, S);
        walk.written(t, S, w);
        BackwardStep<A>{walk, g, adds, S, M, w, D, dw}.run(t);
      }
    }
  });
}

// Stores the transition of a chunk.  With beta it is in the columns from dv on, which started as
// the identity; else it is the product of the decays.
template <typename A>
void store_transition(const Walk<A>& walk, int64_t chunk, const A* M, const Tensor& transition) {
  const RecurrenceArgs& x = walk.x;
  const int64_t dk = x.shape.dk, row = chunk * x.shape.H + walk.h;
  const auto [begin, end] = x.chunks[size_t(chunk)];
  const Cells<A> to(transition);
  if (x.has_beta()) {
    for (int64_t c = 0; c < dk; ++c)
      for (int64_t e = 0; e < dk; ++e)
        to.set((row * dk + c) * dk + e, M[c * walk.n + x.shape.dv + e]);
    return;
  }
  const int64_t channels = x.decay == Decay::kChannel ? dk : 1;
  for (int64_t c = 0; c < channels; ++c) {
    A sum = 0;
    bool passes = true;
    for (int64_t t = begin; t < end; ++t) {
      sum += walk.log_decay(t, c);
      passes = passes && !x.starts_document(t);
    }
    to.set(row * channels + c, passes ? std::exp(sum) : A(0));
  }
}

template <typename A>
void maps(const RecurrenceArgs& x, const RecurrenceMaps& maps) {
  const int64_t dk = x.shape.dk, dv = x.shape.dv, n = dv + (x.has_beta() ? dk : 0);
  for_heads<A>(x, dk * n + n, [&](int64_t chunk, int64_t h, A* M) {
    Walk<A> walk(x, h);
    walk.n = n;
    std::fill_n(M, dk * n, A(0));
    for (int64_t c = 0; c < dk && n > dv; ++c) M[c * n + dv + c] = 1;
    const auto [begin, end] = x.chunks[size_t(chunk)];
    for (int64_t t = begin; t < end; ++t) walk.step(t, M, M + dk * n);
    store_transition(walk, chunk, M, maps.transition);
    const Cells<A> made(maps.made);
    for (int64_t c = 0; c < dk; ++c)
      for (int64_t e = 0; e < dv; ++e)
        made.set(((chunk * x.shape.H + h) * dk + c) * dv + e, M[c * n + e]);
  });
}

template <typename A>
void backward_maps(const RecurrenceArgs& x, const Matrix& dout, const Tensor& d_made) {
  const int64_t dk = x.shape.dk, dv = x.shape.dv;
  const Cells<A> go(dout);
  for_heads<A>(x, x.state_size() + dv, [&](int64_t chunk, int64_t h, A* D) {
    const Walk<A> walk(x, h);
    A* dw = D + x.state_size();
    std::fill_n(D, x.state_size(), A(0));
    const auto [begin, end] = x.chunks[size_t(chunk)];
    for (int64_t t = end - 1; t >= begin; --t) {
      for (int64_t c = 0; c < dk; ++c)
        for (int64_t e = 0; e < dv; ++e)
          D[c * dv + e] += A(x.shape.scale) * walk.q(t, c) * go[t * dout.stride + h * dv + e];
      for (int64_t e = 0; e < dv && x.has_beta(); ++e) dw[e] = -walk.beta(t) * walk.read(t, D, e);
      if (x.has_beta()) walk.write(t, dw, D);
      walk.decay(t, D);
    }
    store_state(x, D, d_made, chunk, h);
  });
}

// body(double{} or float{}): the type of sums.
template <typename Body>
void with_sums(const RecurrenceArgs& x, Body body) {
  with_real(x.q.dtype, body);
}

}  // namespace

void recurrence_forward_reference(const RecurrenceArgs& x, const Matrix& out,
                                  const Tensor& leaving) {
  with_sums(x, [&]<typename A>(A) { forward<A>(x, out, leaving); });
}
void recurrence_backward_reference(const RecurrenceArgs& x, const RecurrenceGradients& g) {
  with_sums(x, [&]<typename A>(A) { backward<A>(x, g); });
}
void recurrence_maps_reference(const RecurrenceArgs& x, const RecurrenceMaps& m) {
  with_sums(x, [&]<typename A>(A) { maps<A>(x, m); });
}
void recurrence_backward_maps_reference(const RecurrenceArgs& x, const Matrix& dout,
                                        const Tensor& d_made) {
  with_sums(x, [&]<typename A>(A) { backward_maps<A>(x, dout, d_made); });
}

}  // namespace ashlar::kernels::cpu
