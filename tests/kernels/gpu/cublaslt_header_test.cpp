// The declarations of blas/cublaslt.h against the vendor's header, where it is installed.
#include <gtest/gtest.h>

#include "ashlar/kernels/gpu/blas/cublaslt.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace ashlar::kernels::gpu::blas::cublaslt {
namespace {

// Whether an argument is passed in the same way: a descriptor is a pointer, and an enumeration an
// integer.
template <typename A, typename B>
constexpr bool kPassedAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> ==
                                  std::is_pointer_v<B>&& std::is_floating_point_v<A> ==
                                  std::is_floating_point_v<B>;

template <typename A, typename B>
constexpr bool kCalledAlike = false;
template <typename A, typename... As, typename B, typename... Bs>
requires(sizeof...(As) == sizeof...(Bs)) constexpr bool kCalledAlike<A (*)(As...), B (*)(Bs...)> =
    kPassedAlike<A, B> && (kPassedAlike<As, Bs> && ...);

#define ASHLAR_CALLED_ALIKE(name, ...) \
  static_assert(kCalledAlike<decltype(Functions::name), decltype(&::name)>);
ASHLAR_CUBLASLT_FUNCTIONS(ASHLAR_CALLED_ALIKE)
#undef ASHLAR_CALLED_ALIKE

static_assert(CUBLAS_VER_MAJOR == kMajorVersion);
static_assert(CUDA_R_32F == kFloat32 && CUDA_R_16BF == kBfloat16);
static_assert(CUBLAS_COMPUTE_32F == kComputeFloat32);
static_assert(CUBLAS_COMPUTE_32F_PEDANTIC == kComputeFloat32Exact);
static_assert(CUBLAS_OP_N == kPlain && CUBLAS_OP_T == kTransposed);
static_assert(CUBLASLT_MATMUL_DESC_TRANSA == kTransposesA);
static_assert(CUBLASLT_MATMUL_DESC_TRANSB == kTransposesB);
static_assert(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT == kBatchCount);
static_assert(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET == kBatchStride);
static_assert(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == kMaxWorkspaceBytes);
static_assert(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK == kReductionSchemes);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == kMinAlignmentA);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES == kMinAlignmentB);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES == kMinAlignmentC);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == kMinAlignmentD);
static_assert(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE == kReducesInComputeType);
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(Algorithm));
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == sizeof(Heuristic));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) ==
              offsetof(Heuristic, workspace_bytes));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) == offsetof(Heuristic, status));
static_assert(CUBLAS_STATUS_SUCCESS == 0);

TEST(CublasLtHeader, DeclaresWhatIsCalled) {
  SUCCEED() << "compared when this was compiled";
}

}  // namespace
}  // namespace ashlar::kernels::gpu::blas::cublaslt
#else
TEST(CublasLtHeader, DeclaresWhatIsCalled) {
  GTEST_SKIP() << "cublasLt.h of CUDA 13 is not installed";
}
#endif
