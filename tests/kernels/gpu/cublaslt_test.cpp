// The products of a GPU's libraries, on memory of the host: the stand-in of the emulator, and
// cuBLASLt with a library of its name that checks its arguments (fake_cublaslt.cpp).
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ashlar/core/cards.h"
#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"
#include "ashlar/kernels/gpu/blas/cuda.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels::gpu::blas {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
const std::string kWhole = ASHLAR_FAKE_CUBLASLT "/whole",
                  kPartial = ASHLAR_FAKE_CUBLASLT "/partial";

struct ProductCase {
  int64_t count, rows, cols, depth;
  DType operands, result;
  bool ta = false, tb = false;
  float alpha = 1, beta = 0;
  int64_t beside = 0;     // columns behind each matrix that belong to others
  bool in_place = false;  // c is d
};

// A stack in memory of the host, of values that every type holds exactly.
class HostStack {
 public:
  HostStack(Bench& bench, const char* name, DType dtype, int64_t count, int64_t rows, int64_t cols,
            int64_t beside)
      : tensor_(bench.random(dtype, name, {count * rows, cols + beside})),
        stack_{tensor_.data, dtype, cols + beside, rows * (cols + beside)} {}
  const Stack& stack() const { return stack_; }
  const Tensor& tensor() const { return tensor_; }
  double at(int64_t number, int64_t row, int64_t col) const {
    const int64_t i = number * stack_.stack_stride + row * stack_.stride + col;
    return stack_.dtype == kF32 ? double(tensor_.as<float>()[i])
                                : double(float(tensor_.as<bf16>()[i]));
  }

 private:
  Tensor tensor_;
  Stack stack_;
};

struct Sample {
  Bench bench;
  HostStack a, b, c, d;
  Product product;
  Tensor workspace;
  explicit Sample(const ProductCase& p)
      : a(bench, "a", p.operands, p.count, p.ta ? p.depth : p.rows, p.ta ? p.rows : p.depth,
          p.beside),
        b(bench, "b", p.operands, p.count, p.tb ? p.cols : p.depth, p.tb ? p.depth : p.cols,
          p.beside),
        c(bench, "c", p.result, p.count, p.rows, p.cols, p.beside),
        d(bench, "d", p.result, p.count, p.rows, p.cols, p.beside),
        product{.count = p.count,
                .rows = p.rows,
                .cols = p.cols,
                .depth = p.depth,
                .a = a.stack(),
                .b = b.stack(),
                .c = c.stack(),
                .d = p.in_place ? c.stack() : d.stack(),
                .transposes_a = p.ta,
                .transposes_b = p.tb,
                .alpha = p.alpha,
                .beta = p.beta},
        workspace(bench.zeros(DType::kU8, {4096})) {
    if (p.beta == 0)  // NaN, which must not be read
      for (const HostStack* s : {&c, &d})
        std::memset(s->tensor().data, 0xff, size_t(s->tensor().bytes()));
  }
  const HostStack& result() const { return product.d.data == c.stack().data ? c : d; }
};

using Multiply = std::function<void(const Context&, const Product&, const Tensor& workspace)>;

// Against sums in double precision from the values before; columns behind are left alone.
void expect_product(const ProductCase& p, const Multiply& multiply) {
  const Sample before(p);
  Sample after(p);
  multiply(after.bench.context(), after.product, after.workspace);
  for (int64_t number = 0; number < p.count; ++number)
    for (int64_t row = 0; row < p.rows; ++row) {
      for (int64_t col = 0; col < p.cols; ++col) {
        double want = p.beta == 0 ? 0 : p.beta * before.c.at(number, row, col);
        for (int64_t k = 0; k < p.depth; ++k)
          want += p.alpha * (p.ta ? before.a.at(number, k, row) : before.a.at(number, row, k)) *
                  (p.tb ? before.b.at(number, col, k) : before.b.at(number, k, col));
        const double own = p.result == kBF16 ? 0x1p-8 * std::abs(want) : 0;
        ASSERT_NEAR(after.result().at(number, row, col), want, 1e-5 + own)
            << number << ", " << row << ", " << col;
      }
      for (int64_t col = p.cols; col < p.cols + p.beside && p.beta != 0; ++col)
        ASSERT_EQ(after.result().at(number, row, col), before.result().at(number, row, col));
    }
}

