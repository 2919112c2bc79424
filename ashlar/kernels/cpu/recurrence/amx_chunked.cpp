// How it works.  Tasks, blocks of tokens and tiles are those of chunked.cpp.  The value heads of a
// key head go through a tile one after the other, each with a state of its own, so that they share
// the tile's packed queries and keys.
//
// A task of backward keeps, for the block of tokens that it walks through, the state before each of
// its tiles, and W and S of the delta rule.
#include "ashlar/kernels/cpu/recurrence/amx_chunked.h"

#include "ashlar/kernels/cpu/recurrence/chunked.h"
#include "ashlar/kernels/cpu/recurrence/states.h"
#include "ashlar/kernels/cpu/recurrence/token.h"

#if defined(__x86_64__)
#include "ashlar/kernels/cpu/recurrence/amx_heads.h"

namespace ashlar::kernels::cpu::amx {
namespace {

constexpr int64_t kBlockTokens = Recurrence::kStride;
constexpr int64_t kBlockStates = kBlockTokens / kTile;  // stored, of a value head

// The private memory of a task.
struct Worker {
  Worker(const RecurrenceArgs& x, int64_t cols, bool backward, Pieces<float>& memory)
      : heads(x, cols, backward, memory),
        group(x.shape.H / x.shape.K),
        max_state(padded(x.shape.dk) * padded(cols)) {
    const int64_t kept = backward && x.has_beta() ? group * kBlockTokens : 0;
    states = memory.take((backward ? kBlockStates + 2 : 1) * group * max_state);
    w = reinterpret_cast<bf16*>(memory.take(kept * padded(cols) / 2));
    st = reinterpret_cast<bf16*>(memory.take(kept * kPairs / 2));
    token = memory.take(token_scratch(x));
  }
  float* state(int64_t i, int64_t head) const { return states + (i * group + head) * max_state; }
  // The rows kept of value head number `head` of the group, from token t of the block on.
  Solved solved(const RecurrenceArgs& x, int64_t t, int64_t head) const {
    if (!x.has_beta()) return {};
    const int64_t row = head * kBlockTokens + t;
    return {w + row * padded(x.shape.dv), st + row * kPairs};
  }

