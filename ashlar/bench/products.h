// The speed of matrix products, attention and Newton-Schulz at training shapes, compared with the
// peak of the machine's registers.
//
// Every row warms up, then repeats for about 0.1 s; times are wall clock over all threads.
#pragma once

#include <optional>

#include "ashlar/bench/kernel_times.h"

namespace ashlar::bench {

struct ProductRow {
  std::string name, op;  // "nano qkv", "forward"
  int64_t G = 1, T, N,
          K;  // groups; all tokens, outputs, inputs (Newton-Schulz: G matrices [N, K], T = 0)
  KernelTime time;
  std::optional<KernelTime> peer = std::nullopt;  // of the same product, where it has it
};

struct ProductReport {
  KernelMachine machine;
  std::string peer;  // "oneDNN 3.13.0"; "": none was given
  std::vector<ProductRow> rows;
};

// compute: BF16 or F32, on isa().  only: measures the rows whose "shape op" holds it.
// peer: the path of a oneDNN library whose products are measured beside ours (onednn_peer.h).
// Errors  kConfig if there is no such row; those of OneDnnPeer.
ProductReport measure_products(int num_threads, DType compute, std::string_view only = "",
                               const std::string& peer = "");

std::string to_text(const ProductReport& report);
std::string to_json_line(const ProductReport& report);

}  // namespace ashlar::bench
