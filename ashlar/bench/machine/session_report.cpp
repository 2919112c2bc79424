// The text and the JSON of a session, and the identity of this machine.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/bench/machine/host_facts.h"
#include "ashlar/bench/machine/session.h"
#include "ashlar/core/json.h"
#include "ashlar/core/process.h"
#include "ashlar/core/text.h"
#include "ashlar/core/topology.h"
#include "ashlar/train/machine.h"

extern char** environ;

namespace ashlar::bench {
namespace {

using machine::Judgement;
using machine::Verdict;

bool is_fine(Verdict verdict) {
  return verdict == Verdict::kGood || verdict == Verdict::kNormal;
}

Ordered as_json(const Judgement& j) {
  Ordered json{{"name", j.name},
               {"verdict", machine::to_string(j.verdict)},
               {"value", j.value},
               {"unit", j.unit}};
  json["ratio"] = j.ratio ? Ordered(*j.ratio) : Ordered(nullptr);
  json["expected"] = j.expected;
  json["hint"] = j.hint;
  if (j.rank >= 0) json["rank"] = j.rank;
  return json;
}

Ordered share_json(const std::optional<double>& share) {
  return share ? Ordered(*share) : Ordered(nullptr);
}

// The text, with a star at the lines of rows that others disturbed.
std::string marked_text(const PartResult& result) {
  std::string text = result.findings.text;
  const auto& marks = result.findings.marks;
  for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark)
    if (mark->second >= 0 && size_t(mark->second) < result.row_shares.size() &&
        is_disturbed(result.row_shares[size_t(mark->second)]))
      text.insert(mark->first, " *");
  return text;
}

// Replaces the number of a row by the share of others while it was measured.
void add_foreign(const PartResult& part, Ordered& row) {
  RowShare share{part.foreign.share, part.foreign.rows, 0};
  const bool known =
      row.contains("row") && row["row"] >= 0 && row["row"] < int64_t(part.row_shares.size());
  if (known) share = part.row_shares[row["row"]];
  row.erase("row");
  row["bench"] = part.name;
  row["foreign"] = share_json(share.share);
  row["foreign_rows"] = share.rows;
  row["disturbed"] = is_disturbed(share);
}

// Variables of libraries whose settings change numbers; never the whole environment.
Ordered environment() {
  Ordered list = Ordered::array();
  for (char** at = environ; *at; ++at) {
    const std::string_view text = *at;
    for (const std::string_view prefix : {"ASHLAR_", "OMP_", "NCCL_", "RCCL_", "HSA_"})
      if (text.starts_with(prefix)) list.push_back(text);
  }
  return list;
}

}  // namespace

machine::Profile describe_machine(int local_ranks) {
  machine::Profile profile;
  profile.name = train::host_name();
  profile.identity = {{"host", profile.name}};
  for (const auto& [key, text] : host_facts()) profile.identity.emplace(key, text);
  const auto fact = [&](const char* key, double value, const char* unit) {
    if (value > 0) profile.set(key, {value, unit, machine::Origin::kMeasured, "the system", "", 0});
  };
  fact("node.devices", local_ranks, "1");
  fact("node.memory", double(memory_limit_bytes()), "B");
  const Topology topology = this_machine();
  fact("node.cpus", double(topology.cpus.size()), "1");
  fact("node.usable_cpus", double(topology.allowed.size()), "1");
  if (!topology.is_known) return profile;  // nothing else is
  fact("node.sockets", topology.num_packages(), "1");
  fact("node.cores", topology.num_cores(), "1");
  fact("node.smt", topology.threads_per_core(), "1");
  fact("node.numa_nodes", double(topology.numa_nodes.size()), "1");
  fact("node.numa_distance", topology.farthest(), "1");
  double l3 = 0, num_l3 = 0;
  for (const Topology::Cache& cache : topology.caches) {
    if (cache.level <= 2) fact(cache.level == 1 ? "node.l1" : "node.l2", double(cache.bytes), "B");
    if (cache.level != 3) continue;
    l3 += double(cache.bytes);
    ++num_l3;
  }
  fact("node.l3", l3, "B");
  fact("node.l3_caches", num_l3, "1");
  return profile;
}

