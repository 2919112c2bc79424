#include "ashlar/train/agree.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace ashlar::train {
namespace {

template <typename T>
Tensor over(std::span<T> values, DType dtype) {
  return {
      reinterpret_cast<std::byte*>(values.data()), dtype, Device::kCpu, {int64_t(values.size())}};
}

constexpr size_t kTextBytes = 500;

}  // namespace

void add_up(comm::Group& ranks, std::span<int64_t> values, std::string_view label) {
  const Tensor sums = over(values, DType::kI64);
  ranks.all_reduce(sums, sums, label).wait();
}

int64_t from_leader(comm::Group& ranks, int64_t value, std::string_view label) {
  ranks.broadcast(over(std::span(&value, 1), DType::kI64), 0, label).wait();
  return value;
}

void from_leader(comm::Group& ranks, std::span<uint8_t> bytes, std::string_view label) {
  ranks.broadcast(over(bytes, DType::kU8), 0, label).wait();
}

std::string first_said(comm::Group& ranks, std::string_view text, std::string_view label) {
  std::vector<uint8_t> all(kTextBytes * size_t(ranks.size()));
  const auto mine = std::span(all).subspan(kTextBytes * size_t(ranks.rank()), kTextBytes);
  std::copy_n(text.begin(), std::min(text.size(), kTextBytes), mine.begin());
  ranks.all_gather(over(mine, DType::kU8), over(std::span(all), DType::kU8), label).wait();
  for (size_t rank = 0; rank < size_t(ranks.size()); ++rank) {
    const auto* said = reinterpret_cast<const char*>(all.data() + kTextBytes * rank);
    if (*said) return std::string(said, strnlen(said, kTextBytes));
  }
  return "";
}

}  // namespace ashlar::train
