// Products of NVIDIA's GPUs by cuBLASLt, which is loaded when it is first needed: the program
// starts where it is missing.
//
// Algorithm that of the table for the version, the chip and the product (algorithms.h); else the
//           first that cuBLASLt proposes, of those that add partial sums in one order.  Neither
//           depends on addresses beyond their being multiples of 16, nor on times.
// Types     fp32 exactly: TF32 and emulation by bf16 are ruled out.
// Errors    kDevice: the library is missing, has another major version than is declared, lacks a
//           function, knows no algorithm, or fails.
// Threads   any, one at a time.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ashlar/kernels/gpu/blas/algorithms.h"
#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/blas/cublaslt.h"

namespace ashlar::kernels::gpu::blas {

class CublasLt {
 public:
  // Loads it from the first of the folders that has it; "": the loader's path.
  CublasLt(const std::vector<std::string>& folders, const AlgorithmTable& algorithms);
  ~CublasLt();
  std::string description() const;  // "cuBLASLt 13.1.0 (/usr/lib/libcublasLt.so.13)"
  // chip: a name of core/device_spec.h, or "".
  void multiply(const Product& product, std::string_view chip, const Tensor& workspace);

 private:
  using Descriptor = std::unique_ptr<void, int (*)(void*)>;  // what its function destroys
  struct Plan;
  Descriptor layout_of(const Product& p, const Stack& stack, int64_t rows, int64_t cols) const;
  Descriptor operation_of(const Product& p) const;
  const Plan& plan_of(const Product& product, std::string_view chip, size_t workspace_bytes);
  void choose(const Product& product, std::string_view chip, size_t workspace_bytes, Plan& plan);
  void check(int status, std::string_view function) const;

  const AlgorithmTable& algorithms_;
  std::string path_;
  cublaslt::Functions functions_;
  void* handle_ = nullptr;  // made by the first product
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Plan>> plans_;
};

}  // namespace ashlar::kernels::gpu::blas
