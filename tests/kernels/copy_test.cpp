#include "ashlar/kernels/copy.h"

#include <bit>
#include <cstring>
#include <numeric>

#include "ashlar/tensor/box_order.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

// Rows and cols: none, one, odd, and more than a task of every type.
constexpr int64_t kCopyShapes[][2] = {{0, 5}, {5, 0}, {1, 1}, {1, 70001}, {17, 3}, {129, 1031}};
constexpr DType kFloating[] = {DType::kF64, DType::kF32, DType::kBF16};

// A matrix of these extents among other columns, and what holds both.
struct Strided {
  Tensor all;
  Matrix part;
};
Strided strided(Bench& bench, DType dtype, std::string_view name, int64_t rows, int64_t cols,
                int64_t before, int64_t behind) {
  const Tensor all = bench.random(dtype, name, {rows, before + cols + behind}, 3.0);
  return {all, Matrix::of(all).columns(before, before + cols)};
}

// values_of(all), where those of the part are made by value(old value, row, col).
template <typename Value>
std::vector<double> replaced(const Strided& s, Value value) {
  std::vector<double> values = values_of(s.all);
  const int64_t width = s.all.shape[1];
  const auto begin = (s.part.data - s.all.data) / size_of(s.part.dtype);
  for (int64_t row = 0; row < s.part.rows; ++row)
    for (int64_t col = 0; col < s.part.cols; ++col) {
      double& x = values[size_t(begin + row * width + col)];
      x = value(x, row, col);
    }
  return values;
}

double value_at(const Strided& s, const std::vector<double>& values, int64_t row, int64_t col) {
  const auto begin = (s.part.data - s.all.data) / size_of(s.part.dtype);
  return values[size_t(begin + row * s.all.shape[1] + col)];
}

// A value as it is after a rounding to the type.
double rounded(double value, DType dtype) {
  if (dtype == DType::kF64) return value;
  return dtype == DType::kF32 ? double(float(value)) : double(float(bf16(float(value))));
}

// Values that bf16 and fp32 have to round, in every type that can hold them.
void put_fractions(const Tensor& tensor) {
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double value = 1.0 + double(i % 1009) / 3.0;
    if (tensor.dtype == DType::kF64) tensor.as<double>()[i] = value;
    if (tensor.dtype == DType::kF32) tensor.as<float>()[i] = float(value);
    if (tensor.dtype == DType::kBF16) tensor.as<bf16>()[i] = bf16(float(value));
  }
}

// body(bench) on 1, 2 and 3 threads; a dry run records the same.
void on_threads(const std::string& what, const std::function<void(Bench&)>& body) {
  for (const int num_threads : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("{} on {} threads", what, num_threads));
    Bench bench({}, false, num_threads);
    body(bench);
    if (testing::Test::HasFatalFailure()) return;
  }
}
void expect_recorded_on_meta(const std::string& what, const std::function<void(Bench&)>& call) {
  Bench real;
  call(real);
  expect_same_on_meta(
      real,
      [&](Bench& bench) {
        call(bench);
        return std::vector<Output>{};
      },
      what);
}

TEST(Copy, ConvertsAndLeavesOtherColumnsAlone) {
  for (const auto [rows, cols] : kCopyShapes)
    for (const DType from_type : kFloating)
      for (const DType to_type : kFloating)
        on_threads(
            fmt::format("{} x {} {} to {}", rows, cols, name_of(from_type), name_of(to_type)),
            [&, rows = rows, cols = cols](Bench& bench) {
              const Strided from = strided(bench, from_type, "from", rows, cols, 2, 5),
                            to = strided(bench, to_type, "to", rows, cols, 3, 0);
              put_fractions(from.all);
              const std::vector<double> read = values_of(from.all);
              const std::vector<double> want = replaced(to, [&](double, int64_t row, int64_t col) {
                return rounded(value_at(from, read, row, col), to_type);
              });
              copy(bench.context(), from.part, to.part);
              ASSERT_EQ(values_of(to.all), want);
              ASSERT_EQ(values_of(from.all), read);
            });
}

// Whole tensors are one run, whatever their shapes.
TEST(Copy, TensorsOfOtherShapesButEqualElements) {
  on_threads("copy", [](Bench& bench) {
    const Tensor from = bench.zeros(DType::kF64, {3, 7, 5003}),
                 to = bench.zeros(DType::kBF16, {21, 5003});
    put_fractions(from);
    copy(bench.context(), from, to);
    for (int64_t i = 0; i < from.numel(); ++i)
      ASSERT_EQ(double(float(to.as<bf16>()[i])), rounded(from.as<double>()[i], DType::kBF16)) << i;
  });
}

