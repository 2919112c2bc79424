#include "ashlar/bench/machine/pair_times.h"

#include <nlohmann/json.hpp>

#include "ashlar/bench/machine/collective_data.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/json.h"

namespace ashlar::bench {
namespace {

// This rank's part of a pair's messages.
class PingPong {
 public:
  PingPong(const Rig& rig, const PairOfRanks& pair, int64_t bytes)
      : rig_(rig),
        begins_(rig.ranks.rank() == pair.first),
        peer_(begins_ ? pair.second : pair.first),
        sent_(make_tensor(rig.allocator, DType::kI32, {bytes / 4}, Tag::kInput)),
        received_(make_tensor(rig.allocator, DType::kI32, {bytes / 4}, Tag::kInput)) {
    data_.num_ranks = rig.ranks.size();
    data_.fill(sent_.tensor, rig.ranks.rank());
  }
  void there_and_back() {
    begins_ ? send() : receive();
    begins_ ? receive() : send();
  }
  int64_t num_wrong() const { return data_.num_wrong_copies(received_.tensor, peer_); }

 private:
  void send() {
    const comm::Transfer transfer{peer_, sent_.tensor};
    rig_.ranks.send_receive({&transfer, 1}, {}, "ping").wait();
  }
  void receive() {
    const comm::Transfer transfer{peer_, received_.tensor};
    rig_.ranks.send_receive({}, {&transfer, 1}, "ping").wait();
  }

  const Rig& rig_;
  const bool begins_;
  const int peer_;
  OwnedTensor sent_, received_;
  ExactData data_;
};

}  // namespace

std::vector<PairTime> time_pairs(const Rig& rig, const PairRound& pairs, int64_t bytes) {
  constexpr int64_t kSmall = 65536;
  const int64_t repeats = bytes <= kSmall ? (rig.quick ? 30 : 200) : (rig.quick ? 5 : 20);
  std::vector<PairTime> result;
  for (const PairOfRanks& pair : pairs)
    result.push_back({pair, bytes, std::vector<double>(size_t(repeats)), 0});
  rig.ranks.barrier("pairs").wait();
  for (PairTime& time : result) {
    if (rig.ranks.rank() != time.ranks.first && rig.ranks.rank() != time.ranks.second) continue;
    PingPong messages(rig, time.ranks, bytes);
    for (int i = 0; i < 3; ++i) messages.there_and_back();
    time.num_wrong = messages.num_wrong();
    for (double& us : time.one_way_us) {
      const auto begin = Clock::now();
      messages.there_and_back();
      us = 0.5 * us_since(begin);
    }
    if (rig.ranks.rank() == time.ranks.second)  // saw the same messages half a trip later
      time.one_way_us.assign(time.one_way_us.size(), 0.0);
  }
  for (PairTime& time : result) {
    time.one_way_us = slowest_of_ranks(rig.ranks, std::move(time.one_way_us));
    comm::add_up(rig.ranks, {&time.num_wrong, 1}, "wrong");
  }
  return result;
}

double gigabytes_per_s(const PairTime& time) {
  return gigabytes_per_s(time, repeats_of(time.one_way_us).median);
}

double gigabytes_per_s(const PairTime& time, double us) {
  return double(time.bytes) / us * 1e-3;
}

std::string pair_json(const PairTime& time) {
  const Repeats us = repeats_of(time.one_way_us);
  return one_line(Ordered{{"experiment_name", "p2p"},
                          {"ranks", {time.ranks.first, time.ranks.second}},
                          {"size", time.bytes},
                          {"one_way_us", us.median},
                          {"p10_us", us.p10},
                          {"p90_us", us.p90},
                          {"bandwidth", gigabytes_per_s(time)},
                          {"row", time.row},
                          {"wrong", time.num_wrong}});
}

machine::Measured fault_of(const PairTime& time) {
  machine::Measured wrong;
  wrong.name = fmt::format("{} bytes between ranks {} and {}", time.bytes, time.ranks.first,
                           time.ranks.second);
  wrong.num_wrong = time.num_wrong;
  wrong.rank = time.ranks.second;
  return wrong;
}

}  // namespace ashlar::bench
