// ashlar bench p2p | stream | layers | launch | storage | smoke | all
#include "ashlar/cli/bench_machine.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "ashlar/bench/machine/collectives.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/files.h"
#include "ashlar/core/signals.h"
#include "ashlar/machine/profile.h"
#include "ashlar/train/start.h"

namespace ashlar::cli {
namespace {

void check_flags(const MachineFlags& flags) {
  constexpr double kMost_s = 1e6;
  constexpr int kMostRanks = 1024;
  ASHLAR_REQUIRE(flags.ranks >= 1 && flags.ranks <= kMostRanks, kConfig,
                 "--ranks is {}; expected 1 to {}", flags.ranks, kMostRanks);
  ASHLAR_REQUIRE(flags.threads >= 0 && flags.threads <= kMostRanks, kConfig,
                 "--threads is {}; expected 0 to {}", flags.threads, kMostRanks);
  ASHLAR_REQUIRE(flags.timeout_s > 0 && flags.timeout_s <= kMost_s, kConfig,
                 "--timeout is {}; expected above 0 to {:.0f}", flags.timeout_s, kMost_s);
  ASHLAR_REQUIRE(flags.budget_s >= 0 && flags.budget_s <= kMost_s, kConfig,
                 "--budget is {}; expected 0 to {:.0f}", flags.budget_s, kMost_s);
  ASHLAR_REQUIRE(!flags.resume || !flags.profile.empty(), kConfig,
                 "--resume goes on with a profile; name it with --profile FILE");
}

// The flags that change numbers, as the profile names the command.
std::string flags_text(const MachineFlags& flags, int num_ranks) {
  std::string text = fmt::format("{} --ranks {}", flags.more, num_ranks);
  if (flags.threads > 0) text += fmt::format(" --threads {}", flags.threads);
  if (!flags.bind_to.empty()) text += " --bind-to " + flags.bind_to;
  if (flags.native) text += " --native";
  if (flags.quick) text += " --quick";
  if (!flags.only.empty()) text += fmt::format(" --only {}", flags.only);
  return text;
}

// The kind of an error that ends the command with the code of a verdict.
ErrorKind kind_of(machine::Verdict verdict) {
  return ErrorKind(machine::exit_code(verdict, false));
}

bench::Keeping keeping_of(const MachineFlags& flags, FileSystem& files) {
  bench::Keeping keeping;
  if (!flags.profile.empty()) {
    if (files.stat(flags.profile, LinkPolicy::kFollow)) {
      keeping.profile = machine::parse_profile(read_text(files, flags.profile), flags.profile);
      bench::require_same_machine(*keeping.profile, flags.profile);
    }
    keeping.keep = [&files, file = flags.profile](const machine::Profile& profile) {
      write_text(files, file, machine::to_toml(profile));
    };
  }
  if (flags.json != "-")
    keeping.print = [](const bench::PartResult& result) { print_lines(to_text(result)); };
  return keeping;
}

std::string lines_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  return text;
}

// One part alone needs its ranks; among several it is left out.
void require_ranks(const std::string& name, const std::vector<bench::PartCall>& calls,
                   int num_ranks) {
  const int least = calls[0].least_ranks;
  ASHLAR_REQUIRE(calls.size() > 1 || num_ranks >= least, kConfig,
                 "{} of {} rank{}; expected {} ranks or more (--ranks, or mpirun)", name, num_ranks,
                 num_ranks == 1 ? "" : "s", least);
}

// On rank 0.
void write_report(const MachineFlags& flags, const bench::SessionReport& report, Outputs& outputs) {
  if (!flags.json.empty() && flags.json != "-")
    outputs.write(flags.json, bench::to_json(report) + "\n");
  if (!flags.csv.empty()) outputs.write(flags.csv, bench::to_csv(report));
  const bench::NodeLists nodes = bench::node_lists(report.hosts, report.judgements());
  if (!flags.passing.empty()) outputs.write(flags.passing, lines_of(nodes.passing));
  if (!flags.failing.empty()) outputs.write(flags.failing, lines_of(nodes.failing));
  outputs.publish();
  if (flags.json == "-")
    print_json(bench::to_json(report));
  else
    print_lines(bench::closing_text(report));
}

void add_session(CLI::App& group, CommandAction& action, const std::string& name,
                 const std::string& help, const std::vector<bench::PartCall>& calls) {
  const auto flags = std::make_shared<MachineFlags>();
  CLI::App* sub = group.add_subcommand(name, help);
  add_machine_flags(*sub, *flags);
  if (std::any_of(calls.begin(), calls.end(), [](const auto& c) { return c.name == "storage"; }))
    sub->add_option("--dir", flags->directory, "a directory on the disk to measure")
        ->capture_default_str();
  if (name == "smoke") {
    sub->add_option("--passing", flags->passing, "write the hosts that passed, one a line");
    sub->add_option("--failing", flags->failing, "write the hosts that failed, one a line");
  }
  if (name == "layers" || name == "stream")
    sub->add_option("--only", flags->only, "rows whose subject holds this text, as recurrence");
  sub->callback([flags, name, calls, &action] {
    action = [flags, name, calls](Log& log) { return run_machine(*flags, name, calls, log); };
  });
}

}  // namespace

