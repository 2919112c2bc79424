#include "ashlar/bench/machine/session.h"

#include <algorithm>
#include <set>

#include "ashlar/checkpoint/format/layout.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/signals.h"
#include "ashlar/machine/compare.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

using machine::Judgement;
using machine::Profile;
using machine::Verdict;

// The time that is left, on which all ranks agree.
class Pace {
 public:
  Pace(comm::Group& ranks, double budget_s) : ranks_(ranks), budget_s_(budget_s) {}
  bool goes_on() {
    const bool over =
        StopSignals::requested() || (budget_s_ > 0 && seconds_since(start_) > budget_s_);
    stopped_ = stopped_ || comm::from_leader(ranks_, over, "time") != 0;
    return !stopped_;
  }

 private:
  comm::Group& ranks_;
  const double budget_s_;
  const Clock::time_point start_ = Clock::now();
  bool stopped_ = false;
};

// Whether the profile holds the whole result of this command.
bool has_result_of(const Profile& profile, const std::string& command) {
  const auto is_its = [&](const std::string& from) { return from == command; };
  for (const auto& [key, quantity] : profile.quantities)
    if (is_its(quantity.from)) return true;
  for (const machine::CollectiveCurve& curve : profile.collectives)
    if (is_its(curve.provenance.from)) return true;
  for (const machine::RateCurve& curve : profile.rates)
    if (is_its(curve.provenance.from)) return true;
  for (const machine::Mount& mount : profile.mounts)
    for (const auto& [key, quantity] : mount.quantities)
      if (is_its(quantity.from)) return true;
  return false;
}

constexpr std::string_view kStopped = " (stopped)";

// The point that a stopped run of this command measured.
std::optional<machine::RatePoint> kept_point(const Profile& profile, const std::string& command,
                                             const std::string& subject, int64_t threads,
                                             double at) {
  for (const machine::RateCurve& curve : profile.rates)
    if (curve.subject == subject && curve.threads == threads &&
        curve.provenance.from == fmt::format("{}{}", command, kStopped))
      for (const machine::RatePoint& point : curve.points)
        if (point.at == at) return point;
  return std::nullopt;
}

// Numbers of an interrupted part say so, for --resume.
void mark_stopped(Profile& profile) {
  for (auto& [key, quantity] : profile.quantities) quantity.from += kStopped;
  for (machine::CollectiveCurve& curve : profile.collectives) curve.provenance.from += kStopped;
  for (machine::RateCurve& curve : profile.rates) curve.provenance.from += kStopped;
  for (machine::PairTimes& times : profile.pairs) times.provenance.from += kStopped;
  for (machine::Mount& mount : profile.mounts)
    for (auto& [key, quantity] : mount.quantities) quantity.from += kStopped;
}

void set_foreign_share(double share, Profile& profile) {
  for (machine::CollectiveCurve& curve : profile.collectives)
    curve.provenance.foreign_share = share;
  for (machine::RateCurve& curve : profile.rates) curve.provenance.foreign_share = share;
  for (machine::PairTimes& times : profile.pairs) times.provenance.foreign_share = share;
}

// Judges ranks by their median; two ranks, which have none, by the better of them.
std::vector<Judgement> judge_ranks(const std::vector<machine::Measured>& fleet) {
  if (fleet.size() > 2) return machine::judge_fleet(fleet);
  if (fleet.size() < 2) return {};
  const machine::Expected better{std::max(fleet[0].value, fleet[1].value), "the other rank"};
  return {machine::judge(fleet[0], better), machine::judge(fleet[1], better)};
}

// A tenth of the rows may be disturbed: these are marked, and the others say enough.
bool is_disturbed(const ForeignShare& foreign) {
  return foreign.shown() > machine::kMaxForeignShare || foreign.disturbed_rows * 10 > foreign.rows;
}

double mean_of_disturbed(std::span<const RowShare> rows) {
  double sum = 0, count = 0;
  for (const RowShare& row : rows)
    if (is_disturbed(row)) sum += *row.share, ++count;
  return count > 0 ? sum / count : 0;
}