TEST(Copy, OneTypeKeepsEveryBit) {
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kU8, DType::kF32})
    on_threads(std::string(name_of(dtype)), [&](Bench& bench) {
      const Tensor from = bench.zeros(dtype, {301, 1009}), to = bench.zeros(dtype, {301, 1009});
      for (int64_t i = 0; i < from.bytes(); ++i) from.data[i] = std::byte(i % 251);
      copy(bench.context(), from, to);
      ASSERT_EQ(std::memcmp(from.data, to.data, size_t(from.bytes())), 0);
    });
}

// NaN, infinities, denormals, ties and everything between, by bits, on every instruction set.
TEST(Copy, ConvertsWithThePlainBitsOnEveryPath) {
  const Isa best = isa();
  for (const Isa path : supported_isas())
    for (const int64_t count : {1, 7, 16, 33, 70001}) {
      SCOPED_TRACE(fmt::format("{} elements on {}", count, name_of(path)));
      select_isa(path);
      Bench bench({}, false), plain;
      const Tensor wide = bench.zeros(DType::kF32, {count});
      for (int64_t i = 0; i < count; ++i)
        wide.as<float>()[i] =
            std::bit_cast<float>(uint32_t(i * 0x9e3779b1u) ^ (i % 3 ? 0 : 0x8000u));
      const float special[] = {
          std::bit_cast<float>(0x7f800001u), std::bit_cast<float>(0xffc12345u),
          std::bit_cast<float>(0x7f7fffffu), std::bit_cast<float>(0x00000001u),
          std::bit_cast<float>(0x807fffffu), std::bit_cast<float>(0x3f808000u)};
      std::copy_n(special, std::min<int64_t>(count, 6), wide.as<float>());
      for (const DType to : {DType::kBF16, DType::kF32}) {
        const Tensor from = to == DType::kBF16 ? wide : bench.zeros(DType::kBF16, {count});
        if (to == DType::kF32) std::memcpy(from.data, wide.data, size_t(from.bytes()));
        const Tensor fast = bench.zeros(to, {count}), slow = plain.zeros(to, {count});
        copy(bench.context(), from, fast);
        copy(plain.context(), from, slow);
        EXPECT_EQ(std::memcmp(fast.data, slow.data, size_t(fast.bytes())), 0);
      }
    }
  select_isa(best);
}

TEST(Copy, AddsToWhatIsThere) {
  for (const auto [rows, cols] : kCopyShapes)
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16})
      on_threads(fmt::format("{} x {} {}", rows, cols, name_of(dtype)),
                 [&, rows = rows, cols = cols](Bench& bench) {
                   const DType from_dtype = dtype == DType::kBF16 ? DType::kF32 : dtype;
                   const Strided from = strided(bench, from_dtype, "from", rows, cols, 0, 1),
                                 to = strided(bench, dtype, "to", rows, cols, 4, 2);
                   put_fractions(from.all);
                   const std::vector<double> read = values_of(from.all);
                   const std::vector<double> want =
                       replaced(to, [&](double x, int64_t row, int64_t col) {
                         return rounded(x + value_at(from, read, row, col), dtype);
                       });
                   add(bench.context(), from.part, to.part);
                   ASSERT_EQ(values_of(to.all), want);
                 });
}

TEST(Copy, AddsIntegers) {
  Bench bench;
  const Tensor from = bench.zeros(DType::kI64, {3}), to = bench.zeros(DType::kI64, {3});
  for (int64_t i = 0; i < 3; ++i) {
    from.as<int64_t>()[i] = (int64_t{1} << 60) + i;
    to.as<int64_t>()[i] = 10 * i;
  }
  add(bench.context(), from, to);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(to.as<int64_t>()[i], (int64_t{1} << 60) + 11 * i);
}

TEST(Copy, ScalesEveryElement) {
  for (const DType dtype : kFloating)
    for (const int64_t count : {0, 1, 17, 300001})
      on_threads(fmt::format("{} {}", count, name_of(dtype)), [&](Bench& bench) {
        const Tensor x = bench.zeros(dtype, {count});
        put_fractions(x);
        std::vector<double> want = values_of(x);
        const double factor = dtype == DType::kF64 ? 0.7 : double(0.7f);
        for (double& value : want) value = rounded(value * factor, dtype);
        scale(bench.context(), x, 0.7);
        ASSERT_EQ(values_of(x), want);
      });
}

