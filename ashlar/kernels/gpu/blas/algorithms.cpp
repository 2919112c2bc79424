#include "ashlar/kernels/gpu/blas/algorithms.h"

#include <fmt/ranges.h>

#include <charconv>
#include <sstream>
#include <vector>

#include "ashlar/core/error.h"

namespace ashlar::kernels::gpu::blas {

const char* shipped_text(std::string_view name);  // cublaslt.txt, by cmake/embed.cmake

namespace {

constexpr size_t kWords = 9, kDigitsOfNumber = 16;

std::optional<cublaslt::Algorithm> algorithm_of(const std::string& digits) {
  cublaslt::Algorithm algorithm;
  if (digits.size() != std::size(algorithm.data) * kDigitsOfNumber) return std::nullopt;
  const char* at = digits.data();
  for (uint64_t& number : algorithm.data) {
    const char* const end = at + kDigitsOfNumber;
    if (std::from_chars(at, end, number, 16).ptr != end) return std::nullopt;
    at = end;
  }
  return algorithm;
}

}  // namespace

AlgorithmTable::AlgorithmTable(std::string_view text) {
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream stream(line.substr(0, line.find('#')));
    const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
    if (words.empty()) continue;
    const auto algorithm = words.size() == kWords ? algorithm_of(words.back()) : std::nullopt;
    ASHLAR_REQUIRE(algorithm, kDevice,
                   "line {} of the table of algorithms is none: expected VERSION CHIP TYPES "
                   "TRANSPOSES COUNT ROWS COLS DEPTH and 128 hexadecimal digits",
                   number);
    by_product_[fmt::format("{}", fmt::join(words.begin(), words.end() - 1, " "))] = *algorithm;
  }
}

std::optional<cublaslt::Algorithm> AlgorithmTable::find(size_t version, std::string_view chip,
                                                        const Product& p) const {
  const auto found = by_product_.find(fmt::format(
      "{} {} {}-{} {}{} {} {} {} {}", version, chip, name_of(p.a.dtype), name_of(p.d.dtype),
      p.transposes_a ? 't' : 'n', p.transposes_b ? 't' : 'n', p.count, p.rows, p.cols, p.depth));
  return found == by_product_.end() ? std::nullopt : std::optional(found->second);
}

const AlgorithmTable& shipped_algorithms() {
  static const AlgorithmTable table(shipped_text("cublaslt_txt"));
  return table;
}

}  // namespace ashlar::kernels::gpu::blas