void require_same_machine(const machine::Profile& profile, const std::string& file) {
  const machine::Profile here = describe_machine(1);
  for (const char* key : {"host", "cpu"}) {
    const auto found = profile.identity.find(key);
    const std::string theirs = found == profile.identity.end() ? "unknown" : found->second;
    const std::string& ours = here.identity.find(key)->second;
    ASHLAR_REQUIRE(theirs == ours, kConfig,
                   "{} is the profile of another machine: {} is {}, here {}; choose another file",
                   file, key, theirs, ours);
  }
}

std::string device_json(const train::RankResources& resources) {
  std::set<int> all;
  for (const Cpus& of_worker : worker_cpus(resources.num_threads))
    all.insert(of_worker.begin(), of_worker.end());
  const Cpus cpus(all.begin(), all.end());
  return one_line(Ordered{
      {"rank", resources.ranks.rank()},
      {"group", 0},
      {"pid", getpid()},
      {"hostname", train::host_name()},
      {"device", resources.ranks.rank() % resources.local_ranks},
      {"device_hex", ""},
      {"device_info", fmt::format("{}, {} threads", processor_name(), resources.num_threads)},
      {"cpus", cpus_text(cpus.empty() ? usable_cpus() : cpus)}});
}

std::string judgement_json(const Judgement& judgement) {
  return one_line(as_json(judgement));
}

std::string judgements_text(std::span<const Judgement> judgements) {
  std::string text;
  std::array<int64_t, machine::kNumVerdicts> counts{};
  for (const Judgement& j : judgements) {
    ++counts[size_t(j.verdict)];
    if (is_fine(j.verdict)) continue;
    text += fmt::format("{}: {}", machine::to_string(j.verdict), j.name);
    if (j.ratio)
      text += fmt::format(", {:.4g} {}, {:.2f} of {}", j.value, j.unit, *j.ratio, j.expected);
    text += fmt::format(": {}\n", j.hint);
  }
  std::string summary;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0)
      summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", counts[i],
                             machine::to_string(Verdict(i)));
  return summary.empty() ? text : text + "verdicts: " + summary + "\n";
}

