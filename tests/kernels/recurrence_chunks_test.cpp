// Chunks of the recurrence: a sequence cut into chunks that know each other by their maps alone,
// decoding token by token, and what a dry run counts.
#include "tests/kernels/recurrence_case.h"

namespace ashlar::kernels {
namespace {

// Transitions, made and d_made of all chunks, and chunk by chunk as apply_map takes them.
struct Maps {
  const RecurrenceCase& c;
  Tensor transition, made, d_made;

  Maps(Bench& bench, const RecurrenceCase& of)
      : c(of),
        transition(bench.stream(transition_shape(of.shape, of.decay, of.beta, of.num_chunks()))),
        made(bench.stream(of.states_shape())),
        d_made(bench.stream(of.states_shape())) {}
  void fill(const RecurrenceKernels& kernels, const RecurrenceTensors& r) const {
    kernels.maps(r.call(), transition, made);
    kernels.backward_maps(r.call(), Matrix::of(r.dout), d_made);
  }
  Tensor transition_of(int64_t chunk) const {
    const Tensor own = transition.slice(chunk, chunk + 1);
    if (c.beta) return own.view({c.shape.H, c.shape.dk, c.shape.dk});
    return c.decay == Decay::kChannel ? own.view({c.shape.H, c.shape.dk}) : own.view({c.shape.H});
  }
  Tensor state_of(const Tensor& states, int64_t chunk) const {
    return states.slice(chunk, chunk + 1).view({c.shape.H, c.shape.dk, c.shape.dv});
  }
  // to = what `chunk` makes of from: the state after it, or (back) the gradient before it.
  void apply(const Context& context, int64_t chunk, const Tensor& from, const Tensor& to,
             bool back) const {
    copy_convert(from, to);
    apply_map(context, transition_of(chunk), state_of(back ? d_made : made, chunk), to, back);
  }
};

// Documents that end one before, on and one behind the borders of tiles, chunks and kept states.
RecurrenceCase documents(std::vector<int64_t> chunks) {
  std::vector<Piece> pieces = {{7, 63}, {0, 1}, {0, 1}};  // up to 63, 64, 65
  for (const int64_t end : {127, 191, 193, 255, 256, 257, 320, 512, 513, 600})
    pieces.push_back(
        {0, end - std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                                  [](int64_t n, const Piece& p) { return n + p.length; })});
  return {.name = "documents",
          .shape = {.K = 1, .H = 2, .dk = 8, .dv = 6, .scale = 0.5},
          .documents = std::move(pieces),
          .chunks = std::move(chunks)};
}

RecurrenceCase one_document(std::vector<int64_t> chunks) {
  RecurrenceCase c = documents(std::move(chunks));
  c.name = "one document";
  c.documents = {{3, c.num_tokens()}};
  return c;
}

// Runs `parts` chunk by chunk, where what enters a chunk, and the gradient of what leaves it, come
// from the maps of the others; and `whole`, the same tokens as one chunk.
void expect_chunks_make_the_whole(RecurrenceBench& bench, const RecurrenceCase& parts,
                                  const RecurrenceCase& whole, double bound) {
  const RecurrenceTensors one = make_tensors(bench, whole), r = make_tensors(bench, parts);
  bench.kernels.run(one);
  const Maps maps(bench, parts);
  maps.fill(bench.kernels, r);
  const int64_t C = parts.num_chunks();
  copy_convert(one.entering, maps.state_of(r.entering, 0));
  copy_convert(one.d_leaving, maps.state_of(r.d_leaving, C - 1));
  for (int64_t c = 0; c + 1 < C; ++c) {
    maps.apply(bench.roomy, c, maps.state_of(r.entering, c), maps.state_of(r.entering, c + 1),
               false);
    maps.apply(bench.roomy, C - 1 - c, maps.state_of(r.d_leaving, C - 1 - c),
               maps.state_of(r.d_leaving, C - 2 - c), true);
  }
  bench.kernels.run(r);
  expect_within(parts.name + ": last state", maps.state_of(r.leaving, C - 1), one.leaving, bound);
  // The maps of the last chunk too.
  const Tensor last = bench.stream({parts.shape.H, parts.shape.dk, parts.shape.dv});
  maps.apply(bench.roomy, C - 1, maps.state_of(r.entering, C - 1), last, false);
  expect_within(parts.name + ": last state by maps", last, one.leaving, bound);
  const std::vector<Output> got = r.outputs(), want = one.outputs();
  for (size_t i = 0; i < got.size(); ++i)
    if (got[i].name != "leaving")
      expect_within(fmt::format("{}: {}", parts.name, got[i].name), got[i].tensor, want[i].tensor,
                    bound);
}

const std::vector<std::vector<int64_t>>& cuts() {
  static const std::vector<std::vector<int64_t>> cuts = {
      {64, 192, 64, 280}, {63, 2, 126, 65, 1, 343}, {256, 256, 88}};
  return cuts;
}

TEST(RecurrenceChunks, ChunksJoinedByTheirMapsAreTheWhole) {
  for (const auto& make : {documents, one_document})
    for (const std::vector<int64_t>& cut : cuts()) {
      const auto parts = every_recurrence(make(cut)), whole = every_recurrence(make({600}));
      for (size_t i = 0; i < parts.size(); ++i)
        for_paths([&](const RecurrencePath& path, RecurrenceBench& bench) {
          SCOPED_TRACE(path.name);
          expect_chunks_make_the_whole(bench, parts[i], whole[i], path.bound());
        });
    }
}

TEST(RecurrenceChunks, NothingPassesTheStartOfADocument) {
  for (const RecurrenceCase& c : every_recurrence(documents({64, 192, 64, 280})))
    for_paths([&](const RecurrencePath& path, RecurrenceBench& bench) {
      const RecurrenceTensors r = make_tensors(bench, c);
      const Maps maps(bench, c);
      maps.fill(bench.kernels, r);
      for (int64_t chunk = 0; chunk < c.num_chunks(); ++chunk) {
        SCOPED_TRACE(fmt::format("{}, {}, chunk {}", path.name, c.name, chunk));
        // Documents start in every chunk, in some with the first token.
        const bool starts = r.sequence.position_T()[size_t(r.ranges[size_t(chunk)].begin)] == 0;
        EXPECT_EQ(largest(values_of(maps.transition_of(chunk))), 0);
        EXPECT_EQ(largest(values_of(maps.state_of(maps.d_made, chunk))) == 0, starts);
        EXPECT_GT(largest(values_of(maps.state_of(maps.made, chunk))), 0);
      }
    });
}

// One token a call; the state that leaves overwrites the one that entered.
void expect_decoding_is_the_whole(RecurrenceBench& bench, const RecurrenceCase& c, double bound) {
  const RecurrenceTensors r = make_tensors(bench, c);
  bench.kernels.forward(r);
  const Tensor state = bench.stream(c.states_shape()), out = bench.stream(r.out.shape);
  copy_convert(r.entering, state);
  const auto row = [](const Tensor& x, int64_t t) { return x ? x.slice(t, t + 1) : Tensor{}; };
  for (int64_t t = 0; t < c.num_tokens(); ++t) {
    const Sequence sequence({{0, 1, r.sequence.position_T()[size_t(t)], 0}});
    const StateChunk chunk{0, 1};
    const Recurrence x{.shape = c.shape,
                       .sequence = sequence,
                       .chunks = {&chunk, 1},
                       .decay = c.decay,
                       .q = Matrix::of(row(r.q, t)),
                       .k = Matrix::of(row(r.k, t)),
                       .v = Matrix::of(row(r.v, t)),
                       .log_decay = c.decays_by_token() ? row(r.log_decay, t) : r.log_decay,
                       .beta_TH = row(r.beta, t),
                       .entering = state};
    bench.kernels.forward(x, Matrix::of(row(out, t)), state);
  }
  expect_within(c.name + ": out", out, r.out, bound);
  expect_within(c.name + ": state", state, r.leaving, bound);
}

TEST(RecurrenceChunks, DecodingTokenByTokenIsTheWhole) {
  for (const RecurrenceCase& c : every_recurrence(documents({600})))
    for_paths([&](const RecurrencePath& path, RecurrenceBench& bench) {
      SCOPED_TRACE(path.name);
      expect_decoding_is_the_whole(bench, c, path.bound());
    });
}

TEST(RecurrenceChunks, ApplyMapMultipliesByEveryKindOfTransition) {
  constexpr int64_t n = 3, dk = 4, dv = 5;
  Bench bench;
  for (const Shape& shape : {Shape{n}, Shape{n, dk}, Shape{n, dk, dk}})
    for (const bool transposed : {false, true})
      for (const bool with_made : {false, true}) {
        const Tensor transition = bench.stream("transition", shape),
                     made = bench.stream("made", {n, dk, dv}),
                     from = bench.stream("state", {n, dk, dv}),
                     state = bench.stream("state", {n, dk, dv});
        apply_map(bench.context(), transition, with_made ? made : Tensor{}, state, transposed);
        const double* a = transition.as<double>();
        for (int64_t h = 0; h < n; ++h)
          for (int64_t c = 0; c < dk; ++c)
            for (int64_t e = 0; e < dv; ++e) {
              double want = with_made ? made.as<double>()[(h * dk + c) * dv + e] : 0;
              for (int64_t b = 0; b < dk; ++b) {
                const double factor = shape.ndim() == 3
                                          ? a[h * dk * dk + (transposed ? b * dk + c : c * dk + b)]
                                      : b != c            ? 0
                                      : shape.ndim() == 2 ? a[h * dk + c]
                                                          : a[h];
                want += factor * from.as<double>()[(h * dk + b) * dv + e];
              }
              ASSERT_NEAR(state.as<double>()[(h * dk + c) * dv + e], want, 1e-14);
            }
      }
}

// A dry run counts the same work and workspace, whatever the tokens are.
TEST(RecurrenceChunks, MetaCountsWorkAndWorkspace) {
  for (const RecurrenceCase& c : every_recurrence(documents({64, 192, 64, 280})))
    for (const RecurrencePath& path : recurrence_paths(false)) {
      if (path.tiles) continue;  // fp64 runs the reference
      std::vector<Cost> costs[2];
      int64_t peaks[2];
      for (const bool meta : {true, false}) {
        Bench bench(path.precision, path.reference, 3, meta ? Device::kMeta : Device::kCpu);
        Allocator allocator(Device::kCpu);
        Arena workspace = meta ? Arena(Device::kMeta) : Arena(allocator, peaks[1], Tag::kWorkspace);
        Context context = bench.context();
        context.workspace = &workspace;
        const RecurrenceKernels kernels{context, path.compute};
        const RecurrenceTensors r = make_tensors(bench, c);
        const size_t before = bench.calls().size();
        kernels.run(r);
        const Maps maps(bench, c);
        maps.fill(kernels, r);
        for (const Call& call : bench.calls()) costs[meta].push_back(call.cost);
        costs[meta].erase(costs[meta].begin(), costs[meta].begin() + int64_t(before));
        peaks[meta] = workspace.peak_bytes();
      }
      EXPECT_EQ(peaks[0], peaks[1]) << c.name << ", " << path.name;
      // The formulas of the header, where B is 64.
      const int64_t dk = c.shape.dk, dv = c.shape.dv, states = dk * dv, keys = 64 * dk,
                    values = 64 * dv, beta = c.beta;
      const int64_t want[] = {
          keys + values + 4 * states + beta * (keys + values + 2 * states),
          3 * keys + 2 * values + 10 * states + beta * (3 * keys + 3 * values + 6 * states),
          2 * states + beta * (2 * keys + values + 2 * states + 4 * dk * dk),
          2 * states + beta * (2 * keys + 2 * values + 4 * states)};
      for (const bool meta : {false, true}) {
        ASSERT_EQ(costs[meta].size(), 4u);
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(costs[meta][i].flop, c.num_tokens() * c.shape.H * want[i]) << c.name << i;
          EXPECT_EQ(costs[meta][i].bytes, costs[1][i].bytes) << c.name << i;
        }
      }
    }
}

}  // namespace
}  // namespace ashlar::kernels
