// Messages between two ranks: one way is half of a round trip.  Pairs run alone, one after the
// other; with more than kAlone ranks, those of a round of a tournament run at once.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/bench/machine/collective_data.h"
#include "ashlar/bench/machine/part.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/json.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

constexpr int kAlone = 8;

struct PairOfRanks {
  int first, second;
};

struct PairTime {
  PairOfRanks ranks{};
  int64_t bytes = 0;
  std::vector<double> one_way_us;
  int64_t num_wrong = 0;
};

// Rounds of pairs that may run at once, in which every two ranks meet once: one rank stays, and the
// others rotate around it.
std::vector<std::vector<PairOfRanks>> rounds_of_pairs(int num_ranks) {
  std::vector<std::vector<PairOfRanks>> rounds;
  const int seats = num_ranks + num_ranks % 2;  // with an odd number, one rests in each round
  for (int round = 0; round + 1 < seats; ++round) {
    const auto rank_at = [&](int seat) {
      return seat == 0 ? 0 : 1 + (seat - 1 + round) % (seats - 1);
    };
    std::vector<PairOfRanks> pairs;
    for (int seat = 0; seat < seats / 2; ++seat) {
      const int a = rank_at(seat), b = rank_at(seats - 1 - seat);
      if (std::max(a, b) < num_ranks) pairs.push_back({std::min(a, b), std::max(a, b)});
    }
    if (num_ranks <= kAlone)
      for (const PairOfRanks& pair : pairs) rounds.push_back({pair});
    else
      rounds.push_back(std::move(pairs));
  }
  return rounds;
}

// This rank's part of a pair's messages.
class PingPong {
 public:
  PingPong(const Rig& rig, const PairOfRanks& pair, int64_t bytes)
      : rig_(rig),
        begins_(rig.ranks.rank() == pair.first),
        peer_(begins_ ? pair.second : pair.first),
        sent_(make_tensor(rig.allocator, DType::kU8, {bytes}, Tag::kInput)),
        received_(make_tensor(rig.allocator, DType::kU8, {bytes}, Tag::kInput)) {
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

// The times of the pairs of one round; every rank calls it.
std::vector<PairTime> time_round(const Rig& rig, const std::vector<PairOfRanks>& pairs,
                                 int64_t bytes) {
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
  return double(time.bytes) / repeats_of(time.one_way_us).median * 1e-3;
}

// A number for every two ranks, in rows.
std::string matrix_text(std::string_view title, int num_ranks, const std::vector<PairTime>& times,
                        double (*number)(const PairTime&)) {
  std::string text = fmt::format("{}\n{:>6}", title, "rank");
  std::vector<std::vector<std::string>> cells(size_t(num_ranks),
                                              std::vector<std::string>(size_t(num_ranks), "-"));
  for (const PairTime& t : times)
    cells[size_t(t.ranks.first)][size_t(t.ranks.second)] =
        cells[size_t(t.ranks.second)][size_t(t.ranks.first)] = fmt::format("{:.2f}", number(t));
  for (int rank = 0; rank < num_ranks; ++rank) text += fmt::format(" {:>8}", rank);
  text += "\n";
  for (int rank = 0; rank < num_ranks; ++rank) {
    text += fmt::format("{:>6}", rank);
    for (const std::string& cell : cells[size_t(rank)]) text += fmt::format(" {:>8}", cell);
    text += "\n";
  }
  return text;
}

std::vector<PairTime> of_size(const std::vector<PairTime>& times, int64_t bytes) {
  std::vector<PairTime> result;
  for (const PairTime& time : times)
    if (time.bytes == bytes) result.push_back(time);
  return result;
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
                          {"wrong", time.num_wrong}});
}

