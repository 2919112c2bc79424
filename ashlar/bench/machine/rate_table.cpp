#include "ashlar/bench/machine/rate_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "ashlar/bench/kernel_times.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/json.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

double median_of_ranks(comm::Group& ranks, double value) {
  return repeats_of(of_ranks(ranks, value)).median;
}

// The rate of all repeats together: a rank that stands still now and then has a good median.
double held(const std::vector<double>& rates) {
  double inverse = 0;
  for (const double rate : rates) inverse += 1 / rate;
  return double(rates.size()) / inverse;
}

// Whether no rank is slow beside the others, as the session judges them.
bool all_are_alike(std::vector<double> rates) {
  constexpr double kNormal = 0.85;  // as machine::Verdict::kNormal
  std::sort(rates.begin(), rates.end());
  const double usual = rates.size() > 2 ? rates[rates.size() / 2] : rates.back();
  return rates.front() >= kNormal * usual;
}

}  // namespace

std::vector<double> times_of(const Rig& rig, function_ref<void()> body) {
  constexpr size_t kLeast = 5;
  const double seconds = rig.quick ? 0.02 : 0.15;
  warm_up(body);
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
                     double units_of_work, int subject_width, bool has_floors)
    : rig_(rig),
      findings_(findings),
      at_unit_(std::move(at_unit)),
      unit_(std::move(unit)),
      units_of_work_(units_of_work),
      subject_width_(subject_width),
      has_floors_(has_floors) {}

RateTable::~RateTable() {
  for (machine::RateCurve& curve : curves_) findings_.profile.set(std::move(curve));
}

void RateTable::limit(std::function<double()> ceiling, std::string from) {
  ceiling_ = std::move(ceiling);
  ceiling_from_ = std::move(from);
  ceiling_value_ = ceiling_();
}

// A machine that has become faster meanwhile has a higher ceiling too.
bool RateTable::is_above_ceiling() {
  constexpr double kMost = 1.05;  // as machine/verdict.h
  if (!ceiling_ || last_.median <= kMost * ceiling_value_) return false;
  ceiling_value_ = std::max(ceiling_value_, ceiling_());
  return last_.median > kMost * ceiling_value_;
}

void RateTable::add_judgement(const std::string& subject, double at) {
  machine::Measured m;
  m.name = fmt::format("{} at {:.6g} {}", subject, at, at_unit_);
  m.subject = machine::Subject::kProduct;
  m.value = last_.median;
  m.unit = unit_;
  machine::Judgement judgement =
      machine::judge(m, machine::Expected{ceiling_value_, ceiling_from_});
  judgement.hint =
      "a rate above what the hardware can do is not kept: look at the clock, and measure again";
  findings_.judged.push_back(std::move(judgement));
}

void RateTable::store(const std::string& subject, double at) {
  auto curve = std::find_if(curves_.begin(), curves_.end(),
                            [&](const auto& c) { return c.subject == subject; });
  if (curve == curves_.end()) {
    curves_.push_back({subject, at_unit_, unit_, rig_.threads.size(), rig_.provenance(), {}});
    curve = curves_.end() - 1;
  }
  curve->points.push_back({at, last_.p10, last_.median, last_.p90});
}

// Whether rank 0 has the point of a stopped run.  The other ranks do not need its numbers.
bool RateTable::take_kept(const std::string& subject, double at) {
  const auto point = rig_.kept(subject, at);
  if (comm::from_leader(rig_.ranks, point.has_value(), "resume") == 0) return false;
  last_of_ranks_.clear();
  last_subject_ = subject;
  last_is_stored_ = true;
  last_ = {};
  if (point) last_ = {point->p10, point->median, point->p90, 0};
  if (point) store(subject, at);
  return true;
}