// Measures, and watches meanwhile.  rig.goes_on is called before each row.
PartResult measure_part(const PartCall& call, Rig& rig) {
  const auto start = Clock::now();
  ForeignWatch watch(rig.ranks);
  RowWatch rows(rig.ranks);
  double watch_s = seconds_since(start);
  rig.goes_on = [&rows, goes_on = rig.goes_on] {
    const bool result = goes_on();
    if (result) rows.begin();
    return result;
  };
  rig.again = [&] { return rows.again(); };
  rig.row = [&] { return rows.row(); };
  PartResult result;
  result.name = call.name;
  result.findings = call.measure(rig);
  watch_s += rows.seconds();
  rig.ranks.barrier("foreign").wait();
  const auto end = Clock::now();
  result.row_shares = rows.end();
  result.foreign = watch.end();
  watch_s += seconds_since(end);
  spread(result.foreign, result.row_shares);
  result.foreign.rows = int64_t(result.row_shares.size());
  result.foreign.disturbed_rows =
      std::count_if(result.row_shares.begin(), result.row_shares.end(),
                    [](const RowShare& row) { return is_disturbed(row); });
  result.foreign.share_of_disturbed = mean_of_disturbed(result.row_shares);
  result.seconds = seconds_since(start);
  result.watch_s = watch_s;
  return result;
}

// The hosts of the ranks.  Rank 0 logs where ranks are, and each warning once, with its first host.
std::vector<NamedHost> introduce_hosts(const train::RankResources& resources, Log& log) {
  std::vector<NamedHost> hosts = hosts_of(resources.ranks);
  if (resources.ranks.rank() != 0) return hosts;
  log.info("placement: {}", resources.placement);
  std::set<std::string> said;
  for (const NamedHost& host : hosts)
    for (const std::string& warning : host_warnings(host.facts))
      if (said.insert(warning).second) log.warn("{}: {}", host.name, warning);
  return hosts;
}

// On rank 0: judges a part's result, keeps and prints it.
void keep_result(PartResult& result, const std::string& date, int local_ranks, Keeping& keeping) {
  if (result.findings.num_left_out > 0) mark_stopped(result.findings.profile);
  set_foreign_share(result.foreign.shown(), result.findings.profile);
  const bool has_earlier = keeping.profile.has_value();
  result.judgements = judge_findings(result.name, result.findings, result.foreign,
                                     has_earlier ? &*keeping.profile : nullptr);
  if (keeping.keep) {
    if (!has_earlier) keeping.profile = describe_machine(local_ranks);
    keeping.profile->date = date;
    merge(result.findings.profile, is_disturbed(result.foreign), *keeping.profile);
    keeping.keep(*keeping.profile);
  }
  if (keeping.print) keeping.print(result);
}

// A stopped run's numbers give way to those with which the same command ends.
void drop_stopped(const Profile& later, Profile& profile) {
  const auto ends = [](const std::string& from, const std::string& stopped) {
    return stopped == fmt::format("{}{}", from, kStopped);
  };
  std::erase_if(profile.quantities, [&](const auto& item) {
    const machine::Quantity* same = later.find(item.first);
    return same && ends(same->from, item.second.from);
  });
  std::erase_if(profile.rates, [&](const machine::RateCurve& curve) {
    return std::any_of(later.rates.begin(), later.rates.end(), [&](const auto& same) {
      return same.subject == curve.subject && same.threads == curve.threads &&
             ends(same.provenance.from, curve.provenance.from);
    });
  });
}

}  // namespace

std::vector<Judgement> SessionReport::judgements() const {
  std::vector<Judgement> all;
  for (const PartResult& part : parts)
    all.insert(all.end(), part.judgements.begin(), part.judgements.end());
  return all;
}

machine::Verdict SessionReport::verdict() const {
  return machine::worst_of(judgements());
}

NodeLists node_lists(const std::vector<std::string>& hosts,
                     std::span<const machine::Judgement> judgements) {
  NodeLists lists;
  const auto has = [&](Verdict verdict, const std::string* host) {
    return std::any_of(judgements.begin(), judgements.end(), [&](const Judgement& j) {
      return j.verdict == verdict && (!host || j.rank < 0 || hosts[size_t(j.rank)] == *host);
    });
  };
  lists.judged = std::any_of(judgements.begin(), judgements.end(),
                             [](const Judgement& j) { return j.rank >= 0; });
  const bool disturbed = has(Verdict::kDisturbed, nullptr);
  for (const std::string& host : hosts) {
    const bool fails =
        has(Verdict::kWrongData, &host) ||
        std::any_of(judgements.begin(), judgements.end(), [&](const Judgement& j) {
          return j.verdict == Verdict::kBad && j.rank >= 0 && hosts[size_t(j.rank)] == host;
        });
    if (!fails && (disturbed || !lists.judged)) continue;
    std::vector<std::string>& list = fails ? lists.failing : lists.passing;
    if (std::find(list.begin(), list.end(), host) == list.end()) list.push_back(host);
  }
  return lists;
}

