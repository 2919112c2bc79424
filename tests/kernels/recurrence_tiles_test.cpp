// The recurrence in tiles, on every path of this machine: against the token recurrence in fp64, and
// what a token must not change.
#include "tests/kernels/recurrence_case.h"

namespace ashlar::kernels {
namespace {

// Two documents, of which the first began before, in two chunks.
RecurrenceCase two_documents(int64_t length, const RecurrenceShape& shape) {
  return {.name = fmt::format("{} tokens, {} x {}", length, shape.dk, shape.dv),
          .shape = shape,
          .documents = {{1, length / 2 + 3}, {0, length - length / 2 - 3}},
          .chunks = {length / 3, length - length / 3}};
}

// Every path against the reference in fp64 on the same numbers: no value is off by more than the
// path's bound of the largest, and where products round to bf16 no tensor by more than 1e-2 of its
// norm.
void expect_tile_paths_agree(const RecurrenceCase& c) {
  RecurrenceBench exact;
  const RecurrenceTensors want = make_tensors(exact, c);
  exact.kernels.run(want);
  const auto compare = [&](const RecurrencePath& path, RecurrenceBench& bench) {
    const RecurrenceTensors got = make_tensors(bench, c);
    bench.kernels.run(got);
    const std::string what = fmt::format("{}, {}", c.name, path.name);
    expect_outputs_within(what, got, want, path.bound());
    const std::vector<Output> a = got.outputs(), b = want.outputs();
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_LE(relative_error(a[i].tensor, b[i].tensor), path.rounds() ? 1e-2 : path.bound())
          << what << ": " << a[i].name;
  };
  for_paths(compare, 1, c.num_tokens() < 200);
}

TEST(RecurrenceTiles, AreTheTokenRecurrence) {
  for (const RecurrenceCase& shape :
       {two_documents(33, {.K = 1, .H = 1, .dk = 3, .dv = 5, .scale = 1.0}),
        two_documents(130, {.K = 2, .H = 4, .dk = 24, .dv = 40, .scale = 0.3}),
        two_documents(201, {.K = 1, .H = 2, .dk = 64, .dv = 48, .scale = 0.125}),
        two_documents(4096, {.K = 1, .H = 1, .dk = 8, .dv = 8, .scale = 0.25})})
    for (const RecurrenceCase& c : every_recurrence(shape)) expect_tile_paths_agree(c);
}

// a = 1 passes all of the state, a = 1e-4 next to nothing of it after two tokens; both in turns, so
// that sums of logarithms inside a tile reach -300 and stay there.  With -3 a segment on AMX has
// more than 16 tokens, with -1e30 a is 0.
TEST(RecurrenceTiles, ExtremeGatesStayExact) {
  for (const double log_a : {0.0, -3.0, -9.2, -80.0, -1e30})
    for (RecurrenceCase& c :
         every_recurrence(two_documents(150, {.K = 1, .H = 2, .dk = 8, .dv = 8, .scale = 0.3}))) {
      if (c.decay == Decay::kNone) continue;
      c.every_log_decay = {log_a, log_a == 0 ? 0 : -1e-3, log_a};
      c.name += fmt::format(", log a {}", log_a);
      expect_tile_paths_agree(c);
    }
}

// Documents start inside of tiles, and value heads share keys, where decays are strong.
TEST(RecurrenceTiles, StrongDecaysStayExactAroundStarts) {
  for (const double log_a : {-0.7, -10.0, -60.0})
    for (RecurrenceCase& c :
         every_recurrence(two_documents(301, {.K = 1, .H = 3, .dk = 40, .dv = 24, .scale = 0.2}))) {
      if (c.decay == Decay::kNone) continue;
      c.documents = {{1, 83}, {0, 9}, {0, 1}, {0, 108}, {0, 100}};
      c.every_log_decay = {log_a, log_a / 8, 0, 2 * log_a, log_a};
      c.name += fmt::format(", log a {}", log_a);
      expect_tile_paths_agree(c);
    }
}

// Everything that token t reads becomes another number: what came before keeps its bits.
void change_token(const RecurrenceTensors& r, int64_t t) {
  const auto change = [&](const Tensor& x) {
    if (!x) return;
    const int64_t row_bytes = x.bytes() / x.shape[0];
    const Tensor row = x.slice(t, t + 1), other = x.slice(t - 1, t);
    std::copy_n(other.data, row_bytes, row.data);
  };
  change(r.q);
  change(r.k);
  change(r.v);
  if (r.call().decay == Decay::kToken || r.call().decay == Decay::kChannel) change(r.log_decay);
  change(r.beta);
}

void fill_row(const Tensor& x, int64_t t, double value) {
  const Tensor number = tensor_over(std::span<double>(&value, 1)), row = x.slice(t, t + 1);
  for (int64_t i = 0; i < row.numel(); ++i)
    copy_convert(number, {row.data + i * size_of(x.dtype), x.dtype, Device::kCpu, {1}});
}

TEST(RecurrenceTiles, NoTokenSeesALaterOne) {
  for (RecurrenceCase& c :
       every_recurrence(two_documents(140, {.K = 2, .H = 4, .dk = 24, .dv = 40, .scale = 0.3}))) {
    c.documents = {{1, 140}};
    c.chunks = {140};
    if (c.decay != Decay::kNone) c.every_log_decay = {-0.1, -0.1, -9, -0.1};
    for_paths([&](const RecurrencePath& path, RecurrenceBench& bench) {
      const RecurrenceTensors r = make_tensors(bench, c);
      bench.kernels.forward(r);
      const std::vector<double> before = values_of(r.out);
      // From the last to the first, and in a tile at the ends of sub-tiles and between.
      for (const int64_t t : {139, 130, 128, 127, 113, 112, 111, 70, 64, 63, 17, 16, 15, 1}) {
        change_token(r, t);
        bench.kernels.forward(r);
        const std::vector<double> after = values_of(r.out);
        const auto row = size_t(c.shape.H * c.shape.dv), first = size_t(t) * row;
        ASSERT_TRUE(std::equal(before.begin(), before.begin() + int64_t(first), after.begin()))
            << c.name << ", " << path.name << ", token " << t;
        ASSERT_FALSE(std::equal(before.begin() + int64_t(first),
                                before.begin() + int64_t(first + row),
                                after.begin() + int64_t(first)))
            << c.name << ", " << path.name << ", token " << t;
      }
    });
  }
}

// A later key that is not a number makes pairs that are none, which are dropped, not multiplied by
// 0.  (What the delta rule writes of such a key is no number either, hence not tested.)
TEST(RecurrenceTiles, ALaterKeyThatIsNotANumberIsNotSeen) {
  for (RecurrenceCase& c :
       every_recurrence(two_documents(64, {.K = 1, .H = 1, .dk = 24, .dv = 40, .scale = 0.3}))) {
    if (c.beta) continue;
    c.documents = {{1, 64}};
    c.chunks = {64};
    for_paths([&](const RecurrencePath& path, RecurrenceBench& bench) {
      const RecurrenceTensors r = make_tensors(bench, c);
      for (const int64_t t : {40, 20, 1}) {
        fill_row(r.k, t, NAN);
        bench.kernels.forward(r);
        const std::vector<double> out = values_of(r.out);
        for (size_t i = 0; i < out.size(); ++i)
          ASSERT_EQ(std::isnan(out[i]), int64_t(i) >= t * c.shape.dv)
              << c.name << ", " << path.name << ", token " << t << " [" << i << "]";
      }
    });
  }
}

// Two chunks and one key head, so that forward cuts columns where threads are three.
TEST(RecurrenceTiles, AnyNumberOfThreadsGivesTheSameBits) {
  for (const RecurrenceCase& c :
       every_recurrence(two_documents(70, {.K = 1, .H = 2, .dk = 24, .dv = 100, .scale = 0.3}))) {
    std::vector<std::vector<std::vector<double>>> first;
    for (const int num_threads : {1, 2, 3}) {
      size_t index = 0;
      for_paths(
          [&](const RecurrencePath& path, RecurrenceBench& bench) {
            const RecurrenceTensors r = make_tensors(bench, c);
            bench.kernels.run(r);
            std::vector<std::vector<double>> values;
            for (const Output& output : r.outputs()) values.push_back(values_of(output.tensor));
            values.push_back(values_of(r.kept));
            if (num_threads == 1)
              first.push_back(values);
            else
              EXPECT_TRUE(values == first[index])
                  << c.name << ", " << path.name << ", " << num_threads << " threads";
            ++index;
          },
          num_threads);
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