void add_machine_flags(CLI::App& app, MachineFlags& flags) {
  app.add_option("--ranks", flags.ranks, "ranks, as threads of this process; 1 under mpirun")
      ->capture_default_str();
  app.add_option("--threads", flags.threads, "threads of a rank; 0: its share of the CPUs")
      ->capture_default_str();
  add_bind_to(app, flags.bind_to);
  app.add_flag("--native", flags.native, "under mpirun: MPI's own collectives");
  app.add_flag("--quick", flags.quick, "fewer sizes and repeats: seconds");
  app.add_option("--json", flags.json, "write the rows as one JSON object; - to stdout alone");
  app.add_option("--csv", flags.csv, "write the rows with commas");
  app.add_option("--profile", flags.profile,
                 "compare with the earlier numbers in this file, and put the new ones in");
  app.add_flag("--resume", flags.resume, "leave out what the profile has of this command");
  app.add_flag("--allow-independent", flags.independent,
               "measure this process alone, though a launcher started several");
  app.add_flag("--strict", flags.strict, "exit code 3 if a verdict is low");
  app.add_option("--timeout", flags.timeout_s, "seconds to wait for a rank")->capture_default_str();
  app.add_option("--budget", flags.budget_s, "seconds after which no row begins; 0: none")
      ->capture_default_str();
  add_force(app, flags.existing);
}

std::string file_beside(const std::string& profile, std::string_view ending) {
  const size_t dot = profile.rfind('.');
  const bool has_ending = dot != profile.npos && profile.find('/', dot) == profile.npos;
  return fmt::format("{}.{}", has_ending ? profile.substr(0, dot) : profile, ending);
}

int run_machine(const MachineFlags& flags, const std::string& name,
                const std::vector<bench::PartCall>& calls, Log& log) {
  check_flags(flags);
  const auto files = posix_files();
  const std::string json_file = flags.json == "-" ? "" : flags.json;
  std::vector<std::string> inputs = flags.inputs;
  inputs.push_back(flags.profile);
  Outputs outputs(*files, {json_file, flags.csv, flags.passing, flags.failing}, inputs,
                  flags.existing);
  bench::Keeping keeping = keeping_of(flags, *files);
  const StopSignals signals;
  StopSignals::answer("prints what it has and stops");
  train::Start start{flags.ranks, print_error};
  start.independent = flags.independent;
  start.binding = train::parse_binding(flags.bind_to);
  train::RankSettings settings;
  settings.threads = flags.threads;
  settings.communication.timeout_s = flags.timeout_s;
  settings.communication.late = kind_of(machine::Verdict::kTimedOut);
  settings.communication.lost = kind_of(machine::Verdict::kRankLost);
  if (flags.native) settings.communication.collectives = comm::Collectives::kNative;
  if (flags.native_beside) settings.communication.native_lane = bench::kNativeLane;
  int code = 0;
  const auto measure = [&](const train::RankResources& resources) {
    require_ranks(name, calls, resources.ranks.size());
    bench::SessionOptions options;
    options.name = name;
    options.flags = flags_text(flags, resources.ranks.size());
    options.engine = std::string(train::engine_of(start)) + (flags.native ? "-native" : "");
    options.directory = flags.directory;
    options.only = flags.only;
    options.quick = flags.quick;
    options.cycles = flags.cycles;
    options.resume = flags.resume;
    options.budget_s = flags.budget_s;
    options.staging_bytes = settings.communication.staging_bytes;
    const bool leads = resources.ranks.rank() == 0;
    if (!leads && train::engine_of(start) == "mpi") StopSignals::answer(nullptr);  // rank 0 answers
    bench::Keeping nothing;
    const bench::SessionReport report =
        bench::run_session(calls, resources, options, leads ? keeping : nothing, log);
    int mine = 0;
    if (leads) {
      write_report(flags, report, outputs);
      mine = StopSignals::requested() ? int(ErrorKind::kPreempted)
                                      : machine::exit_code(report.verdict(), flags.strict);
    }
    mine = int(comm::from_leader(resources.ranks, mine, "verdict"));
    if (leads || train::engine_of(start) == "mpi") code = mine;
  };
  try {
    train::start_ranks(settings, start, measure);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kLaunch) throw;
    ASHLAR_FAIL(kLaunch, "{}, or pass --allow-independent", error.what());
  }
  return code;
}

void add_machine_parts(CLI::App& group, CommandAction& action) {
  const auto call_of = [](const bench::Part& part) {
    return bench::PartCall{std::string(part.name), part.measure, part.least_ranks};
  };
  std::vector<bench::PartCall> all;
  for (const bench::Part& part : bench::parts()) {
    all.push_back(call_of(part));
    if (part.name == "collectives" || part.name == "products" || part.name == "storage")
      continue;  // have their own flags
    add_session(group, action, std::string(part.name), std::string(part.measures), {call_of(part)});
  }
  add_session(group, action, "smoke",
              "whether every rank is fit: exact collectives, messages, a product, memory; seconds",
              {{"smoke", bench::measure_smoke}});
  add_session(group, action, "all", "all measurements of this machine, for its profile", all);
}

}  // namespace ashlar::cli
