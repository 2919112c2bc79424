// The part of cuBLASLt that Ashlar calls, declared here because no build needs a toolkit: numbers
// and layouts are those of version 13.  tests/kernels/gpu/cublaslt_header_test.cpp compares them
// with the vendor's header where it is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ashlar::kernels::gpu::blas::cublaslt {

inline constexpr int kMajorVersion = 13;

inline constexpr int kFloat32 = 0, kBfloat16 = 14;                     // types
inline constexpr int kComputeFloat32 = 68, kComputeFloat32Exact = 69;  // ways to compute
inline constexpr int32_t kPlain = 0, kTransposed = 1;                  // operands
inline constexpr int kTransposesA = 3, kTransposesB = 4;               // attributes of a product
inline constexpr int kBatchCount = 5, kBatchStride = 6;                // of a matrix's layout
inline constexpr int kMaxWorkspaceBytes = 1, kReductionSchemes = 3, kMinAlignmentA = 5,
                     kMinAlignmentB = 6, kMinAlignmentC = 7,
                     kMinAlignmentD = 8;  // of preferences
// Reductions: partial sums are added in one order, in the type of the sums.
inline constexpr uint32_t kReducesInComputeType = 2;

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

// Descriptors are opaque, and every int that is returned is a status, 0 if all went well.
#define ASHLAR_CUBLASLT_FUNCTIONS(HAS)                                                             \
  HAS(cublasLtGetVersion, size_t())                                                                \
  HAS(cublasLtGetStatusString, const char*(int status))                                            \
  HAS(cublasLtCreate, int(void** handle))                                                          \
  HAS(cublasLtMatmulDescCreate, int(void** desc, int compute, int scale))                          \
  HAS(cublasLtMatmulDescDestroy, int(void* desc))                                                  \
  HAS(cublasLtMatmulDescSetAttribute, int(void* desc, int, const void* value, size_t bytes))       \
  HAS(cublasLtMatrixLayoutCreate,                                                                  \
      int(void** layout, int type, uint64_t rows, uint64_t cols, int64_t stride))                  \
  HAS(cublasLtMatrixLayoutDestroy, int(void* layout))                                              \
  HAS(cublasLtMatrixLayoutSetAttribute, int(void* layout, int, const void* value, size_t bytes))   \
  HAS(cublasLtMatmulPreferenceCreate, int(void** preference))                                      \
  HAS(cublasLtMatmulPreferenceDestroy, int(void* preference))                                      \
  HAS(cublasLtMatmulPreferenceSetAttribute,                                                        \
      int(void* preference, int, const void* value, size_t bytes))                                 \
  HAS(cublasLtMatmulAlgoGetHeuristic,                                                              \
      int(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,          \
          int wanted, Heuristic* found, int* num_found))                                           \
  HAS(cublasLtMatmulAlgoCheck, int(void* handle, void* desc, void* a, void* b, void* c, void* d,   \
                                   const Algorithm*, Heuristic* found))                            \
  HAS(cublasLtMatmul,                                                                              \
      int(void* handle, void* desc, const void* alpha, const void* a, void* a_layout,              \
          const void* b, void* b_layout, const void* beta, const void* c, void* c_layout, void* d, \
          void* d_layout, const Algorithm*, void* workspace, size_t workspace_bytes,               \
          void* stream))

struct Functions {
#define ASHLAR_POINT_AT_FUNCTION(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  ASHLAR_CUBLASLT_FUNCTIONS(ASHLAR_POINT_AT_FUNCTION)
#undef ASHLAR_POINT_AT_FUNCTION
};

}  // namespace ashlar::kernels::gpu::blas::cublaslt
