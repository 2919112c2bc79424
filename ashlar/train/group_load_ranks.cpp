#include "ashlar/train/group_load_ranks.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "ashlar/comm/agree.h"

namespace ashlar::train {
namespace {

using checkpoint::LoadCommons;

constexpr std::string_view kLabel = "load";

// Polls instead of waiting: time-outs run while a caller waits (comm/queue.h), and a disk may take
// longer than any collective.
void await(comm::Work work) {
  auto pause = std::chrono::microseconds(20);
  for (; !work.done(); pause = std::min(2 * pause, std::chrono::microseconds(1000)))
    std::this_thread::sleep_for(pause);
  work.wait();
}

Tensor bytes_of(std::string& text) {
  return {reinterpret_cast<std::byte*>(text.data()), DType::kU8, Device::kCpu,
          Shape{int64_t(text.size())}};
}

std::vector<comm::Transfer> transfers(std::span<const checkpoint::LoadRanks::Message> messages) {
  std::vector<comm::Transfer> list;
  for (const auto& [rank, bytes] : messages)
    list.push_back({rank, {bytes.data(), DType::kU8, Device::kCpu, Shape{int64_t(bytes.size())}}});
  return list;
}

// Rank 0 makes what the ranks of its process have in common, and a reference for each rank, which
// that rank takes: so no rank waits for another, and a late one still finds its own.  If the run
// ends before that, references leak.
std::shared_ptr<LoadCommons> commons_of(comm::Group& ranks) {
  using Reference = std::shared_ptr<LoadCommons>;
  auto own = std::make_shared<LoadCommons>();
  if (!ranks.shares_memory()) return own;
  std::vector<int64_t> addresses(size_t(ranks.size()));
  if (ranks.rank() == 0)
    for (int64_t& address : addresses) address = reinterpret_cast<int64_t>(new Reference(own));
  await(ranks.broadcast(tensor_over(std::span(addresses)), 0, kLabel));
  const std::unique_ptr<Reference> mine(
      reinterpret_cast<Reference*>(addresses[size_t(ranks.rank())]));
  return *mine;
}

}  // namespace

GroupLoadRanks::GroupLoadRanks(comm::Group& ranks) : ranks_(ranks), commons_(commons_of(ranks)) {}

std::string GroupLoadRanks::from_leader(std::string bytes) {
  auto size = int64_t(bytes.size());
  await(ranks_.broadcast(tensor_over(std::span(&size, 1)), 0, kLabel));
  bytes.resize(size_t(size));
  await(ranks_.broadcast(bytes_of(bytes), 0, kLabel));
  return bytes;
}

std::vector<std::string> GroupLoadRanks::all_gather(std::string_view bytes) {
  return comm::all_said(ranks_, bytes, kLabel, await);
}

void GroupLoadRanks::post(std::vector<Message> sends, std::vector<Message> receives) {
  posted_.push_back(std::make_unique<Posted>());
  Posted& last = *posted_.back();
  last.sends = transfers(sends);
  last.receives = transfers(receives);
  last.work = ranks_.send_receive(last.sends, last.receives, kLabel);
}

void GroupLoadRanks::wait() {
  for (const auto& each : posted_) await(std::move(each->work));
  posted_.clear();
}

}  // namespace ashlar::train
