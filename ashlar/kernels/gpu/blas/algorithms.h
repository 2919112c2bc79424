// The algorithms of cuBLASLt that were the fastest on a card for a product, chosen beforehand: a
// run never times them.  cublaslt.txt has them, a line each:
//
//   VERSION CHIP TYPES TRANSPOSES COUNT ROWS COLS DEPTH ALGORITHM
//   130100 h200 BF16-F32 nt 1 8192 2048 2048 0000...  (128 hexadecimal digits)
//
// VERSION is cublasLtGetVersion's and CHIP a name of core/device_spec.h.  TYPES are those of the
// operands and of the result; TRANSPOSES has an n or a t for a and for b; the sizes are a
// Product's (blas.h).  # begins a comment.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/blas/cublaslt.h"

namespace ashlar::kernels::gpu::blas {

class AlgorithmTable {
 public:
  // A line that is not of this form raises kDevice.
  explicit AlgorithmTable(std::string_view text);
  std::optional<cublaslt::Algorithm> find(size_t version, std::string_view chip,
                                          const Product&) const;

 private:
  std::map<std::string, cublaslt::Algorithm, std::less<>> by_product_;
};

// The table of this version of Ashlar.
const AlgorithmTable& shipped_algorithms();

}  // namespace ashlar::kernels::gpu::blas