TEST(Copy, FillsItsColumnsOnly) {
  for (const auto [rows, cols] : kCopyShapes)
    for (const DType dtype : kFloating)
      for (const double value : {0.0, 1.0 / 3.0}) {
        if (dtype == DType::kBF16 && value != 0.0) continue;
        on_threads(fmt::format("{} x {} {}", rows, cols, name_of(dtype)),
                   [&, rows = rows, cols = cols](Bench& bench) {
                     const Strided to = strided(bench, dtype, "to", rows, cols, 1, 2);
                     const std::vector<double> want = replaced(
                         to, [&](double, int64_t, int64_t) { return rounded(value, dtype); });
                     fill(bench.context(), to.part, value);
                     ASSERT_EQ(values_of(to.all), want);
                   });
      }
}

TEST(Copy, FillsEveryByteOfIntegersWithZero) {
  on_threads("fill", [](Bench& bench) {
    const Tensor to = bench.zeros(DType::kI64, {70001});
    std::memset(to.data, 7, size_t(to.bytes()));
    fill(bench.context(), to, 0.0);
    for (int64_t i = 0; i < to.bytes(); ++i) ASSERT_EQ(to.data[i], std::byte{0}) << i;
  });
}

// Rows in any order, some twice as a source; one task takes several rows, or a row is more than
// one.
TEST(Copy, RowsGoWhereTheirPairsSay) {
  for (const int64_t cols : {0, 1, 33, 70001})
    for (const DType to_type : kFloating)
      on_threads(fmt::format("{} cols to {}", cols, name_of(to_type)), [&](Bench& bench) {
        const Strided from = strided(bench, DType::kF32, "from", 5, cols, 1, 0),
                      to = strided(bench, to_type, "to", 7, cols, 0, 2);
        put_fractions(from.all);
        const RowPair pairs[] = {{4, 0}, {1, 6}, {4, 3}, {0, 2}};
        const std::vector<double> read = values_of(from.all);
        const std::vector<double> want = replaced(to, [&](double x, int64_t row, int64_t col) {
          for (const RowPair& pair : pairs)
            if (pair.to == row) return rounded(value_at(from, read, pair.from, col), to_type);
          return x;
        });
        copy_rows(bench.context(), pairs, from.part, to.part);
        ASSERT_EQ(values_of(to.all), want);
      });
}

TEST(Copy, ManyRowsOfOneElement) {
  on_threads("copy_rows", [](Bench& bench) {
    constexpr int64_t kRows = 100003;
    const Tensor from = bench.random(DType::kF32, "from", {kRows, 1}),
                 to = bench.zeros(DType::kF32, {kRows, 1});
    std::vector<RowPair> pairs;
    for (int64_t row = 0; row < kRows; ++row) pairs.push_back({row, kRows - 1 - row});
    copy_rows(bench.context(), pairs, Matrix::of(from), Matrix::of(to));
    for (int64_t row = 0; row < kRows; ++row)
      ASSERT_EQ(to.as<float>()[kRows - 1 - row], from.as<float>()[row]) << row;
  });
}

// Elements of boxes against the coordinates of each: columns, rows, blocks, all; from any element
// to any other.  The memory of runs is the second matrix of a stack.
TEST(Copy, RunsAreTheElementsOfTheBox) {
  const Shape tensor{2, 300, 501};
  const int64_t first = 300 * 501;
  const Box boxes[] = {{{1, 0, 17}, {1, 300, 300}},
                       {{1, 5, 0}, {1, 200, 501}},
                       {{1, 299, 500}, {1, 1, 1}},
                       {{1, 0, 0}, {1, 300, 501}}};
  for (const Box& box : boxes) {
    const int64_t numel = box.length.numel();
    for (const int64_t begin : {int64_t{0}, numel / 3, numel})
      for (const int64_t length : {(numel - begin) / 2, numel - begin})
        on_threads(fmt::format("{} + {} of {}", begin, length, numel), [&](Bench& bench) {
          const BoxRange range{tensor, box, begin, length, first};
          const Tensor runs = bench.random(DType::kF32, "runs", {300, 501}, 3.0);
          const Tensor packed = bench.zeros(DType::kF32, {length});
          copy_from_runs(bench.context(), range, runs, packed);
          for (int64_t i = 0; i < length; ++i)
            ASSERT_EQ(packed.as<float>()[i],
                      runs.as<float>()[index_in_tensor(tensor, box, begin + i) - first])
                << i;
          std::vector<double> want = values_of(runs);
          for (int64_t i = 0; i < length; ++i) {
            packed.as<float>()[i] = float(-i);
            want[size_t(index_in_tensor(tensor, box, begin + i) - first)] = double(-i);
          }
          copy_to_runs(bench.context(), range, packed, runs);
          ASSERT_EQ(values_of(runs), want);
        });
  }
}

