// ashlar bench collectives [--ops LIST] [--shape SHAPE] [--engines LIST] and the flags of
// nccl-tests.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "ashlar/bench/machine/collectives.h"
#include "ashlar/cli/bench_machine.h"
#include "ashlar/core/text.h"

namespace ashlar::cli {
namespace {

struct CollectivesFlags {
  MachineFlags machine;
  bench::CollectiveOptions options;
  std::vector<std::string> ops, dtypes;
  std::vector<std::string> engines;
  std::string begin = "1K", end, step, shape = "all", redop = "sum", root = "0";
  int of_ranks = 1;
  double min_busbw = 0;
};

// "8", "64K", "1M", "2G", as nccl-tests reads sizes.
int64_t size_of_text(const char* flag, const std::string& text) {
  if (text.empty()) return 0;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, size_t(text.data() + text.size() - end));
  const size_t power = unit.empty() ? 0 : std::string_view("KMG").find(unit[0] & ~0x20) + 1;
  const bool known = unit.empty() || (unit.size() == 1 && power >= 1 && power <= 3);
  constexpr int64_t kMost = int64_t{1} << 40;
  ASHLAR_REQUIRE(error == std::errc() && known && number >= 1 && number <= kMost >> (10 * power),
                 kConfig, "{} is {}; expected bytes, as 8, 64K, 16M or 1G, up to 1024G", flag,
                 text);
  return number << (10 * power);
}

// Types of nccl-tests that groups cannot add, or cannot check.
constexpr const char* kOtherTypes[] = {"half",   "fp16",     "int8",   "uint32", "int64",
                                       "uint64", "fp8_e4m3", "f8e4m3", "f8e5m2"};

void add_dtypes(const std::string& name, std::vector<DType>& dtypes) {
  if (name == "all") {
    dtypes = {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kU8};
    return;
  }
  const std::pair<const char*, DType> names[] = {{"float", DType::kF32},     {"fp32", DType::kF32},
                                                 {"bfloat16", DType::kBF16}, {"bf16", DType::kBF16},
                                                 {"double", DType::kF64},    {"fp64", DType::kF64},
                                                 {"int32", DType::kI32},     {"uint8", DType::kU8}};
  std::vector<std::string> known;
  for (const auto& [text, dtype] : names) {
    if (name == text) return dtypes.push_back(dtype);
    known.emplace_back(text);
  }
  for (const char* other : kOtherTypes)
    ASHLAR_REQUIRE(name != other, kConfig,
                   "--dtype has {}, which groups of ranks do not add; expected all, or some of "
                   "float, bfloat16, double, int32, uint8",
                   name);
  ASHLAR_FAIL(kConfig, "--dtype has {}{}", name, suggestion(name, known));
}

int root_of_text(const std::string& text) {
  if (text == "all" || text == "-1") return -1;
  int root = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), root);
  ASHLAR_REQUIRE(
      error == std::errc() && end == text.data() + text.size() && root >= 0 && root <= 1 << 20,
      kConfig, "--root is {}; expected the number of a rank, or all", text);
  return root;
}

// --min-bw, or nccl-tests' variable.
std::optional<double> min_busbw_of(const CollectivesFlags& flags) {
  double gbps = flags.min_busbw;
  if (const char* text = std::getenv("NCCL_TESTS_MIN_BW"); text && gbps == 0) {
    char* end = nullptr;
    gbps = std::strtod(text, &end);
    ASHLAR_REQUIRE(*text != 0 && *end == 0, kConfig,
                   "NCCL_TESTS_MIN_BW is {}; expected a number of GB/s", text);
  }
  ASHLAR_REQUIRE(gbps >= 0 && gbps <= 1e6, kConfig,
                 "--min-bw (or NCCL_TESTS_MIN_BW) is {}; expected 0 to 1000000 GB/s", gbps);
  return gbps > 0 ? std::optional(gbps) : std::nullopt;
}