std::string to_text(const PartResult& result) {
  std::string text = result.cycle > 0 ? fmt::format("# cycle {}\n", result.cycle) : "";
  text += marked_text(result);
  text +=
      result.foreign.share
          ? fmt::format(
                "# others took {:.1f} % of the cores{}{}; {:.1f} s, {:.2f} % of it watching\n",
                100 * *result.foreign.share,
                result.foreign.neighbour.empty() ? "" : ", most of it ", result.foreign.neighbour,
                result.seconds, 100 * result.watch_s / std::max(result.seconds, 1e-9))
          : fmt::format("# the share of others is unknown; {:.1f} s\n", result.seconds);
  if (result.foreign.disturbed_rows > 0)
    text += fmt::format("# others took more than {:.0f} % during {} of {} rows, marked *\n",
                        100 * machine::kMaxForeignShare, result.foreign.disturbed_rows,
                        result.foreign.rows);
  if (result.findings.num_left_out > 0)
    text += fmt::format("# stopped: {} rows left out\n", result.findings.num_left_out);
  text += judgements_text(result.judgements);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

namespace {

// The numbers that a measurement of the whole machine did not give.
std::vector<machine::ProfileKey> not_measured_of(const SessionReport& report) {
  if (!report.command.starts_with("ashlar bench all")) return {};
  machine::Profile all;
  for (const PartResult& part : report.parts) merge(part.findings.profile, all);
  return machine::not_measured(all);
}

std::string not_measured_text(const SessionReport& report) {
  std::string text;
  for (const machine::ProfileKey& key : not_measured_of(report))
    text += fmt::format("not measured: {}{}{}\n", key.name, key.absent_because.empty() ? "" : ": ",
                        key.absent_because);
  return text;
}

}  // namespace

std::string closing_text(const SessionReport& report) {
  std::string text = drift_text(report.host_facts);
  const auto list = [&](std::string_view what, const std::vector<std::string>& names) {
    for (size_t i = 0; i < names.size(); ++i)
      text += (i == 0 ? std::string(what) : ", ") + names[i];
    if (!names.empty()) text += "\n";
  };
  list("left out, for they need more ranks: ", report.too_few_ranks);
  list("already in the profile: ", report.resumed);
  list("not begun, time was up: ", report.not_begun);
  const NodeLists nodes = node_lists(report.hosts, report.judgements());
  if (nodes.judged) list("passing nodes: ", nodes.passing);
  list("failing nodes: ", nodes.failing);
  text += not_measured_text(report);
  bool judged = false;
  for (const PartResult& part : report.parts) judged |= !part.judgements.empty();
  text += report.parts.empty() ? "verdict: unknown: nothing was measured"
          : judged             ? fmt::format("verdict: {}", machine::to_string(report.verdict()))
                   : "verdict: unknown: no earlier numbers of this machine (--profile FILE "
                     "keeps these)";
  return text;
}

namespace {

// The rows of all parts.
Ordered results_of(const SessionReport& report) {
  Ordered results = Ordered::array();
  for (const PartResult& part : report.parts)
    for (const std::string& row : part.findings.rows) {
      Ordered json = Ordered::parse(row);
      add_foreign(part, json);
      if (part.cycle > 0) json["cycle"] = part.cycle;
      results.push_back(std::move(json));
    }
  return results;
}

// "a,b" in quotes, as RFC 4180 says.
std::string csv_cell(const Ordered& value) {
  const std::string text = value.is_string() ? value.get<std::string>()
                           : value.is_null() ? ""
                                             : value.dump();
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// Members of members get names like in_place.time; lists are left out.
void add_cells(const Ordered& object, const std::string& prefix,
               std::vector<std::pair<std::string, std::string>>& cells) {
  for (const auto& item : object.items()) {
    if (item.value().is_object())
      add_cells(item.value(), prefix + item.key() + ".", cells);
    else if (!item.value().is_array() && !item.value().is_null())
      cells.emplace_back(prefix + item.key(), csv_cell(item.value()));
  }
}

}  // namespace

std::string to_csv(const SessionReport& report) {
  std::vector<std::string> columns;
  std::vector<std::map<std::string, std::string>> lines;
  for (const Ordered& row : results_of(report)) {
    std::vector<std::pair<std::string, std::string>> cells;
    add_cells(row, "", cells);
    for (const auto& [name, text] : cells)
      if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
    lines.emplace_back(cells.begin(), cells.end());
  }
  std::string csv = fmt::format("{}\n", fmt::join(columns, ","));
  for (auto& line : lines) {
    for (size_t i = 0; i < columns.size(); ++i) csv += (i == 0 ? "" : ",") + line[columns[i]];
    csv += "\n";
  }
  return csv;
}

std::string to_json(const SessionReport& report) {
  Ordered devices = Ordered::array(), parts = Ordered::array(), verdicts = Ordered::array();
  for (const std::string& device : report.devices) devices.push_back(Ordered::parse(device));
  for (const PartResult& part : report.parts) {
    for (const Judgement& judgement : part.judgements) verdicts.push_back(as_json(judgement));
    parts.push_back({{"bench", part.name},
                     {"seconds", part.seconds},
                     {"foreign_share", share_json(part.foreign.share)},
                     {"disturbed_rows", part.foreign.disturbed_rows},
                     {"rows", part.foreign.rows},
                     {"watch_s", part.watch_s},
                     {"neighbour", part.foreign.neighbour},
                     {"rows_left_out", part.findings.num_left_out}});
  }
  Ordered hosts = Ordered::array();
  for (const NamedHost& host : report.host_facts) {
    Ordered facts = Ordered::object();
    for (const auto& [key, value] : host.facts) facts[key] = value;
    hosts.push_back(
        {{"name", host.name}, {"facts", facts}, {"warnings", host_warnings(host.facts)}});
  }
  const NodeLists nodes = node_lists(report.hosts, report.judgements());
  Ordered not_measured = Ordered::array();
  for (const machine::ProfileKey& key : not_measured_of(report))
    not_measured.push_back({{"key", key.name}, {"reason", key.absent_because}});
  Ordered arguments = Ordered::array();
  for (const std::string& word : split(report.command, ' ')) arguments.push_back(word);
  const Ordered json{
      {"version", "ashlar-bench-1"},
      {"start_time", report.start_time},
      {"end_time", report.end_time},
      {"args", arguments},
      {"env", environment()},
      {"engine", report.engine},
      {"config", {{"ranks", devices.size()}, {"devices", devices}, {"hosts", hosts}}},
      {"parts", parts},
      {"results", results_of(report)},
      {"not_measured", not_measured},
      {"verdicts", verdicts},
      {"passing_nodes", nodes.passing},
      {"failing_nodes", nodes.failing},
      {"verdict", machine::to_string(report.verdict())}};
  return one_line(json);
}

}  // namespace ashlar::bench