void merge(const Profile& from, Profile& into) {
  for (const auto& [key, quantity] : from.quantities) into.set(key, quantity);
  for (const machine::CollectiveCurve& curve : from.collectives) into.set(curve);
  for (const machine::RateCurve& curve : from.rates) into.set(curve);
  for (const machine::PairTimes& times : from.pairs) into.set(times);
  for (const machine::Mount& mount : from.mounts) {
    const auto found = std::find_if(into.mounts.begin(), into.mounts.end(),
                                    [&](const auto& other) { return other.path == mount.path; });
    if (found == into.mounts.end())
      into.mounts.push_back(mount);
    else
      *found = mount;
  }
}

void merge(const Profile& from, bool disturbed, Profile& into) {
  Profile earlier = into;
  drop_stopped(from, earlier);
  merge(from, into);
  if (disturbed) merge(earlier, into);
}

std::vector<Judgement> judge_findings(const std::string& part, const Findings& findings,
                                      const ForeignShare& foreign, const Profile* earlier) {
  std::vector<Judgement> result;
  for (const machine::Measured& fault : findings.faults)
    result.push_back(machine::judge(fault, {}));
  if (findings.demand) result.push_back(*findings.demand);
  if (is_disturbed(foreign)) {
    machine::Measured m;
    m.name = part;
    m.foreign_share = std::max(foreign.shown(), foreign.share_of_disturbed);
    m.neighbour = foreign.neighbour;
    if (foreign.rows > 0)
      m.cause = fmt::format("{} of {} rows", foreign.disturbed_rows, foreign.rows);
    result.push_back(machine::judge(m, {}));
    return result;  // no number of it says anything
  }
  result.insert(result.end(), findings.judged.begin(), findings.judged.end());
  for (const std::vector<machine::Measured>& fleet : findings.fleets)
    for (Judgement& judgement : judge_ranks(fleet)) result.push_back(std::move(judgement));
  if (earlier)
    for (Judgement& judgement : machine::compare(findings.profile, *earlier))
      result.push_back(std::move(judgement));
  return result;
}

SessionReport run_session(std::span<const PartCall> calls, const train::RankResources& resources,
                          const SessionOptions& options, Keeping& keeping, Log& log) {
  comm::Group& ranks = resources.ranks;
  Threads threads(resources.num_threads);
  Pace pace(ranks, options.budget_s);
  SessionReport report;
  report.start_time = checkpoint::utc_now();
  report.engine = options.engine;
  report.command = fmt::format("ashlar bench {}{}", options.name, options.flags);
  const std::string date = report.start_time.substr(0, 10);
  const bool leads = ranks.rank() == 0;
  report.host_facts = introduce_hosts(resources, log);
  const auto run_part = [&](const PartCall& call, int64_t cycle) {
    const std::string command = fmt::format("ashlar bench {}{}", call.name, options.flags);
    const bool has_it = leads && options.resume && cycle == 1 && keeping.profile &&
                        has_result_of(*keeping.profile, command);
    if (comm::from_leader(ranks, has_it, "resume") != 0) {
      report.resumed.push_back(call.name);
      return;
    }
    if (!pace.goes_on()) {
      if (cycle == 1) report.not_begun.push_back(call.name);
      return;
    }
    std::optional<Progress> progress;
    if (leads) progress.emplace(log, call.name, 0, "rows");
    Rig rig{ranks, resources.allocator, threads, options.engine, command, date};
    rig.quick = options.quick;
    rig.directory = options.directory;
    rig.only = options.only;
    rig.staging_bytes = options.staging_bytes;
    if (leads && options.resume && keeping.profile)
      rig.kept = [&](const std::string& subject, double at) {
        return kept_point(*keeping.profile, command, subject, threads.size(), at);
      };
    rig.goes_on = [&] {
      if (progress) progress->advance(1);
      return pace.goes_on();
    };
    report.parts.push_back(measure_part(call, rig));
    PartResult& result = report.parts.back();
    result.cycle = options.cycles == 1 ? 0 : cycle;
    progress.reset();
    if (leads) keep_result(result, date, resources.local_ranks, keeping);
  };
  for (int64_t cycle = 1; options.cycles == 0 || cycle <= options.cycles; ++cycle) {
    if (cycle > 1 && !pace.goes_on()) break;
    for (const PartCall& call : calls)
      if (ranks.size() >= call.least_ranks)
        run_part(call, cycle);
      else if (cycle == 1)
        report.too_few_ranks.push_back(call.name);
  }
  report.devices = comm::all_said(ranks, device_json(resources), "devices");
  report.hosts = comm::all_said(ranks, train::host_name(), "hosts");
  report.end_time = checkpoint::utc_now();
  return report;
}

}  // namespace ashlar::bench
