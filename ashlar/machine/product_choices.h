// The table of products beside a profile: for each product that was measured, the form that was
// faster than the rules of the kernels.  docs/formats/machine.md describes the file; this module
// does not know what forms mean.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ashlar::machine {

struct ProductChoice {
  std::string op, dtype, result;  // "grouped_linear_forward", "BF16", "F32"
  int64_t groups = 1, rows = 0, cols = 0, depth = 0, threads = 1;
  int64_t task_rows = 0, task_panels = 0;       // 0: by rule
  std::string order = "rule", copies = "rule";  // "rows-first", "panels-first"; "always", "never"
  double rule_us = 0, form_us = 0;              // medians of the last comparison
  // Whether both are of the same product.
  bool same_product(const ProductChoice& other) const;
};

std::string to_tsv(std::span<const ProductChoice> choices);
// `source` names the file for messages.  A wrong column, word or number is an error (kConfig) that
// names the line; so are two lines of one product.
std::vector<ProductChoice> parse_product_choices(const std::string& text,
                                                 const std::string& source);

}  // namespace ashlar::machine
