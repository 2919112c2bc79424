#include "ashlar/train/agree.h"

#include <numeric>

namespace ashlar::train {
namespace {

template <typename T>
Tensor over(std::span<T> values, DType dtype) {
  return {
      reinterpret_cast<std::byte*>(values.data()), dtype, Device::kCpu, {int64_t(values.size())}};
}

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

std::vector<std::string> all_said(comm::Group& ranks, std::string_view text,
                                  std::string_view label) {
  std::vector<int64_t> own{int64_t(text.size())}, sizes(size_t(ranks.size()));
  ranks.all_gather(over(std::span(own), DType::kI64), over(std::span(sizes), DType::kI64), label)
      .wait();
  std::string mine(text), all(size_t(std::reduce(sizes.begin(), sizes.end())), '\0');
  ranks.all_gather(over(std::span(mine), DType::kU8), over(std::span(all), DType::kU8), label, sizes)
      .wait();
  std::vector<std::string> texts;
  size_t begin = 0;
  for (const int64_t size : sizes) {
    texts.push_back(all.substr(begin, size_t(size)));
    begin += size_t(size);
  }
  return texts;
}

std::string first_said(comm::Group& ranks, std::string_view text, std::string_view label) {
  for (std::string& said : all_said(ranks, text, label))
    if (!said.empty()) return std::move(said);
  return "";
}

}  // namespace ashlar::train
