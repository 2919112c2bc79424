// How it works.  A task is a chunk and a key head, and runs the value heads of the key head one
// after the other.  Forward carries the state from tile to tile.  If there are fewer tasks than
// threads, forward is also cut by columns of values, which are independent.
//
// Backward runs over blocks of kStride tokens, from the last to the first:
//
//   kept ->  state of tile 0 -> of tile 1 -> of tile 2 -> of tile 3      recomputed and stored
//   D    <-  tile 0          <- tile 1    <- tile 2    <- tile 3         walked back
//
// A tile that starts a document has no state before it.  Every other tile begins at a multiple of
// kTile or is the first of the block, so that a block stores kStride / kTile states at most.
#include "ashlar/kernels/cpu/recurrence/chunked.h"

#include "ashlar/kernels/cpu/recurrence/states.h"
#include "ashlar/kernels/cpu/recurrence/token.h"

namespace ashlar::kernels::cpu {
namespace {

using gemm::Engine;
constexpr int64_t kTile = Recurrence::kTile, kStride = Recurrence::kStride;
constexpr int64_t kStates = kStride / kTile;  // stored in a block

// The private memory of a task.
template <typename Real>
struct Worker {
  HeadTiles<Real> tiles;
  Products<Real> products;
  Real* states;  // [num_states, dk, padded(cols)]
  Real* token;   // scratch of run_token
};

// body(task, worker) for num_tasks(threads), each with memory for states of `cols` columns; nothing
// on meta but the workspace.
template <typename Real, typename Body>
void run_tasks(const Engine* engine, const RecurrenceArgs& x, int64_t cols, bool backward,
               int64_t num_states, int64_t num_tasks, Body body) {
  Pieces<Real> count(nullptr);
  HeadTiles<Real>(x, cols, backward, count);
  const int64_t state_size = num_states * x.shape.dk * padded(cols);
  count.take(state_size);
  count.take(token_scratch(x));
  const int64_t slot_bytes =
      Products<Real>::slot_bytes(engine, HeadTiles<Real>::largest_operand(x, cols));
  const int64_t own_bytes = count.taken() * int64_t(sizeof(Real)),
                bytes = own_bytes + kNumSlots * slot_bytes;
  const Arena::Scope scope(*x.ctx.workspace);
  const Tensor memory = x.ctx.workspace->take(DType::kU8, {x.ctx.threads->size(), bytes});
  if (x.ctx.meta()) return;
  x.ctx.threads->run(num_tasks, [&](int64_t task, int thread) {
    std::byte* own = memory.data + thread * bytes;
    Pieces<Real> pieces(reinterpret_cast<Real*>(own));
    Worker<Real> worker{HeadTiles<Real>(x, cols, backward, pieces),
                        Products<Real>(engine, own + own_bytes, slot_bytes),
                        pieces.take(state_size), pieces.take(token_scratch(x))};
    body(task, worker);
  });
}

int64_t group_size(const RecurrenceArgs& x) {
  return x.shape.H / x.shape.K;
}

template <typename Real>
void forward_head(const RecurrenceArgs& x, Worker<Real>& worker, int64_t chunk, int64_t h,
                  const ValueColumns& columns, const Matrix& out, const Tensor& leaving) {
  auto& [tiles, products, M, token] = worker;
  if (x.chunks[size_t(chunk)].end - x.chunks[size_t(chunk)].begin == 1)
    return run_token(x, chunk, h, columns, out, leaving, M, token);
  tiles.begin_head(h, columns);
  const States<Real> states(x, h, columns, tiles.state_stride());
  states.load(x.entering, chunk, M);
  const auto [begin, end] = x.chunks[size_t(chunk)];
  for (int64_t t = begin; t < end;) {
    const Tile tile = tile_from(x, t, end);
    if (t % kStride == 0) states.store(M, x.kept, t / kStride);
    tiles.forward(products, tile, M, out);
    t = tile.end;
  }
  states.store(M, leaving, chunk);
}

// Runs the states of tokens [first, last) again, from the one before `first` in `current`; fills
// state number (begin % kStride) / kTile with the one before each tile that starts no document.
template <typename Real>
void run_states(const RecurrenceArgs& x, Worker<Real>& worker, int64_t first, int64_t last,
                int64_t size, Real* current) {
  for (int64_t t = first; t < last;) {
    const Tile tile = tile_from(x, t, last);
    if (!tile.starts) std::copy_n(current, size, worker.states + t % kStride / kTile * size);
    if (tile.end < last && !x.starts_document(tile.end))
      worker.tiles.forward(worker.products, tile, current, Matrix{});
    t = tile.end;
  }
}

template <typename Real>
void backward_head(const RecurrenceArgs& x, Worker<Real>& worker, int64_t chunk, int64_t h,
                   const RecurrenceGradients& g) {
  const ValueColumns columns{0, x.shape.dv, x.shape.dv};
  worker.tiles.begin_head(h, columns);
  const States<Real> states(x, h, columns, worker.tiles.state_stride());
  const int64_t size = states.size();
  Real *current = worker.states + kStates * size, *D = current + size;
  const auto [begin, end] = x.chunks[size_t(chunk)];
  states.load(g.d_leaving, chunk, D);
  for (int64_t block = (end - 1) / kStride; block >= begin / kStride; --block) {
    const int64_t first = std::max(begin, block * kStride),
                  last = std::min(end, (block + 1) * kStride);
    first == begin ? states.load(x.entering, chunk, current) : states.load(x.kept, block, current);
    run_states(x, worker, first, last, size, current);
    for (int64_t t = last; t > first;) {
      const Tile tile = tile_before(x, t, first);
      const Real* M = worker.states + tile.begin % kStride / kTile * size;
      worker.tiles.backward(worker.products, tile, M, D, g, h % group_size(x) != 0);
      t = tile.begin;
    }
  }
}

// The product of the decays of a chunk through which the state passes.
template <typename Real>
void store_decays(const RecurrenceArgs& x, int64_t chunk, int64_t h, bool passes,
                  const Tensor& transition) {
  const int64_t channels = x.decay == Decay::kChannel ? x.shape.dk : 1;
  const auto [begin, end] = x.chunks[size_t(chunk)];
  Real* to = transition.as<Real>() + (chunk * x.shape.H + h) * channels;
  std::fill_n(to, channels, Real(0));
  if (!passes) return;
  const Cells<Real> log_decay(x.log_decay);
  if (x.decay == Decay::kHead) to[0] = Real(end - begin) * log_decay[h];
  if (x.decay == Decay::kToken || x.decay == Decay::kChannel) {
    const Matrix rows = Matrix::of(x.log_decay).columns(h * channels, (h + 1) * channels);
    for (int64_t t = begin; t < end; ++t)
      row_ops<Real>().add(rows.row_range(t, t + 1), to, channels);
  }
  row_ops<Real>().exp(to, channels, to);
}

template <typename Real>
void map_head(const RecurrenceArgs& x, Worker<Real>& worker, int64_t chunk, int64_t h,
              const RecurrenceMaps& maps) {
  const int64_t dk = x.shape.dk, dv = x.shape.dv;
  auto [begin, end] = x.chunks[size_t(chunk)];
  int64_t start = end - 1;  // of the last document that starts in the chunk, else below begin
  while (start >= begin && !x.starts_document(start)) --start;
  const bool passes = start < begin;
  // The columns behind the values begin as the identity and end as the transition.
  const ValueColumns columns{0, dv, x.has_beta() && passes ? dv + dk : dv};
  worker.tiles.begin_head(h, columns);
  const int64_t stride = worker.tiles.state_stride();
  const States<Real> states(x, h, columns, stride);
  Real* M = worker.states;
  std::fill_n(M, states.size(), Real(0));
  for (int64_t c = 0; c < dk && columns.cols > dv; ++c) M[c * stride + dv + c] = 1;
  for (int64_t t = std::max(begin, start); t < end;) {
    const Tile tile = tile_from(x, t, end);
    worker.tiles.forward(worker.products, tile, M, Matrix{});
    t = tile.end;
  }
  states.store(M, maps.made, chunk);
  if (!x.has_beta()) return store_decays<Real>(x, chunk, h, passes, maps.transition);
  Real* to = maps.transition.as<Real>() + (chunk * x.shape.H + h) * dk * dk;
  if (!passes) return void(std::fill_n(to, dk * dk, Real(0)));
  row_ops<Real>().copy(view(M + dv, dk, dk, stride), 1, to, dk);
}

template <typename Real>
void backward_map_head(const RecurrenceArgs& x, Worker<Real>& worker, int64_t chunk, int64_t h,
                       const Matrix& dout, const Tensor& d_made) {
  const ValueColumns columns{0, x.shape.dv, x.shape.dv};
  worker.tiles.begin_head(h, columns);
  const States<Real> states(x, h, columns, worker.tiles.state_stride());
  Real* D = worker.states;
  std::fill_n(D, states.size(), Real(0));
  const auto [begin, end] = x.chunks[size_t(chunk)];
  int64_t t = begin;  // nothing passes the first document that starts
  while (t < end && !x.starts_document(t)) ++t;
  while (t > begin) {
    const Tile tile = tile_before(x, t, begin);
    worker.tiles.backward_state(worker.products, tile, D, dout);
    t = tile.begin;
  }
  states.store(D, d_made, chunk);
}

// body(worker, chunk, h) for all chunks and heads.
template <typename Real, typename Body>
void for_heads(const Engine* engine, const RecurrenceArgs& x, int64_t cols, bool backward,
               int64_t num_states, Body body) {
  const int64_t K = x.shape.K, group = group_size(x);
  run_tasks<Real>(engine, x, cols, backward, num_states, int64_t(x.chunks.size()) * K,
                  [&](int64_t task, Worker<Real>& worker) {
                    for (int64_t i = 0; i < group; ++i)
                      body(worker, task / K, task % K * group + i);
                  });
}

}  // namespace

int64_t columns_a_task(const RecurrenceArgs& x) {
  const int64_t tasks = int64_t(x.chunks.size()) * x.shape.K,
                cuts = ceil_div(x.ctx.threads->size(), tasks);
  return std::min(x.shape.dv, padded(ceil_div(x.shape.dv, cuts)));
}

template <typename Real>
void recurrence_forward_chunked(const Engine* engine, const RecurrenceArgs& x, const Matrix& out,
                                const Tensor& leaving) {
  const int64_t dv = x.shape.dv, K = x.shape.K, group = group_size(x);
  const int64_t cols = columns_a_task(x), cuts = ceil_div(dv, cols);
  run_tasks<Real>(engine, x, dv, false, 1, int64_t(x.chunks.size()) * K * cuts,
                  [&](int64_t task, Worker<Real>& worker) {
                    const int64_t first = task % cuts * cols, j = task / cuts % K;
                    const int64_t count = std::min(cols, dv - first);
                    for (int64_t i = 0; i < group; ++i)
                      forward_head(x, worker, task / cuts / K, j * group + i, {first, count, count},
                                   out, leaving);
                  });
}

template <typename Real>
void recurrence_backward_chunked(const Engine* engine, const RecurrenceArgs& x,
                                 const RecurrenceGradients& g) {
  for_heads<Real>(engine, x, x.shape.dv, true, kStates + 2,
                  [&](Worker<Real>& worker, int64_t chunk, int64_t h) {
                    backward_head(x, worker, chunk, h, g);
                  });
}

template <typename Real>
void recurrence_maps_chunked(const Engine* engine, const RecurrenceArgs& x,
                             const RecurrenceMaps& maps) {
  const int64_t cols = x.shape.dv + (x.has_beta() ? x.shape.dk : 0);
  for_heads<Real>(engine, x, cols, false, 1, [&](Worker<Real>& worker, int64_t chunk, int64_t h) {
    map_head(x, worker, chunk, h, maps);
  });
}

template <typename Real>
void recurrence_backward_maps_chunked(const Engine* engine, const RecurrenceArgs& x,
                                      const Matrix& dout, const Tensor& d_made) {
  for_heads<Real>(engine, x, x.shape.dv, true, 1,
                  [&](Worker<Real>& worker, int64_t chunk, int64_t h) {
                    backward_map_head(x, worker, chunk, h, dout, d_made);
                  });
}

#define ASHLAR_CHUNKED(Real)                                                                 \
  template void recurrence_forward_chunked<Real>(const Engine*, const RecurrenceArgs&,       \
                                                 const Matrix&, const Tensor&);              \
  template void recurrence_backward_chunked<Real>(const Engine*, const RecurrenceArgs&,      \
                                                  const RecurrenceGradients&);               \
  template void recurrence_maps_chunked<Real>(const Engine*, const RecurrenceArgs&,          \
                                              const RecurrenceMaps&);                        \
  template void recurrence_backward_maps_chunked<Real>(const Engine*, const RecurrenceArgs&, \
                                                       const Matrix&, const Tensor&)
ASHLAR_CHUNKED(float);
ASHLAR_CHUNKED(double);
#undef ASHLAR_CHUNKED

}  // namespace ashlar::kernels::cpu