  Heads heads;
  int64_t group, max_state;
  float* states;
  bf16 *w, *st;
  float* token;  // scratch of run_token
};

// body(task, worker) for all tasks, with states of `cols` columns; nothing on meta but the
// workspace.
template <typename Body>
void run_amx_tasks(const RecurrenceArgs& x, int64_t cols, bool backward, int64_t num_tasks,
                   Body body) {
  Pieces<float> count(nullptr);
  Worker(x, cols, backward, count);
  const int64_t bytes = count.taken() * int64_t(sizeof(float));
  const Arena::Scope scope(*x.ctx.workspace);
  const Tensor memory = x.ctx.workspace->take(DType::kU8, {x.ctx.threads->size(), bytes});
  if (x.ctx.meta()) return;
  x.ctx.threads->run(num_tasks, [&](int64_t task, int thread) {
    Pieces<float> pieces(reinterpret_cast<float*>(memory.data + thread * bytes));
    Worker worker(x, cols, backward, pieces);
    const InUse tiles;
    body(task, worker);
  });
}

// The state of value head h before chunk or block number i, padded with zeros.
void load_state(const RecurrenceArgs& x, int64_t h, const ValueColumns& columns, const Tensor& from,
                int64_t i, const Worker& worker, float* M) {
  std::fill_n(M, worker.heads.state_size(), 0.0f);
  if (from) States<float>(x, h, columns, padded(columns.cols)).load(from, i, M);
}

void forward_group(const RecurrenceArgs& x, Worker& worker, int64_t chunk, int64_t j,
                   const ValueColumns& columns, const Matrix& out, const Tensor& leaving) {
  const int64_t group = worker.group;
  const auto [begin, end] = x.chunks[size_t(chunk)];
  if (end - begin == 1) {
    for (int64_t i = 0; i < group; ++i)
      run_token(x, chunk, j * group + i, columns, out, leaving, worker.states, worker.token);
    return;
  }
  worker.heads.begin_group(j, columns);
  const auto store = [&](const Tensor& to, int64_t number) {
    for (int64_t i = 0; i < group && to; ++i)
      States<float>(x, j * group + i, columns, padded(columns.cols))
          .store(worker.state(0, i), to, number);
  };
  for (int64_t i = 0; i < group; ++i) {
    load_state(x, j * group + i, columns, x.entering, chunk, worker, worker.state(0, i));
    worker.heads.begin_state(j * group + i, worker.state(0, i));
  }
  for (int64_t t = begin; t < end;) {
    const Tile tile = tile_from(x, t, end);
    if (t % kBlockTokens == 0) store(x.kept, t / kBlockTokens);
    worker.heads.begin(tile, true);
    for (int64_t i = 0; i < group; ++i)
      worker.heads.forward(j * group + i, worker.state(0, i), worker.state(0, i), out, {});
    t = tile.end;
  }
  store(leaving, chunk);
}

// The number of the state before token t of a block.
int64_t number_of(int64_t t) {
  return t % kBlockTokens / kTile;
}

// Runs the states of tokens [first, last) again, from those before `first`; fills those before each
// tile that starts no document, and what the delta rule writes.
void run_states(const RecurrenceArgs& x, Worker& worker, int64_t j, int64_t first, int64_t last) {
  for (int64_t t = first; t < last;) {
    const Tile tile = tile_from(x, t, last);
    const bool passes = tile.end < last && !x.starts_document(tile.end);
    if (passes || x.has_beta()) {
      worker.heads.begin(tile, false);
      for (int64_t i = 0; i < worker.group; ++i)
        worker.heads.forward(j * worker.group + i, worker.state(number_of(t), i),
                             worker.state(passes ? number_of(tile.end) : kBlockStates, i), Matrix{},
                             worker.solved(x, t % kBlockTokens, i));
    }
    t = tile.end;
  }
}

void backward_group(const RecurrenceArgs& x, Worker& worker, int64_t chunk, int64_t j,
                    const RecurrenceGradients& g) {
  const ValueColumns columns{0, x.shape.dv, x.shape.dv};
  const int64_t group = worker.group;
  worker.heads.begin_group(j, columns);
  const auto [begin, end] = x.chunks[size_t(chunk)];
  for (int64_t i = 0; i < group; ++i)
    load_state(x, j * group + i, columns, g.d_leaving, chunk, worker,
               worker.state(kBlockStates + 1, i));
  for (int64_t block = (end - 1) / kBlockTokens; block >= begin / kBlockTokens; --block) {
    const int64_t first = std::max(begin, block * kBlockTokens),
                  last = std::min(end, (block + 1) * kBlockTokens);
    for (int64_t i = 0; i < group; ++i) {
      float* M = worker.state(number_of(first), i);
      load_state(x, j * group + i, columns, first == begin ? x.entering : x.kept,
                 first == begin ? chunk : block, worker, M);
      worker.heads.begin_state(j * group + i, M);
    }
    run_states(x, worker, j, first, last);
    for (int64_t t = last; t > first;) {
      const Tile tile = tile_before(x, t, first);
      const int64_t at = tile.begin % kBlockTokens;
      worker.heads.begin(tile, true);
      for (int64_t i = 0; i < group; ++i)
        worker.heads.backward(j * group + i, worker.state(number_of(at), i),
                              worker.solved(x, at, i), worker.state(kBlockStates + 1, i), g);
      t = tile.begin;
    }
  }
}

}  // namespace

void recurrence_forward(const RecurrenceArgs& x, const Matrix& out, const Tensor& leaving) {
  const int64_t dv = x.shape.dv, K = x.shape.K;
  const int64_t cols = columns_a_task(x), cuts = ceil_div(dv, cols);
  run_amx_tasks(x, dv, false, int64_t(x.chunks.size()) * K * cuts,
                [&](int64_t task, Worker& worker) {
                  const int64_t first = task % cuts * cols, count = std::min(cols, dv - first);
                  forward_group(x, worker, task / cuts / K, task / cuts % K, {first, count, count},
                                out, leaving);
                });
}

void recurrence_backward(const RecurrenceArgs& x, const RecurrenceGradients& g) {
  run_amx_tasks(x, x.shape.dv, true, int64_t(x.chunks.size()) * x.shape.K,
                [&](int64_t task, Worker& worker) {
                  backward_group(x, worker, task / x.shape.K, task % x.shape.K, g);
                });
}

}  // namespace ashlar::kernels::cpu::amx
#endif