std::vector<ProductCase> product_cases() {
  std::vector<ProductCase> cases;
  constexpr std::pair<DType, DType> kTypes[] = {{kF32, kF32}, {kBF16, kF32}, {kBF16, kBF16}};
  for (const auto& [operands, result] : kTypes)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const int64_t count : {1, 3}) {
          const ProductCase plain{count, 5, 7, 9, operands, result, ta, tb};
          ProductCase added = plain, scaled = plain;
          added.beta = 1, added.in_place = true, added.beside = 3;
          scaled.alpha = -0.5, scaled.beta = 2, scaled.beside = 8;
          cases.insert(cases.end(), {plain, added, scaled});
        }
  cases.push_back({1, 1, 1, 1, kBF16, kF32});
  cases.push_back({2, 40, 33, 70, kBF16, kBF16});
  return cases;
}

// The calls of the library since the last call of this.
std::string fake_log() {
  void* library = dlopen((kWhole + "/libcublasLt.so.13").c_str(), RTLD_NOW);
  return reinterpret_cast<const char* (*)()>(dlsym(library, "fake_cublaslt_log"))();
}

// A variable of the environment, during a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(BlasReference, MultipliesStacks) {
  for (const ProductCase& p : product_cases()) expect_product(p, kReference.multiply);
}

TEST(CublasLt, MultipliesStacks) {
  const AlgorithmTable none("");
  CublasLt library({kWhole}, none);
  EXPECT_EQ(library.description(), "cuBLASLt 13.1.0 (" + kWhole + "/libcublasLt.so.13)");
  for (const ProductCase& p : product_cases())
    expect_product(p, [&](const Context&, const Product& product, const Tensor& workspace) {
      library.multiply(product, "h200", workspace);
    });
}

TEST(CublasLt, AsksOnceForAnAlgorithmThatAddsInOneOrder) {
  const AlgorithmTable none("");
  CublasLt library({kWhole}, none);
  const Sample floats({2, 4, 8, 16, kF32, kF32}), halves({2, 4, 8, 16, kBF16, kBF16});
  fake_log();
  for (int i = 0; i < 2; ++i) library.multiply(floats.product, "h200", floats.workspace);
  EXPECT_EQ(fake_log(),
            "heuristic, reductions 2, 4096 bytes; product, compute 69; product, compute 69; ");
  library.multiply(halves.product, "h200", halves.workspace);
  EXPECT_EQ(fake_log(), "heuristic, reductions 2, 4096 bytes; product, compute 68; ");
}

// The mark, alignments of 1, and a workspace of 0x80 bytes.
constexpr const char* kAlgorithm =
    "1f2e3d4c5b6a7988000000000000000100000000000000010000000000000001"
    "0000000000000001000000000000008000000000000000000000000000000000";

TEST(CublasLt, TakesTheTablesAlgorithmOfItsVersionAndChip) {
  const AlgorithmTable table(
      fmt::format("# VERSION ...\n\n130100 h200 BF16-F32 nt 1 4 8 16 {}\n", kAlgorithm));
  const Sample sample({1, 4, 8, 16, kBF16, kF32, false, true});
  for (const auto& [version, chip, call] :
       {std::tuple{"130100", "h200", "check; "},
        std::tuple{"130100", "h100", "heuristic, reductions 2, 4096 bytes; "},
        std::tuple{"130200", "h200", "heuristic, reductions 2, 4096 bytes; "}}) {
    const Variable of_version("FAKE_CUBLASLT_VERSION", version);
    CublasLt library({kWhole}, table);
    fake_log();
    library.multiply(sample.product, chip, sample.workspace);
    EXPECT_EQ(fake_log(), fmt::format("{}product, compute 68; ", call)) << version << " " << chip;
  }
}

