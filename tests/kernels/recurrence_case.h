// Calls of recurrence.h for tests: every recurrence, documents and chunks, inputs that are the same
// numbers in every type, and one run forward and backward.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "ashlar/kernels/cpu/recurrence/chunked.h"
#include "ashlar/kernels/recurrence.h"
#include "tests/kernels/kernel_case.h"
#include "tests/kernels/segment_cases.h"

namespace ashlar::kernels {

struct RecurrenceCase {
  std::string name;
  RecurrenceShape shape;
  Decay decay = Decay::kNone;
  bool beta = false;
  std::vector<Piece> documents;  // as in segment_cases.h: position and length
  std::vector<int64_t> chunks;   // their lengths
  bool states = true;            // entering and d_leaving are given
  // Logarithms of a, in turns; none: random ones in [-0.3, 0].
  std::vector<double> every_log_decay = {};

  int64_t num_tokens() const { return std::accumulate(chunks.begin(), chunks.end(), int64_t{0}); }
  int64_t num_chunks() const { return int64_t(chunks.size()); }
  std::vector<StateChunk> ranges() const {
    std::vector<StateChunk> ranges;
    int64_t begin = 0;
    for (const int64_t length : chunks) {
      ranges.push_back({begin, begin + length});
      begin += length;
    }
    return ranges;
  }
  Shape states_shape() const { return {num_chunks(), shape.H, shape.dk, shape.dv}; }
  Shape decay_shape() const {
    if (decay == Decay::kHead) return {shape.H};
    return {num_tokens(), decay == Decay::kToken ? shape.H : shape.H * shape.dk};
  }
  bool decays_by_token() const { return decay == Decay::kToken || decay == Decay::kChannel; }
};

inline std::string_view name_of(Decay decay) {
  constexpr std::string_view kNames[] = {"no decay", "head", "token", "channel"};
  return kNames[size_t(decay)];
}

// `c` with every kind of decay, plain and as delta rule.
inline std::vector<RecurrenceCase> every_recurrence(RecurrenceCase c) {
  std::vector<RecurrenceCase> all;
  for (const bool beta : {false, true})
    for (const Decay decay : {Decay::kNone, Decay::kHead, Decay::kToken, Decay::kChannel}) {
      all.push_back(c);
      all.back().beta = beta;
      all.back().decay = decay;
      all.back().name = fmt::format("{}, {}{}", c.name, name_of(decay), beta ? ", delta rule" : "");
    }
  return all;
}

// The tensors of a call and what it fills.
struct RecurrenceTensors {
  const RecurrenceCase& c;
  Sequence sequence;
  std::vector<StateChunk> ranges;
  Tensor q = {}, k = {}, v = {}, log_decay = {}, beta = {}, entering = {}, d_leaving = {},
         dout = {};
  Tensor out = {}, leaving = {}, kept = {}, dq = {}, dk = {}, dv = {}, dlog_decay = {}, dbeta = {};

