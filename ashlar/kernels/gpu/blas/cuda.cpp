#include "ashlar/kernels/gpu/blas/cuda.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

#include "ashlar/core/cards.h"
#include "ashlar/core/error.h"

namespace ashlar::kernels::gpu::blas {
namespace {

using namespace cublaslt;

// Under the other names other versions are found, so that an error can tell of them.
constexpr const char* kLibraryFiles[] = {"libcublasLt.so.13", "libcublasLt.so",
                                         "libcublasLt.so.12"};

constexpr const char* kRemedy =
    "install NVIDIA's cuBLAS of CUDA 13 (PyPI: nvidia-cublas), or name its folder in "
    "ASHLAR_GPU_LIBS";

LoadedLibrary load_cublaslt(const std::vector<std::string>& folders) {
  LoadedLibrary found = first_library(folders, kLibraryFiles);
  std::vector<std::string> places;
  for (const std::string& folder : folders)
    places.push_back(folder.empty() ? "the loader's path" : folder);
  ASHLAR_REQUIRE(found.library || found.error.empty(), kDevice, "{} does not load: {}; {}",
                 kLibraryFiles[0], found.error, kRemedy);
  ASHLAR_REQUIRE(found.library, kDevice, "{} was not found in {}: {}", kLibraryFiles[0],
                 fmt::join(places, ", "), kRemedy);
  return found;
}

std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

int type_number(DType dtype) {
  ASHLAR_ASSERT(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? kFloat32 : kBfloat16;
}

// The power of two up to 16 that all rows begin at: it depends on shapes, for tensors begin at
// multiples of more.
uint32_t alignment_of(const Stack& s) {
  constexpr uint64_t kMost = 16;
  const auto size = uint64_t(size_of(s.dtype));
  const uint64_t all = reinterpret_cast<uint64_t>(s.data) | uint64_t(s.stride) * size |
                       uint64_t(s.stack_stride) * size | kMost;
  return uint32_t(all & -all);
}

// The text by which an algorithm is chosen.
std::string key_of(const Product& p, std::string_view chip) {
  std::string key = fmt::format("{} {} {} {} {} {}{}", chip, p.count, p.rows, p.cols, p.depth,
                                p.transposes_a, p.transposes_b);
  for (const Stack& s : {p.a, p.b, p.c, p.d})
    key += fmt::format(" {} {} {} {}", name_of(s.dtype), s.stride, s.stack_stride, alignment_of(s));
  return key;
}

}  // namespace

// cuBLASLt's matrices are column-major.  A row-major matrix is the transpose of a column-major one
// with the same stride, so d^T = b^T a^T: their A is our b, and their B our a.
struct CublasLt::Plan {
  Descriptor operation, a, b, c, d;
  Algorithm algorithm;
};

CublasLt::CublasLt(const std::vector<std::string>& folders, const AlgorithmTable& algorithms)
    : algorithms_(algorithms) {
  const LoadedLibrary found = load_cublaslt(folders);
  path_ = found.path;
  const auto find = [&]<typename F>(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(found.library, name));
    ASHLAR_REQUIRE(function, kDevice, "{} has no function {}: {}", path_, name, kRemedy);
  };
  find(functions_.cublasLtGetVersion, "cublasLtGetVersion");
  const size_t version = functions_.cublasLtGetVersion();
  ASHLAR_REQUIRE(version / 10000 == kMajorVersion, kDevice,
                 "{} is cuBLASLt {}, expected version {}: {}", path_, version_text(version),
                 kMajorVersion, kRemedy);
#define ASHLAR_FIND_FUNCTION(name, ...) find(functions_.name, #name);
  ASHLAR_CUBLASLT_FUNCTIONS(ASHLAR_FIND_FUNCTION)
#undef ASHLAR_FIND_FUNCTION
}

CublasLt::~CublasLt() = default;

std::string CublasLt::description() const {
  return fmt::format("cuBLASLt {} ({})", version_text(functions_.cublasLtGetVersion()), path_);
}

void CublasLt::check(int status, std::string_view function) const {
  ASHLAR_REQUIRE(status == 0, kDevice, "{} of {} failed: {} ({})", function, description(),
                 functions_.cublasLtGetStatusString(status), status);
}

void CublasLt::choose(const Product& p, std::string_view chip, size_t workspace_bytes, Plan& plan) {
  Heuristic found{};
  const auto ask = [&](auto* function, auto... more) {
    return function(handle_, plan.operation.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                    plan.d.get(), more...);
  };
  if (const auto known = algorithms_.find(functions_.cublasLtGetVersion(), chip, p)) {
    check(ask(functions_.cublasLtMatmulAlgoCheck, &*known, &found),
          "cublasLtMatmulAlgoCheck for an algorithm of the table");
    ASHLAR_REQUIRE(found.workspace_bytes <= workspace_bytes, kDevice,
                   "an algorithm of the table takes {} bytes of workspace, of {}",
                   found.workspace_bytes, workspace_bytes);
    plan.algorithm = *known;
    return;
  }
  void* created = nullptr;
  check(functions_.cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate");
  const Descriptor preference(created, functions_.cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](int attribute, auto value) {
    check(functions_.cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value,
                                                          sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(kMaxWorkspaceBytes, uint64_t(workspace_bytes));
  prefer(kReductionSchemes, kReducesInComputeType);
  prefer(kMinAlignmentA, alignment_of(p.b));
  prefer(kMinAlignmentB, alignment_of(p.a));
  prefer(kMinAlignmentC, alignment_of(p.c));
  prefer(kMinAlignmentD, alignment_of(p.d));
  int num_found = 0;
  check(ask(functions_.cublasLtMatmulAlgoGetHeuristic, preference.get(), 1, &found, &num_found),
        "cublasLtMatmulAlgoGetHeuristic");
  ASHLAR_REQUIRE(num_found > 0 && found.status == 0, kDevice,
                 "{} knows no algorithm for the product {}", description(), key_of(p, chip));
  plan.algorithm = found.algorithm;
}

CublasLt::Descriptor CublasLt::layout_of(const Product& p, const Stack& s, int64_t rows,
                                         int64_t cols) const {
  void* layout = nullptr;
  check(functions_.cublasLtMatrixLayoutCreate(&layout, type_number(s.dtype), uint64_t(cols),
                                              uint64_t(rows), s.stride),
        "cublasLtMatrixLayoutCreate");
  Descriptor owned(layout, functions_.cublasLtMatrixLayoutDestroy);
  const auto set = [&](int attribute, auto value) {
    check(functions_.cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
          "cublasLtMatrixLayoutSetAttribute");
  };
  set(kBatchCount, int32_t(p.count));
  set(kBatchStride, s.stack_stride);
  return owned;
}

CublasLt::Descriptor CublasLt::operation_of(const Product& p) const {
  void* operation = nullptr;
  const int compute = p.a.dtype == DType::kF32 ? kComputeFloat32Exact : kComputeFloat32;
  check(functions_.cublasLtMatmulDescCreate(&operation, compute, kFloat32),
        "cublasLtMatmulDescCreate");
  Descriptor owned(operation, functions_.cublasLtMatmulDescDestroy);
  const auto set = [&](int attribute, bool transposes) {
    const int32_t value = transposes ? kTransposed : kPlain;
    check(functions_.cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  };
  set(kTransposesA, p.transposes_b);
  set(kTransposesB, p.transposes_a);
  return owned;
}

const CublasLt::Plan& CublasLt::plan_of(const Product& p, std::string_view chip,
                                        size_t workspace_bytes) {
  std::unique_ptr<Plan>& known = plans_[fmt::format("{} {}", key_of(p, chip), workspace_bytes)];
  if (known) return *known;
  if (!handle_) check(functions_.cublasLtCreate(&handle_), "cublasLtCreate");
  const bool ta = p.transposes_a, tb = p.transposes_b;
  auto plan =
      std::make_unique<Plan>(Plan{operation_of(p),
                                  layout_of(p, p.b, tb ? p.cols : p.depth, tb ? p.depth : p.cols),
                                  layout_of(p, p.a, ta ? p.depth : p.rows, ta ? p.rows : p.depth),
                                  layout_of(p, p.c, p.rows, p.cols),
                                  layout_of(p, p.d, p.rows, p.cols),
                                  {}});
  choose(p, chip, workspace_bytes, *plan);
  return *(known = std::move(plan));
}

void CublasLt::multiply(const Product& p, std::string_view chip, const Tensor& workspace) {
  const std::lock_guard lock(mutex_);
  const auto workspace_bytes = size_t(workspace.bytes());
  const Plan& plan = plan_of(p, chip, workspace_bytes);
  check(functions_.cublasLtMatmul(handle_, plan.operation.get(), &p.alpha, p.b.data, plan.a.get(),
                                  p.a.data, plan.b.get(), &p.beta, p.c.data, plan.c.get(), p.d.data,
                                  plan.d.get(), &plan.algorithm, workspace.data, workspace_bytes,
                                  nullptr),
        "cublasLtMatmul");
}

namespace {

// Loaded by the first call of the process.
CublasLt& process_cublaslt() {
  static CublasLt library(gpu_library_folders(), shipped_algorithms());
  return library;
}

}  // namespace

const Table kCuda = {.multiply =
                         [](const Context& ctx, const Product& product, const Tensor& workspace) {
                           process_cublaslt().multiply(product, ctx.spec ? ctx.spec->name : "",
                                                       workspace);
                         },
                     .description = [] { return process_cublaslt().description(); }};

}  // namespace ashlar::kernels::gpu::blas
