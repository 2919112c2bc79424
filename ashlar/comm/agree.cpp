#include "ashlar/comm/agree.h"

#include <numeric>
#include <utility>

namespace ashlar::comm {
namespace {

std::span<uint8_t> bytes_of(std::string& text) {
  return {reinterpret_cast<uint8_t*>(text.data()), text.size()};
}

}  // namespace

void add_up(Group& ranks, std::span<int64_t> values, std::string_view label) {
  const Tensor sums = tensor_over(values);
  ranks.all_reduce(sums, sums, label).wait();
}

int64_t from_leader(Group& ranks, int64_t value, std::string_view label) {
  ranks.broadcast(tensor_over(std::span(&value, 1)), 0, label).wait();
  return value;
}

void from_leader(Group& ranks, std::span<uint8_t> bytes, std::string_view label) {
  ranks.broadcast(tensor_over(bytes), 0, label).wait();
}

std::string text_from_leader(Group& ranks, std::string text, std::string_view label) {
  text.resize(size_t(from_leader(ranks, int64_t(text.size()), label)));
  from_leader(ranks, bytes_of(text), label);
  return text;
}

std::vector<std::string> all_said(Group& ranks, std::string_view text, std::string_view label,
                                  void (*wait)(Work)) {
  std::vector<int64_t> own{int64_t(text.size())}, sizes(size_t(ranks.size()));
  wait(ranks.all_gather(tensor_over(std::span(own)), tensor_over(std::span(sizes)), label));
  std::string mine(text), all(size_t(std::reduce(sizes.begin(), sizes.end())), '\0');
  wait(ranks.all_gather(tensor_over(bytes_of(mine)), tensor_over(bytes_of(all)), label, sizes));
  std::vector<std::string> texts;
  size_t begin = 0;
  for (const int64_t size : sizes) {
    texts.push_back(all.substr(begin, size_t(size)));
    begin += size_t(size);
  }
  return texts;
}

std::string first_said(Group& ranks, std::string_view text, std::string_view label) {
  for (std::string& said : all_said(ranks, text, label))
    if (!said.empty()) return std::move(said);
  return "";
}

void wait_together(Group& ranks, function_ref<bool(double seconds)> done, std::string_view label) {
  constexpr double kTurn_s = 0.2;
  for (bool here = false;;) {
    here = here || done(kTurn_s);
    int64_t waiting = !here;
    add_up(ranks, std::span(&waiting, 1), label);
    if (waiting == 0) return;
  }
}

}  // namespace ashlar::comm