void set_engines(const CollectivesFlags& flags, bench::CollectiveOptions& options) {
  if (flags.engines.empty()) return;
  ASHLAR_REQUIRE(!flags.machine.native, kConfig,
                 "--native and --engines are both given; expected one of them");
  options.engines.clear();
  for (const std::string& name : flags.engines) {
    using enum bench::CollectiveEngine;
    const std::pair<const char*, bench::CollectiveEngine> names[] = {
        {"exact", kExact}, {"native", kNative}, {"thread", kThread}};
    const auto found = std::find_if(std::begin(names), std::end(names),
                                    [&](const auto& known) { return name == known.first; });
    ASHLAR_REQUIRE(found != std::end(names), kConfig,
                   "--engines has {}; expected some of exact, native, thread", name);
    ASHLAR_REQUIRE(std::find(options.engines.begin(), options.engines.end(), found->second) ==
                       options.engines.end(),
                   kConfig, "--engines has {} twice", name);
    options.engines.push_back(found->second);
  }
}

bench::CollectiveOptions options_of(const CollectivesFlags& flags) {
  bench::CollectiveOptions options = flags.options;
  options.min_bytes = size_of_text("--min-bytes", flags.begin);
  options.max_bytes = size_of_text("--max-bytes", flags.end);
  options.step_bytes = size_of_text("--step-bytes", flags.step);
  ASHLAR_REQUIRE(options.max_bytes == 0 || options.max_bytes >= options.min_bytes, kConfig,
                 "--max-bytes is {} but --min-bytes is {}", flags.end, flags.begin);
  const auto check = [](const char* flag, int64_t value, int64_t least, int64_t most) {
    ASHLAR_REQUIRE(value >= least && value <= most, kConfig, "{} is {}; expected {} to {}", flag,
                   value, least, most);
  };
  check("--iterations", options.iterations, 0, 1'000'000);
  check("--warm-up", options.warm_up, 0, 1'000'000);
  check("--check", options.checks, 0, 1000);
  check("--aggregate", options.aggregate, 1, 1000);
  check("--skip", options.skip, 0, 1'000'000);
  check("--average", flags.of_ranks, 0, 3);
  check("--cycles", flags.machine.cycles, 0, 1'000'000);
  ASHLAR_REQUIRE(options.iterations == 0 || options.skip < options.iterations, kConfig,
                 "--skip is {} but --iterations is {}; expected fewer", options.skip,
                 options.iterations);
  options.of_ranks = bench::OfRanks(flags.of_ranks);
  options.root = root_of_text(flags.root);
  if (options.factor != 0) check("--factor", options.factor, 2, 1 << 20);
  ASHLAR_REQUIRE(flags.redop == "sum" || flags.redop == "all", kConfig,
                 "--redop is {}; expected sum, or all, which is sum: groups of ranks know no other "
                 "reduction",
                 flags.redop);
  options.shape = bench::parse_shape(flags.shape);
  for (const std::string& op : flags.ops) options.ops.push_back(machine::collective_of(op));
  for (const std::string& name : flags.dtypes) add_dtypes(name, options.dtypes);
  options.min_busbw = min_busbw_of(flags);
  set_engines(flags, options);
  return options;
}

// Flags of nccl-tests that have no meaning here, with the reason.
void refuse_device_flags(CLI::App& app) {
  constexpr const char* kNoDevices = "there is no engine for devices yet";
  struct Refused {
    const char *letter, *means, *reason;
  };
  static constexpr Refused kRefused[] = {
      {"-t", "threads of a process", "a rank is a thread or a process; use --ranks or mpirun"},
      {"-g", "devices of a thread", kNoDevices},
      {"-p", "parallel initialization of devices", kNoDevices},
      {"-z", "blocking mode of a device", kNoDevices},
      {"-G", "launches of graphs", kNoDevices},
      {"-R", "registration of device buffers", kNoDevices},
      {"-D", "implementation on the device", kNoDevices},
      {"-V", "thread blocks of a device", kNoDevices},
      {"-S", "time stamps of rows", "rows have none; the JSON has start and end"},
      {"-M", "report of device memory or algorithms", kNoDevices},
      {"-u", "unaligned device buffers", kNoDevices},
      {"-y", "kind of device memory", kNoDevices},
      {"-F", "flush of the device's cache", kNoDevices},
      {"-q", "delay of kernels on a device", kNoDevices},
      {"-Z", "format of the output", "use --json FILE or --csv FILE"},
      {"-x", "file of the output", "use --json FILE or --csv FILE"}};
  for (const Refused& refused : kRefused)
    app.add_option_function<std::string>(
           refused.letter,
           [&refused](const std::string&) {
             ASHLAR_FAIL(kConfig,
                         "{} of nccl-tests ({}) is not available: {}; see ashlar bench collectives "
                         "--help",
                         refused.letter, refused.means, refused.reason);
           },
           "")
        ->expected(0, 1)
        ->group("");  // not shown
}