void RateTable::print(const std::string& subject, double at, double work, double floor_us) {
  if (!std::exchange(has_head_, true))
    findings_.text +=
        fmt::format("{:<{}} {:>11} {:>9} {:>9} {:>9} {:<8} {:>9}{}\n", "subject", subject_width_,
                    at_unit_, "p10", "median", "p90", "unit", "slowest",
                    has_floors_ ? fmt::format(" {:>10} {:>6}", "floor_us", "share") : "");
  std::string line =
      fmt::format("{:<{}} {:>11.10g} {:>9.4g} {:>9.4g} {:>9.4g} {:<8} {:>9.4g}", subject,
                  subject_width_, at, last_.p10, last_.median, last_.p90, unit_,
                  *std::min_element(last_of_ranks_.begin(), last_of_ranks_.end()));
  Ordered json{{"experiment_name", subject},
               {"at", at},
               {"at_unit", at_unit_},
               {"value", last_.median},
               {"p10", last_.p10},
               {"p90", last_.p90},
               {"unit", unit_},
               {"threads", rig_.threads.size()},
               {"cv_pct", 100 * last_.cv},
               {"ranks", last_of_ranks_}};
  if (has_floors_) {
    const double share = floor_us * last_.median * units_of_work_ / work * 1e-6;
    line += fmt::format(" {:>10.1f} {:>5.0f}%", floor_us, 100 * share);
    json["time_us"] = work / (last_.median * units_of_work_) * 1e6;
    json["floor_us"] = floor_us;
    json["share"] = share;
  }
  json["row"] = rig_.row();
  json["wrong"] = 0;
  findings_.add_line(line, rig_.row());
  findings_.rows.push_back(one_line(json));
}

// The rates of this rank's repeats, in the round in which it was fastest.
std::vector<double> RateTable::best_rates(double work, function_ref<void()> body) {
  std::vector<double> best;
  for (int round = 0; round < rounds_; ++round) {
    if (round > 0) std::this_thread::sleep_for(std::chrono::milliseconds(rig_.quick ? 50 : 300));
    rig_.ranks.barrier("rates").wait();
    std::vector<double> rates;
    for (const double us : times_of(rig_, body)) rates.push_back(work / us * 1e6 / units_of_work_);
    if (best.empty() || held(rates) > held(best)) best = std::move(rates);
    held_by_ranks_ = of_ranks(rig_.ranks, held(best));
    if (all_are_alike(held_by_ranks_)) break;
  }
  return best;
}

bool RateTable::row(const std::string& subject, double at, double work, function_ref<void()> body,
                    double floor_us) {
  if (findings_.num_left_out > 0 || !rig_.goes_on()) {
    ++findings_.num_left_out;
    return false;
  }
  if (take_kept(subject, at)) return true;
  std::vector<double> rates;
  do {
    rates = best_rates(work, body);
  } while (rig_.again());
  const Repeats mine = repeats_of(std::move(rates));
  last_of_ranks_ = of_ranks(rig_.ranks, mine.median);
  last_ = {median_of_ranks(rig_.ranks, mine.p10), repeats_of(last_of_ranks_).median,
           median_of_ranks(rig_.ranks, mine.p90), median_of_ranks(rig_.ranks, mine.cv)};
  last_subject_ = subject;
  last_is_stored_ = !is_above_ceiling();
  if (last_is_stored_)
    store(subject, at);
  else
    add_judgement(subject, at);
  print(subject, at, work, floor_us);
  return true;
}

void RateTable::note(const std::string& text,
                     const std::vector<std::pair<std::string, double>>& members) {
  if (last_of_ranks_.empty()) return;  // the row was not measured
  findings_.text.insert(findings_.text.size() - 1, text);
  findings_.marks.back().first += text.size();
  Ordered row = Ordered::parse(findings_.rows.back());
  for (const auto& [name, value] : members) row[name] = value;
  findings_.rows.back() = one_line(row);
}

void RateTable::add_fleet(machine::Subject subject) {
  if (last_of_ranks_.empty()) return;
  const auto hosts = comm::all_said(rig_.ranks, train::host_name(), "hosts");
  std::vector<machine::Measured>& fleet = findings_.fleets.emplace_back();
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    machine::Measured& m = fleet.emplace_back();
    m.name = fmt::format("{} of rank {} on {}", last_subject_, rank, hosts[rank]);
    m.subject = subject;
    m.value = held_by_ranks_[rank];
    m.unit = unit_;
    m.rank = int(rank);
    m.cause = fmt::format("rank {} on {} is slower than the others", rank, hosts[rank]);
  }
}

}  // namespace ashlar::bench