TEST(CublasLt, TheShippedTableIsReadable) {
  const Sample sample({1, 4, 8, 16, kBF16, kF32});
  EXPECT_FALSE(shipped_algorithms().find(130100, "h200", sample.product));
}

void expect_device_error(const std::string& part, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(CublasLt, ATableThatIsNoneIsAnError) {
  for (const std::string& line :
       std::vector<std::string>{"130100 h200", "130100 h200 BF16-F32 nt 1 4 8 16 12ab",
                                "130100 h200 BF16-F32 nt 1 4 8 16 x" + std::string(127, '0')})
    expect_device_error("line 2 of the table of algorithms",
                        [&] { AlgorithmTable("# none\n" + line); });
  const AlgorithmTable large(
      fmt::format("130100 h200 BF16-F32 nn 1 4 8 16 {}",
                  std::string(kAlgorithm).replace(64 + 16, 16, "0000000000002000")));
  CublasLt library({kWhole}, large);
  const Sample sample({1, 4, 8, 16, kBF16, kF32});
  expect_device_error("8192 bytes of workspace, of 4096",
                      [&] { library.multiply(sample.product, "h200", sample.workspace); });
}

TEST(CublasLt, MissingAndForeignLibrariesAreErrorsWithARemedy) {
  const AlgorithmTable none("");
  const auto load = [&](const std::string& folder) {
    return [&none, folder] { CublasLt library({folder}, none); };
  };
  expect_device_error("libcublasLt.so.13 was not found in /nowhere: install", load("/nowhere"));
  expect_device_error("/libcublasLt.so.13 has no function cublasLtGetStatusString: install",
                      load(kPartial));
  const Variable version("FAKE_CUBLASLT_VERSION", "120805");
  expect_device_error("is cuBLASLt 12.8.5, expected version 13: install", load(kWhole));
}

TEST(CublasLt, FailuresNameTheFunctionAndTheVersion) {
  const AlgorithmTable none("");
  CublasLt library({kWhole}, none);
  const Sample sample({1, 4, 8, 16, kBF16, kF32});
  const auto multiply = [&] { library.multiply(sample.product, "h200", sample.workspace); };
  for (const auto& [function, part] :
       {std::pair{"cublasLtCreate", "cublasLtCreate of cuBLASLt 13.1.0 ("},
        std::pair{"cublasLtMatmulAlgoGetHeuristic", "knows no algorithm for the product h200 1 4"},
        std::pair{"cublasLtMatmul", "failed: CUBLAS_STATUS_INVALID_VALUE (7)"}}) {
    const Variable fails("FAKE_CUBLASLT_FAILS", function);
    expect_device_error(part, multiply);
  }
  multiply();  // a failure leaves nothing behind
}

TEST(CublasLt, IsFoundInTheFoldersOfTheVariable) {
  const Variable folders("ASHLAR_GPU_LIBS", ("/nowhere:" + kWhole).c_str());
  const AlgorithmTable none("");
  EXPECT_EQ(CublasLt(gpu_library_folders(), none).description(),
            "cuBLASLt 13.1.0 (" + kWhole + "/libcublasLt.so.13)");
}

TEST(CublasLt, TheInstalledLibraryHasAllFunctions) {
  const AlgorithmTable none("");
  try {
    const CublasLt library(gpu_library_folders(), none);
    EXPECT_TRUE(library.description().starts_with("cuBLASLt 13.")) << library.description();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
}

TEST(BlasTables, AmdsRefuses) {
  const Sample sample({1, 4, 8, 16, kBF16, kF32});
  expect_device_error("hipBLASLt", [&] {
    kHip.multiply(sample.bench.context(), sample.product, sample.workspace);
  });
  expect_device_error("hipBLASLt", [] { kHip.description(); });
}

}  // namespace
}  // namespace ashlar::kernels::gpu::blas
