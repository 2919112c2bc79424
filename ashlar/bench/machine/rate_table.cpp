#include "ashlar/bench/machine/rate_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/comm/agree.h"
#include "ashlar/core/json.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

double median_of_ranks(comm::Group& ranks, double value) {
  return repeats_of(of_ranks(ranks, value)).median;
}

}  // namespace

std::vector<double> times_of(const Rig& rig, function_ref<void()> body) {
  constexpr size_t kLeast = 5;
  const double seconds = rig.quick ? 0.02 : 0.15;
  body();
  std::vector<double> us;
  const auto start = Clock::now();
  while (us.size() < kLeast || seconds_since(start) < seconds) {
    const auto begin = Clock::now();
    body();
    us.push_back(std::max(us_since(begin), 1e-3));
  }
  return us;
}

RateTable::RateTable(const Rig& rig, Findings& findings, std::string at_unit, std::string unit,
                     double units_of_work)
    : rig_(rig),
      findings_(findings),
      at_unit_(std::move(at_unit)),
      unit_(std::move(unit)),
      units_of_work_(units_of_work) {
  findings_.text += fmt::format("{:<34} {:>11} {:>9} {:>9} {:>9} {:<8} {:>9}\n", "subject",
                                at_unit_, "p10", "median", "p90", "unit", "slowest");
}

RateTable::~RateTable() {
  for (machine::RateCurve& curve : curves_) findings_.profile.set(std::move(curve));
}

bool RateTable::row(const std::string& subject, double at, double work, function_ref<void()> body) {
  if (findings_.num_left_out > 0 || !rig_.goes_on()) {
    ++findings_.num_left_out;
    return false;
  }
  rig_.ranks.barrier("rates").wait();
  std::vector<double> rates;
  for (const double us : times_of(rig_, body)) rates.push_back(work / us * 1e6 / units_of_work_);
  const Repeats mine = repeats_of(std::move(rates));
  last_of_ranks_ = of_ranks(rig_.ranks, mine.median);
  last_ = {median_of_ranks(rig_.ranks, mine.p10), repeats_of(last_of_ranks_).median,
           median_of_ranks(rig_.ranks, mine.p90), median_of_ranks(rig_.ranks, mine.cv)};
  last_subject_ = subject;
  auto curve = std::find_if(curves_.begin(), curves_.end(),
                            [&](const auto& c) { return c.subject == subject; });
  if (curve == curves_.end()) {
    curves_.push_back({subject, at_unit_, unit_, rig_.threads.size(), rig_.provenance(), {}});
    curve = curves_.end() - 1;
  }
  curve->points.push_back({at, last_.p10, last_.median, last_.p90});
  findings_.text += fmt::format("{:<34} {:>11} {:>9.4g} {:>9.4g} {:>9.4g} {:<8} {:>9.4g}\n",
                                subject, at, last_.p10, last_.median, last_.p90, unit_,
                                *std::min_element(last_of_ranks_.begin(), last_of_ranks_.end()));
  findings_.rows.push_back(one_line(Ordered{{"experiment_name", subject},
                                            {"at", at},
                                            {"at_unit", at_unit_},
                                            {"value", last_.median},
                                            {"p10", last_.p10},
                                            {"p90", last_.p90},
                                            {"unit", unit_},
                                            {"threads", rig_.threads.size()},
                                            {"cv_pct", 100 * last_.cv},
                                            {"ranks", last_of_ranks_},
                                            {"wrong", 0}}));
  return true;
}

void RateTable::add_fleet(machine::Subject subject) {
  if (last_of_ranks_.empty()) return;
  const auto hosts = comm::all_said(rig_.ranks, train::host_name(), "hosts");
  std::vector<machine::Measured>& fleet = findings_.fleets.emplace_back();
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    machine::Measured& m = fleet.emplace_back();
    m.name = fmt::format("{} of rank {} on {}", last_subject_, rank, hosts[rank]);
    m.subject = subject;
    m.value = last_of_ranks_[rank];
    m.unit = unit_;
    m.rank = int(rank);
    m.cause = fmt::format("rank {} on {} is slower than the others", rank, hosts[rank]);
  }
}

}  // namespace ashlar::bench
