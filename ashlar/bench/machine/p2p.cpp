// Messages between two ranks: one way is half of a round trip.  Pairs run alone, one after the
// other; with more than kAlone ranks, those of a round of a tournament run at once.
#include <algorithm>

#include "ashlar/bench/machine/pair_times.h"
#include "ashlar/comm/agree.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

constexpr int kAlone = 8;

std::vector<PairRound> rounds_of_p2p(int num_ranks) {
  const std::vector<PairRound> all = rounds_of_pairs(num_ranks);
  if (num_ranks > kAlone) return all;
  std::vector<PairRound> alone;
  for (const PairRound& round : all)
    for (const PairOfRanks& pair : round) alone.push_back({pair});
  return alone;
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

// The latency and the bandwidth of every pair, by the smallest and the largest messages.
machine::PairTimes every_pair(const Rig& rig, const std::vector<PairTime>& times,
                              const std::vector<int64_t>& sizes) {
  machine::PairTimes result{rig.engine,   rig.ranks.size(), sizes.front(),
                            sizes.back(), rig.provenance(), {}};
  const std::vector<PairTime> small = of_size(times, sizes.front()),
                              large = of_size(times, sizes.back());
  for (size_t i = 0; i < small.size(); ++i)  // both in the order of rounds
    result.pairs.push_back({small[i].ranks.first, small[i].ranks.second,
                            repeats_of(small[i].one_way_us).median, gigabytes_per_s(large[i])});
  std::sort(result.pairs.begin(), result.pairs.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second) < std::pair(b.first, b.second);
  });
  return result;
}

// The latency of pairs within a node and across nodes, every pair, and the curve over sizes of all
// pairs.
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
  if (rig.ranks.size() <= machine::PairTimes::kMostRanks)
    profile.set(every_pair(rig, times, sizes));
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
    m.rank = int(rank);
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
  for (const auto& round : rounds_of_p2p(rig.ranks.size())) {
    if (findings.num_left_out > 0 || !rig.goes_on()) {
      findings.num_left_out += int64_t(round.size());
      continue;
    }
    const size_t before = times.size();
    do {
      times.resize(before);
      for (const int64_t bytes : sizes)
        for (PairTime& time : time_pairs(rig, round, bytes)) times.push_back(std::move(time));
    } while (rig.again());
    for (size_t i = before; i < times.size(); ++i) times[i].row = rig.row();
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
    if (time.num_wrong > 0) findings.faults.push_back(fault_of(time));
  }
  return findings;
}

}  // namespace ashlar::bench