// The latency of pairs within a node and across nodes, and the curve over sizes of all pairs.
void add_to_profile(const Rig& rig, const std::vector<std::string>& hosts,
                    const std::vector<PairTime>& times, const std::vector<int64_t>& sizes,
                    machine::Profile& profile) {
  for (const bool across : {false, true}) {
    std::vector<double> us;
    for (const PairTime& t : of_size(times, sizes.front()))
      if ((hosts[size_t(t.ranks.first)] != hosts[size_t(t.ranks.second)]) == across)
        us.insert(us.end(), t.one_way_us.begin(), t.one_way_us.end());
    if (us.empty()) continue;
    const Repeats repeats = repeats_of(std::move(us));
    profile.set(across ? "topology.nic_latency" : "topology.link_latency",
                rig.quantity(repeats.median, "us", repeats.spread()));
  }
  machine::CollectiveCurve curve;
  curve.engine = rig.engine;
  curve.op = machine::CollectiveOp::kSendReceive;
  curve.dtype = name_of(DType::kU8);
  curve.shape = "pairs";
  curve.ranks = 2;
  curve.provenance = rig.provenance();
  for (const int64_t bytes : sizes) {
    std::vector<double> us;
    for (const PairTime& t : of_size(times, bytes))
      us.insert(us.end(), t.one_way_us.begin(), t.one_way_us.end());
    if (us.empty()) continue;
    const Repeats repeats = repeats_of(std::move(us));
    curve.points.push_back({double(bytes), repeats.p10, repeats.median, repeats.p90});
  }
  profile.set(std::move(curve));
}

// The median bandwidth of every rank's pairs, by which a slow rank stands out.
std::vector<machine::Measured> bandwidth_of_ranks(const std::vector<std::string>& hosts,
                                                  const std::vector<PairTime>& largest) {
  std::vector<machine::Measured> fleet;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    std::vector<double> rates;
    for (const PairTime& t : largest)
      if (t.ranks.first == int(rank) || t.ranks.second == int(rank))
        rates.push_back(gigabytes_per_s(t));
    machine::Measured& m = fleet.emplace_back();
    m.name = fmt::format("messages of rank {} on {}", rank, hosts[rank]);
    m.value = repeats_of(std::move(rates)).median;
    m.unit = "GB/s";
    m.cause = fmt::format("rank {} on {} is slower than the others", rank, hosts[rank]);
  }
  return fleet;
}

}  // namespace

Findings measure_p2p(const Rig& rig) {
  ASHLAR_REQUIRE(rig.ranks.size() > 1, kConfig,
                 "messages of one rank; expected 2 ranks or more (--ranks, or mpirun)");
  const std::vector<int64_t> sizes =
      rig.quick ? std::vector<int64_t>{8, 65536, 4 << 20}
                : std::vector<int64_t>{8, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20};
  const std::vector<std::string> hosts = comm::all_said(rig.ranks, train::host_name(), "hosts");
  std::vector<PairTime> times;
  Findings findings;
  for (const auto& round : rounds_of_pairs(rig.ranks.size())) {
    if (findings.num_left_out > 0 || !rig.goes_on()) {
      findings.num_left_out += int64_t(round.size());
      continue;
    }
    for (const int64_t bytes : sizes)
      for (PairTime& time : time_round(rig, round, bytes)) times.push_back(std::move(time));
  }
  if (!rig.leads() || times.empty()) return findings;
  const std::vector<PairTime> largest = of_size(times, sizes.back());
  findings.text =
      matrix_text(fmt::format("one way of {} bytes, us, engine {}", sizes.front(), rig.engine),
                  rig.ranks.size(), of_size(times, sizes.front()),
                  [](const PairTime& t) { return repeats_of(t.one_way_us).median; });
  findings.text += matrix_text(fmt::format("one way of {} bytes, GB/s", sizes.back()),
                               rig.ranks.size(), largest, gigabytes_per_s);
  add_to_profile(rig, hosts, times, sizes, findings.profile);
  if (findings.num_left_out == 0) findings.fleets.push_back(bandwidth_of_ranks(hosts, largest));
  for (const PairTime& time : times) {
    findings.rows.push_back(pair_json(time));
    if (time.num_wrong == 0) continue;
    machine::Measured& wrong = findings.faults.emplace_back();
    wrong.name = fmt::format("{} bytes between ranks {} and {}", time.bytes, time.ranks.first,
                             time.ranks.second);
    wrong.num_wrong = time.num_wrong;
  }
  return findings;
}

}  // namespace ashlar::bench