void add_counting_flags(CLI::App& app, CollectivesFlags& flags) {
  app.add_option("-m,--aggregate", flags.options.aggregate,
                 "operations that are submitted before the first is waited for")
      ->capture_default_str();
  app.add_option("-a,--average", flags.of_ranks,
                 "whose times count: 0 rank 0's, 1 the average, 2 the fastest's, 3 the slowest's")
      ->capture_default_str();
  app.add_option("-N,--cycles", flags.machine.cycles, "repeat all so often; 0: until stopped")
      ->capture_default_str();
  app.add_flag("-C,--cpu-time", flags.options.cpu_time,
               "show the time of the call, without the wait");
  app.add_flag("-I,--per-iteration", flags.options.per_iteration, "statistics of the iterations");
  app.add_option("-K,--skip", flags.options.skip, "first iterations that do not count")
      ->capture_default_str();
  app.add_option("--min-bw", flags.min_busbw,
                 "GB/s; fail if the average busbw is under 0.9 of it; or NCCL_TESTS_MIN_BW")
      ->default_str("none");
}

}  // namespace

void add_collectives(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<CollectivesFlags>();
  CLI::App* sub = group.add_subcommand(
      "collectives", "collectives between ranks over message sizes, with nccl-tests' columns");
  add_machine_flags(*sub, flags->machine);
  sub->add_option("--ops", flags->ops, "all_reduce, all_gather, ...; with commas; default: all")
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option(
         "-d,--dtype", flags->dtypes,
         "float, bfloat16, double, int32, uint8, all; with commas; default: float, bfloat16")
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("-b,--min-bytes", flags->begin, "smallest size, as 8, 64K, 16M")
      ->capture_default_str();
  sub->add_option("-e,--max-bytes", flags->end, "largest size; default: 64M, or 4M with --quick");
  sub->add_option("-i,--step-bytes", flags->step, "add so much to a size for the next");
  sub->add_option("-f,--factor", flags->options.factor,
                  "multiply a size by so much for the next; default: 2, or 4 with --quick");
  sub->add_option("-n,--iterations", flags->options.iterations, "of a row; 0: by their time")
      ->capture_default_str();
  sub->add_option("-w,--warm-up", flags->options.warm_up, "iterations that are not timed")
      ->capture_default_str();
  sub->add_option("-c,--check", flags->options.checks, "checked runs of a row; 0: none")
      ->capture_default_str();
  sub->add_option("-o,--redop", flags->redop, "sum; all is sum too")->capture_default_str();
  sub->add_option("-r,--root", flags->root, "of broadcast, reduce, gather, scatter; all: in turn")
      ->capture_default_str();
  add_counting_flags(*sub, *flags);
  sub->add_option("--engines", flags->engines,
                  "side by side, with the ratio to the first: exact, native, thread; with commas")
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--shape", flags->shape,
                  "groups of ranks: all, node, rail, pairs, stride:N, block:N")
      ->capture_default_str();
  sub->add_flag("--alone", flags->options.alone, "only the first group runs");
  sub->add_option("-J", flags->machine.json, "the same as --json");
  sub->add_option("-T", flags->machine.timeout_s, "the same as --timeout");
  refuse_device_flags(*sub);
  sub->callback([flags, &action] {
    action = [flags](Log& log) {
      const bench::CollectiveOptions options = options_of(*flags);
      const auto measure = [&](const bench::Rig& rig) {
        return bench::findings_of(bench::measure_collectives(rig, options), rig, options);
      };
      MachineFlags machine = flags->machine;
      machine.native_beside = std::find(options.engines.begin(), options.engines.end(),
                                        bench::CollectiveEngine::kNative) != options.engines.end();
      return run_machine(machine, "collectives", {{"collectives", measure}}, log);
    };
  });
}

}  // namespace ashlar::cli
