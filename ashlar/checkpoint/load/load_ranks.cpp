#include "ashlar/checkpoint/load/load_ranks.h"

#include <cstring>
#include <tuple>

#include "ashlar/checkpoint/load/read_memory.h"
#include "ashlar/checkpoint/load/wanted_bytes.h"

namespace ashlar::checkpoint {
namespace {

// Place and kind in front of the message; "" for none.
std::string packed(const std::optional<LoadFailure>& failure) {
  if (!failure) return "";
  const int64_t numbers[] = {failure->place, int64_t(failure->kind)};
  return std::string(reinterpret_cast<const char*>(numbers), sizeof(numbers)) + failure->message;
}

LoadFailure unpacked(std::string_view text) {
  int64_t numbers[2];
  ASHLAR_ASSERT(text.size() >= sizeof(numbers));
  std::memcpy(numbers, text.data(), sizeof(numbers));
  return {numbers[0], ErrorKind(numbers[1]), std::string(text.substr(sizeof(numbers)))};
}

}  // namespace

LoadCommons::LoadCommons() : wanted(std::make_shared<WantedByRanks>()) {}

std::shared_ptr<ReadMemory> LoadCommons::read_memory() {
  const std::lock_guard lock(mutex_);
  auto memory = read_memory_.lock();
  if (!memory) read_memory_ = memory = std::make_shared<ReadMemory>();
  return memory;
}

void Alone::post(std::vector<Message> sends, std::vector<Message> receives) {
  ASHLAR_ASSERT(sends.empty() && receives.empty());
}

void throw_first(LoadRanks& ranks, const std::optional<LoadFailure>& own) {
  std::optional<LoadFailure> first;
  for (const std::string& said : ranks.all_gather(packed(own))) {
    if (said.empty()) continue;
    LoadFailure failure = unpacked(said);
    if (!first || failure.place < first->place) first = std::move(failure);
  }
  if (first) throw Error(first->kind, first->message);
}

}  // namespace ashlar::checkpoint