  Recurrence call() const {
    return {.shape = c.shape,
            .sequence = sequence,
            .chunks = ranges,
            .decay = c.decay,
            .q = Matrix::of(q),
            .k = Matrix::of(k),
            .v = Matrix::of(v),
            .log_decay = log_decay,
            .beta_TH = beta,
            .entering = entering,
            .kept = kept};
  }
  RecurrenceGradients gradients() const {
    return {.dout = Matrix::of(dout),
            .d_leaving = d_leaving,
            .dq = Matrix::of(dq),
            .dk = Matrix::of(dk),
            .dv = Matrix::of(dv),
            .dlog_decay = dlog_decay,
            .dbeta_TH = dbeta};
  }
  std::vector<Output> outputs() const {
    std::vector<Output> all = {
        {"out", out}, {"leaving", leaving}, {"dq", dq}, {"dk", dk}, {"dv", dv}};
    if (dlog_decay) all.push_back({"dlog_decay", dlog_decay});
    if (dbeta) all.push_back({"dbeta", dbeta});
    return all;
  }
};

// to[i] = value(uniform number in [0, 1) of the name), rounded to bf16: exact in every type.
inline Tensor fill_random(Bench& bench, DType dtype, std::string_view name, const Shape& shape,
                          const std::function<double(double)>& value) {
  const Tensor from = bench.zeros(DType::kF64, shape), to = bench.zeros(dtype, shape);
  if (bench.context().meta()) return to;
  const Rng rng(1, name);
  for (int64_t i = 0; i < from.numel(); ++i)
    from.as<double>()[i] = double(float(bf16(float(value(rng.uniform(uint64_t(i)))))));
  copy_convert(from, to);
  return to;
}

// Keys have a length of about 1, as the delta rule wants them.
inline RecurrenceTensors make_tensors(Bench& bench, const RecurrenceCase& c) {
  const auto& [K, H, dk, dv, scale] = c.shape;
  const DType product = bench.precision().product, stream = bench.precision().stream;
  const int64_t T = c.num_tokens();
  const double length = std::sqrt(3.0 / double(dk));
  const auto centred = [](double u) { return 2 * u - 1; };
  const Shape keys{T, K * dk}, values{T, H * dv};
  RecurrenceTensors r{.c = c, .sequence = sequence_of(c.documents), .ranges = c.ranges()};
  r.q = fill_random(bench, product, "q", keys, centred);
  r.k = fill_random(bench, product, "k", keys, [&](double u) { return length * centred(u); });
  r.v = fill_random(bench, product, "v", values, centred);
  r.dout = fill_random(bench, stream, "dout", values, centred);
  int64_t turn = 0;
  if (c.decay != Decay::kNone)
    r.log_decay = fill_random(bench, stream, "log_decay", c.decay_shape(), [&](double u) {
      const size_t turns = c.every_log_decay.size();
      return turns == 0 ? -0.3 * u : c.every_log_decay[size_t(turn++) % turns];
    });
  if (c.beta) r.beta = fill_random(bench, stream, "beta", {T, H}, [](double u) { return u; });
  if (c.states) {
    r.entering = fill_random(bench, stream, "entering", c.states_shape(), centred);
    r.d_leaving = fill_random(bench, stream, "d_leaving", c.states_shape(), centred);
  }
  r.out = bench.stream(values);
  r.leaving = bench.stream(c.states_shape());
  r.kept = bench.stream({Recurrence::num_kept(T), H, dk, dv});
  r.dq = bench.stream(keys);
  r.dk = bench.stream(keys);
  r.dv = bench.stream(values);
  if (c.decays_by_token()) r.dlog_decay = bench.stream(c.decay_shape());
  if (c.beta) r.dbeta = bench.stream({T, H});
  return r;
}

// The kernels as the product calls them, or (tiles) the algorithm in tiles in fp64, which the
// product leaves to the plain reference.
struct RecurrenceKernels {
  const Context& context;
  DType compute;
  bool tiles = false;

  void forward(const Recurrence& x, const Matrix& out, const Tensor& leaving) const {
    if (!tiles) return recurrence_forward(context, compute, x, out, leaving);
    cpu::recurrence_forward_chunked<double>(nullptr, {x, context, compute}, out, leaving);
  }
  void backward(const Recurrence& x, const RecurrenceGradients& g) const {
    if (!tiles) return recurrence_backward(context, compute, x, g);
    cpu::recurrence_backward_chunked<double>(nullptr, {x, context, compute}, g);
  }
  void maps(const Recurrence& x, const Tensor& transition, const Tensor& made) const {
    if (!tiles) return recurrence_maps(context, compute, x, transition, made);
    cpu::recurrence_maps_chunked<double>(nullptr, {x, context, compute}, {transition, made});
  }
  void backward_maps(const Recurrence& x, const Matrix& dout, const Tensor& d_made) const {
    if (!tiles) return recurrence_backward_maps(context, compute, x, dout, d_made);
    cpu::recurrence_backward_maps_chunked<double>(nullptr, {x, context, compute}, dout, d_made);
  }
  void forward(const RecurrenceTensors& r) const {
    forward(r.call(), Matrix::of(r.out), r.leaving);
  }
  void run(const RecurrenceTensors& r) const {
    forward(r);
    backward(r.call(), r.gradients());
  }
};

// A bench with a workspace that holds the states of every case.
struct RecurrenceBench : Bench {
  Allocator allocator{Device::kCpu};
  Arena workspace{allocator, int64_t{1} << 25, Tag::kWorkspace};
  Context roomy = context();
  RecurrenceKernels kernels;

