// Speed of matrix products and Newton-Schulz at training shapes, beside the peak of the machine's
// registers.
//
// Every row warms up, then repeats for about 0.1 s; times are wall clock over all threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ashlar/kernels/context.h"

namespace ashlar::bench {

struct ProductRow {
  std::string name, op;  // "nano qkv", "forward"
  int64_t G = 1, T, N,
          K;  // groups; all tokens, outputs, inputs (Newton-Schulz: G matrices [N, K], T = 0)
  double flop = 0;
  double median_s = 0, min_s = 0;
  int64_t repeats = 0;
  double flops() const { return flop / median_s; }
};

struct ProductReport {
  std::string isa, compute;
  int threads = 0;
  double peak_flops = 0;  // all threads
  std::vector<ProductRow> rows;
};

// compute: BF16 or F32, on isa().
ProductReport measure_products(int num_threads, DType compute);

std::string to_text(const ProductReport& report);
std::string to_json_line(const ProductReport& report);

}  // namespace ashlar::bench
