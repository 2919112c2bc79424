// Runs parts of a machine's measurement: watches for other programs, judges the numbers by earlier
// ones of the same machine, merges them into its profile, and reports all as text and JSON.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/bench/machine/foreign_share.h"
#include "ashlar/bench/machine/host_facts.h"
#include "ashlar/bench/machine/part.h"
#include "ashlar/bench/machine/row_watch.h"
#include "ashlar/core/log.h"
#include "ashlar/train/loop.h"

namespace ashlar::bench {

struct PartCall {
  std::string name;
  std::function<Findings(const Rig& rig)> measure;
  int least_ranks = 1;  // with fewer the part is left out
};

struct SessionOptions {
  std::string name;             // of the command: "all"
  std::string flags;            // " --ranks 2 --quick", of all that changes the numbers
  std::string engine = "self";  // "self", "thread", "mpi", "mpi-native"
  std::string directory = ".";  // on the disk to measure
  std::string only;             // rows of layers and stream whose subject holds this text
  bool quick = false, resume = false;
  int64_t cycles = 1;   // how often the parts run; 0: until time is up
  double budget_s = 0;  // 0: none; no row begins after it
  int64_t staging_bytes = 0;
};

struct PartResult {
  std::string name;
  Findings findings;
  ForeignShare foreign;
  std::vector<RowShare> row_shares;  // by the numbers of rows
  std::vector<machine::Judgement> judgements;
  double seconds = 0;
  int64_t cycle = 0;   // with several, from 1
  double watch_s = 0;  // of these, spent watching
};

struct SessionReport {
  std::string start_time, end_time;
  std::string command, engine;
  std::vector<std::string> devices;   // JSON objects, one a rank
  std::vector<NamedHost> host_facts;  // of the hosts of the ranks
  std::vector<PartResult> parts;
  std::vector<std::string> too_few_ranks;
  std::vector<std::string> resumed;                    // parts that the profile had already
  std::vector<std::string> not_begun;                  // when time was up
  std::vector<std::string> hosts;                      // by rank
  std::vector<machine::Judgement> judgements() const;  // of all parts
  machine::Verdict verdict() const;
};

// The hosts that a script may use, and those that it should leave out: hosts of a bad rank, of the
// second rank of a bad link, or of a rank with wrong data (all hosts, if the rank is not known).
struct NodeLists {
  bool judged = false;                        // ranks were compared with each other
  std::vector<std::string> passing, failing;  // in the order of ranks
};
// A pure function.  On a disturbed machine no node passes.
NodeLists node_lists(const std::vector<std::string>& hosts,
                     std::span<const machine::Judgement> judgements);

// The state that rank 0 keeps between parts.
struct Keeping {
  std::optional<machine::Profile> profile;  // earlier numbers; updated after each part
  std::function<void(const machine::Profile& profile)> keep = nullptr;  // after each part
  std::function<void(const PartResult& result)> print = nullptr;
};

// Every rank calls it; the report is complete on rank 0.  `keeping` and `log` are rank 0's.
SessionReport run_session(std::span<const PartCall> calls, const train::RankResources& resources,
                          const SessionOptions& options, Keeping& keeping, Log& log);

// The identity and the facts of the machine of this process, without measurements.
machine::Profile describe_machine(int local_ranks);
// kConfig if the profile, read from that file, is that of another machine.
void require_same_machine(const machine::Profile& profile, const std::string& file);

// A rank, as the JSON lists it.
std::string device_json(const train::RankResources& resources);

// The judgements of a part's findings: wrong results, ranks by their median, numbers by earlier
// ones; and that others disturbed it.  A pure function.
std::vector<machine::Judgement> judge_findings(const std::string& part, const Findings& findings,
                                               const ForeignShare& foreign,
                                               const machine::Profile* earlier);
// Replaces numbers and curves of `into` by those of `from`.
void merge(const machine::Profile& from, machine::Profile& into);
// The same, but numbers that were measured beside other programs replace none that `into` has.
void merge(const machine::Profile& from, bool disturbed, machine::Profile& into);

std::string to_text(const PartResult& result);          // table and verdicts
std::string closing_text(const SessionReport& report);  // what was left out, and the verdict
std::string to_json(const SessionReport& report);       // one object with the keys of nccl-tests
std::string to_csv(const SessionReport& report);        // the results alone, a line each
std::string judgements_text(std::span<const machine::Judgement> judgements);
std::string judgement_json(const machine::Judgement& judgement);

}  // namespace ashlar::bench