  explicit RecurrenceBench(Precision precision = {}, bool reference = true, int num_threads = 1)
      : Bench(precision, reference, num_threads), kernels{roomy, precision.product} {
    roomy.workspace = &workspace;
  }
};

// How the recurrence can run on this machine.
struct RecurrencePath {
  std::string name;
  Precision precision;  // of inputs
  DType compute;
  bool reference, tiles;
  Isa isa;
  bool rounds() const { return compute == DType::kBF16 && !reference; }
  // Bound of the accumulated rounding, relative to the largest value.
  double bound() const { return compute == DType::kF64 ? 1e-12 : rounds() ? 2e-2 : 2e-5; }
};

// The reference and the tiles in fp64, then the reference and every instruction set in fp32 and
// bf16; with `mixed` also products of one type with inputs of the other.
inline std::vector<RecurrencePath> recurrence_paths(bool mixed) {
  const Isa best = isa();
  std::vector<RecurrencePath> paths = {{"reference fp64", {}, DType::kF64, true, false, best},
                                       {"tiles fp64", {}, DType::kF64, true, true, best}};
  for (const DType input : {DType::kF32, DType::kBF16})
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      if (input != compute && !mixed) continue;
      const auto add = [&](std::string_view path, bool reference, Isa isa) {
        paths.push_back({fmt::format("{} {} of {}", path, name_of(compute), name_of(input)),
                         {DType::kF32, input},
                         compute,
                         reference,
                         false,
                         isa});
      };
      add("reference", true, best);
      for (const Isa path : supported_isas()) add(name_of(path), false, path);
    }
  return paths;
}

// body(path, a bench for it), with its instruction set selected.
template <typename Body>
void for_paths(Body body, int num_threads = 1, bool mixed = false) {
  const Isa best = isa();
  for (const RecurrencePath& path : recurrence_paths(mixed)) {
    select_isa(path.isa);
    RecurrenceBench bench(path.precision, path.reference, num_threads);
    bench.kernels.compute = path.compute;
    bench.kernels.tiles = path.tiles;
    body(path, bench);
  }
  select_isa(best);
}

// |got - want| / |want|, of the tensors as vectors.
inline double relative_error(const Tensor& got, const Tensor& want) {
  const std::vector<double> a = values_of(got), b = values_of(want);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// |got - want| <= bound * the largest |want|, element by element.
inline void expect_within(const std::string& what, const Tensor& got, const Tensor& want,
                          double bound) {
  const std::vector<double> a = values_of(got), b = values_of(want);
  ASSERT_EQ(a.size(), b.size()) << what;
  const double allowed = bound * largest(b);
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_LE(std::abs(a[i] - b[i]), allowed)
        << what << " [" << i << "]: " << a[i] << ", not " << b[i];
}

inline void expect_outputs_within(const std::string& what, const RecurrenceTensors& got,
                                  const RecurrenceTensors& want, double bound) {
  const std::vector<Output> a = got.outputs(), b = want.outputs();
  for (size_t i = 0; i < a.size(); ++i)
    expect_within(fmt::format("{}: {}", what, a[i].name), a[i].tensor, b[i].tensor, bound);
}

}  // namespace ashlar::kernels
