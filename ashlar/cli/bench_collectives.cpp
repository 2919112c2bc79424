// ashlar bench collectives [--ops LIST] [--shape SHAPE] and the flags of nccl-tests.
#include <CLI/CLI.hpp>
#include <charconv>

#include "ashlar/bench/machine/collectives.h"
#include "ashlar/cli/bench_machine.h"
#include "ashlar/core/text.h"

namespace ashlar::cli {
namespace {

struct CollectivesFlags {
  MachineFlags machine;
  bench::CollectiveOptions options;
  std::vector<std::string> ops, dtypes;
  std::string begin = "1K", end, step, shape = "all", redop = "sum";
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

DType dtype_of_name(const std::string& name) {
  const std::pair<const char*, DType> names[] = {{"float", DType::kF32},     {"fp32", DType::kF32},
                                                 {"bfloat16", DType::kBF16}, {"bf16", DType::kBF16},
                                                 {"double", DType::kF64},    {"fp64", DType::kF64},
                                                 {"int32", DType::kI32},     {"uint8", DType::kU8}};
  std::vector<std::string> known;
  for (const auto& [text, dtype] : names) {
    if (name == text) return dtype;
    known.emplace_back(text);
  }
  ASHLAR_FAIL(kConfig, "--dtype has {}{}", name, suggestion(name, known));
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
  check("--root", options.root, 0, 1 << 20);
  if (options.factor != 0) check("--factor", options.factor, 2, 1 << 20);
  ASHLAR_REQUIRE(flags.redop == "sum", kConfig,
                 "--redop is {}; expected sum: groups know no other reduction", flags.redop);
  options.shape = bench::parse_shape(flags.shape);
  for (const std::string& op : flags.ops) options.ops.push_back(machine::collective_of(op));
  for (const std::string& name : flags.dtypes) options.dtypes.push_back(dtype_of_name(name));
  return options;
}

// Flags of nccl-tests that need a GPU's library: refused with the reason.
void refuse_device_flags(CLI::App& app) {
  for (const char* letter : {"-t", "-g", "-p", "-z", "-G", "-R", "-D", "-V", "-S", "-M", "-u", "-y",
                             "-F", "-q", "-Z", "-x"})
    app.add_option_function<std::string>(
           letter,
           [letter](const std::string&) {
             ASHLAR_FAIL(kConfig,
                         "{} of nccl-tests is for devices, of which there are none yet; see ashlar "
                         "bench collectives --help",
                         letter);
           },
           "")
        ->expected(0, 1)
        ->group("");  // not shown
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
  sub->add_option("-d,--dtype", flags->dtypes,
                  "float, bfloat16, double, int32, uint8; with commas; default: float, bfloat16")
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
  sub->add_option("-o,--redop", flags->redop, "sum")->capture_default_str();
  sub->add_option("-r,--root", flags->options.root, "of broadcast, reduce, gather, scatter")
      ->capture_default_str();
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
      return run_machine(flags->machine, "collectives", {{"collectives", measure}}, log);
    };
  });
}

}  // namespace ashlar::cli
