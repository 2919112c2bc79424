// A library with the functions of cuBLASLt that Ashlar calls.  It checks what it is given against
// the vendor's documentation and multiplies matrices of the host in double precision.  Its
// algorithms state the alignments and the workspace that they need, which its product then checks.
//
//   FAKE_CUBLASLT_VERSION  its version, 130100 by default
//   FAKE_CUBLASLT_FAILS    the function that fails
//   fake_cublaslt_log      what has been called since the last call of it
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

extern "C" size_t cublasLtGetVersion() {
  const char* version = std::getenv("FAKE_CUBLASLT_VERSION");
  return version ? size_t(std::atoi(version)) : 130100;
}

#ifndef FAKE_IS_PARTIAL
namespace {

constexpr int kNotInitialized = 1, kInvalidValue = 7, kNotSupported = 15;
constexpr int kFloat = 0, kBf16 = 14;
constexpr uint64_t kMark = 0x1f2e3d4c5b6a7988;

struct FakeOperation {
  int compute, scale;
  int32_t turns_a = 0, turns_b = 0;
};
struct FakeLayout {
  int type;
  uint64_t rows, cols;
  int64_t stride;
  int32_t batch = 1;
  int64_t batch_stride = 0;
};
struct FakePreference {
  uint64_t workspace = 0;
  uint32_t reductions = 7, alignment[4] = {256, 256, 256, 256};
};
struct FakeAlgorithm {
  uint64_t mark, alignment[4], workspace, unused[2];
};
struct FakeResult {
  FakeAlgorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

std::string log;

bool fails(const char* function) {
  const char* name = std::getenv("FAKE_CUBLASLT_FAILS");
  return name && std::strcmp(name, function) == 0;
}

template <typename T>
int set_value(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return kInvalidValue;
  std::memcpy(&to, value, bytes);
  return 0;
}

double element(const void* data, int type, int64_t i) {
  if (type == kFloat) return static_cast<const float*>(data)[i];
  return std::bit_cast<float>(uint32_t(static_cast<const uint16_t*>(data)[i]) << 16);
}

void set_element(void* data, int type, int64_t i, double value) {
  const auto x = float(value);
  if (type == kFloat) {
    static_cast<float*>(data)[i] = x;
    return;
  }
  const auto bits = std::bit_cast<uint32_t>(x);
  static_cast<uint16_t*>(data)[i] = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// As column-major matrices: op(a) [m, k] op(b) [k, n], c and d [m, n].
int check_shapes(const FakeOperation& o, const FakeLayout& a, const FakeLayout& b,
                 const FakeLayout& c, const FakeLayout& d) {
  const uint64_t m = o.turns_a ? a.cols : a.rows, k = o.turns_a ? a.rows : a.cols,
                 k_of_b = o.turns_b ? b.cols : b.rows, n = o.turns_b ? b.rows : b.cols;
  if (k != k_of_b || c.rows != m || c.cols != n || d.rows != m || d.cols != n) return kInvalidValue;
  for (const FakeLayout* x : {&a, &b, &c, &d})
    if (x->stride < int64_t(x->rows) || x->batch != d.batch || x->rows == 0 || x->cols == 0)
      return kInvalidValue;
  if (a.type != b.type || c.type != d.type || o.scale != kFloat) return kNotSupported;
  if (d.type == kBf16 && a.type != kBf16) return kNotSupported;
  return o.compute == 68 || o.compute == 69 ? 0 : kNotSupported;
}

int64_t place(const FakeLayout& x, bool turned, int64_t row, int64_t col, int64_t batch) {
  return batch * x.batch_stride + (turned ? row * x.stride + col : col * x.stride + row);
}

}  // namespace

extern "C" {

const char* fake_cublaslt_log() {
  static std::string last;
  last = std::exchange(log, "");
  return last.c_str();
}

const char* cublasLtGetStatusString(int status) {
  return status == kInvalidValue ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS_OTHER";
}

int cublasLtCreate(void** handle) {
  if (fails("cublasLtCreate")) return kNotInitialized;
  static int one;
  *handle = &one;
  return 0;
}

int cublasLtMatmulDescCreate(void** desc, int compute, int scale) {
  *desc = new FakeOperation{compute, scale};
  return 0;
}
int cublasLtMatmulDescDestroy(void* desc) {
  delete static_cast<FakeOperation*>(desc);
  return 0;
}
int cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, size_t bytes) {
  auto* operation = static_cast<FakeOperation*>(desc);
  if (attribute == 3) return set_value(operation->turns_a, value, bytes);
  return attribute == 4 ? set_value(operation->turns_b, value, bytes) : kInvalidValue;
}

int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t cols,
                               int64_t stride) {
  *layout = new FakeLayout{type, rows, cols, stride};
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<FakeLayout*>(layout);
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t bytes) {
  auto* x = static_cast<FakeLayout*>(layout);
  if (attribute == 5) return set_value(x->batch, value, bytes);
  return attribute == 6 ? set_value(x->batch_stride, value, bytes) : kInvalidValue;
}

int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new FakePreference;
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<FakePreference*>(preference);
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value,
                                         size_t bytes) {
  auto* p = static_cast<FakePreference*>(preference);
  if (attribute == 1) return set_value(p->workspace, value, bytes);
  if (attribute == 3) return set_value(p->reductions, value, bytes);
  if (attribute < 5 || attribute > 8) return kInvalidValue;
  return set_value(p->alignment[attribute - 5], value, bytes);
}

int cublasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void* b, void* c, void* d,
                                   void* preference, int wanted, void* results, int* found) {
  const auto& p = *static_cast<FakePreference*>(preference);
  log += "heuristic, reductions " + std::to_string(p.reductions) + ", " +
         std::to_string(p.workspace) + " bytes; ";
  *found = 0;
  if (fails("cublasLtMatmulAlgoGetHeuristic") || wanted < 1) return 0;
  FakeResult result{};
  for (int i = 0; i < 4; ++i) result.algorithm.alignment[i] = p.alignment[i];
  result.algorithm.mark = kMark;
  result.algorithm.workspace = result.workspace = p.workspace / 2;
  result.status = check_shapes(*static_cast<FakeOperation*>(operation),
                               *static_cast<FakeLayout*>(a), *static_cast<FakeLayout*>(b),
                               *static_cast<FakeLayout*>(c), *static_cast<FakeLayout*>(d));
  std::memcpy(results, &result, sizeof result);
  *found = 1;
  return result.status;
}

int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const void* algorithm,
                            void* result) {
  log += "check; ";
  FakeResult checked{};
  std::memcpy(&checked.algorithm, algorithm, sizeof checked.algorithm);
  checked.workspace = checked.algorithm.workspace;
  std::memcpy(result, &checked, sizeof checked);
  return checked.algorithm.mark == kMark ? 0 : kInvalidValue;
}

int cublasLtMatmul(void*, void* operation, const void* alpha, const void* a, void* a_layout,
                   const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                   void* d, void* d_layout, const void* algorithm, void* workspace,
                   size_t workspace_bytes, void* stream) {
  const auto& o = *static_cast<FakeOperation*>(operation);
  const auto &la = *static_cast<FakeLayout*>(a_layout), &lb = *static_cast<FakeLayout*>(b_layout),
             &lc = *static_cast<FakeLayout*>(c_layout), &ld = *static_cast<FakeLayout*>(d_layout);
  log += "product, compute " + std::to_string(o.compute) + "; ";
  if (fails("cublasLtMatmul") || stream != nullptr) return kInvalidValue;
  if (const int status = check_shapes(o, la, lb, lc, ld)) return status;
  FakeAlgorithm chosen;
  std::memcpy(&chosen, algorithm, sizeof chosen);
  const void* all[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (reinterpret_cast<uintptr_t>(all[i]) % chosen.alignment[i] != 0) return kNotSupported;
  if (chosen.mark != kMark || workspace_bytes < chosen.workspace) return kInvalidValue;
  if (reinterpret_cast<uintptr_t>(workspace) % 16 != 0) return kInvalidValue;
  std::memset(workspace, 0xff, chosen.workspace);
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const auto m = int64_t(ld.rows), n = int64_t(ld.cols), k = int64_t(o.turns_a ? la.rows : la.cols);
  for (int64_t batch = 0; batch < ld.batch; ++batch)
    for (int64_t row = 0; row < m; ++row)
      for (int64_t col = 0; col < n; ++col) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i)
          sum += element(a, la.type, place(la, o.turns_a, row, i, batch)) *
                 element(b, lb.type, place(lb, o.turns_b, i, col, batch));
        sum *= scale;
        if (keep != 0) sum += keep * element(c, lc.type, place(lc, false, row, col, batch));
        set_element(d, ld.type, place(ld, false, row, col, batch), sum);
      }
  return 0;
}

}  // extern "C"
#endif