TEST(Copy, UploadsALine) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{70001}}) {
    Bench bench({}, false, 2);
    std::vector<int32_t> ids(count);
    std::iota(ids.begin(), ids.end(), -3);
    const Tensor to = bench.zeros(DType::kI32, {int64_t(count)});
    upload(bench.context(), ids, to);
    EXPECT_TRUE(std::ranges::equal(to.span<int32_t>(), ids));
  }
}

TEST(Copy, MetaRecordsTheSameAndTouchesNothing) {
  const Box box{{0, 3}, {9, 4}};
  const Shape shape{9, 11};
  const RowPair pairs[] = {{0, 1}, {2, 0}};
  const std::vector<int32_t> ids(99);
  std::vector<double> numbers(99);
  expect_recorded_on_meta("all", [&](Bench& bench) {
    const Context& ctx = bench.context();
    const Tensor a = bench.zeros(DType::kF32, shape), b = bench.zeros(DType::kF32, shape);
    const Tensor half = bench.zeros(DType::kBF16, shape), none = bench.zeros(DType::kF32, {0, 11});
    const Tensor packed = bench.zeros(DType::kF32, {36}), line = bench.zeros(DType::kI32, shape);
    copy(ctx, a, half);
    copy(ctx, Matrix::of(a).columns(1, 4), Matrix::of(b).columns(0, 3));
    copy(ctx, none, none);
    add(ctx, a, b);
    scale(ctx, half, 0.5);
    fill(ctx, half, 0.0);
    copy_rows(ctx, pairs, Matrix::of(a), Matrix::of(half));
    copy_rows(ctx, {}, Matrix::of(a), Matrix::of(b));
    copy_from_runs(ctx, {shape, box, 0, 36, 0}, a, packed);
    copy_to_runs(ctx, {shape, box, 0, 36, 0}, packed, a);
    upload(ctx, ids, line);
    download(ctx, a, numbers);
    const std::vector<Call> records = bench.calls();
    ASSERT_EQ(records.size(), 12u);
    const int64_t bytes[] = {99 * 6, 27 * 8, 0,      99 * 12, 99 * 4, 99 * 2,
                             22 * 6, 0,      36 * 8, 36 * 8,  99 * 8, 99 * 8};
    for (size_t i = 0; i < 12; ++i) EXPECT_EQ(records[i].cost.bytes, bytes[i]) << records[i].op;
    EXPECT_EQ(records[3].cost.flop, 99);
    EXPECT_EQ(records[4].cost.flop, 99);
  });
}

TEST(Copy, ADownloadGivesWhatAnUploadTook) {
  Bench bench;
  const Context& ctx = bench.context();
  const std::vector<int32_t> ids = {3, -1, 7};
  const Tensor ids_there = bench.zeros(DType::kI32, {3});
  std::vector<int32_t> ids_here(3);
  upload(ctx, ids, ids_there);
  download(ctx, ids_there, ids_here);
  EXPECT_EQ(ids_here, ids);
  const std::vector<double> numbers = {0.5, -2.0, 1e30};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor there = bench.zeros(dtype, {3, 1});
    std::vector<double> here(3);
    upload(ctx, numbers, there);
    download(ctx, there, here);
    EXPECT_EQ(here, values_of(there));
    EXPECT_EQ(here[1], -2.0);
  }
  const Tensor counts = bench.zeros(DType::kI64, {2});
  counts.as<int64_t>()[1] = int64_t{1} << 40;
  std::vector<int64_t> counted(2);
  download(ctx, counts, counted);
  EXPECT_EQ(counted[1], int64_t{1} << 40);
  EXPECT_DEATH(download(ctx, counts, ids_here), "kI32");
  EXPECT_DEATH(download(ctx, counts, std::span(counted).first(1)), "size");
}

TEST(Copy, RefusesWhatDoesNotFit) {
  Bench bench;
  const Context& ctx = bench.context();
  const Tensor floats = bench.zeros(DType::kF32, {4, 3}), ints = bench.zeros(DType::kI32, {4, 3});
  const Tensor more = bench.zeros(DType::kF32, {5, 3});
  EXPECT_DEATH(copy(ctx, floats, ints), "can_copy");
  EXPECT_DEATH(copy(ctx, floats, more), "cols");
  EXPECT_DEATH(add(ctx, ints, ints), "dtype");
  EXPECT_DEATH(fill(ctx, ints, 1.0), "value");
  const RowPair outside[] = {{4, 0}};
  EXPECT_DEATH(copy_rows(ctx, outside, Matrix::of(floats), Matrix::of(floats)), "pair");
}

}  // namespace
}  // namespace ashlar::kernels
