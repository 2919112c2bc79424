// ashlar bench products [RECIPE.toml] [--layout "KEY=VALUE ..."]... [section.key=value]
//
// Without a recipe and without a flag of machine measurements, it prints the fixed list of
// bench/products.h.  Else it is a part of `bench all`: the products of the recipe first, then the
// sweeps.  With --tune it measures forms of the recipe's products instead.
#include <CLI/CLI.hpp>

#include "ashlar/bench/machine/product_tuning.h"
#include "ashlar/bench/machine/recipe_products.h"
#include "ashlar/bench/products.h"
#include "ashlar/cli/bench_machine.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/product_table.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::cli {
namespace {

struct ProductsFlags {
  MachineFlags machine;
  std::string recipe, dtype = "auto", only, peer;
  std::vector<std::string> overrides, layouts;
  int world = 0;
  bool no_sweeps = false, tune = false;
};

// Whether a flag asks for more than the fixed list.
bool characterizes(const ProductsFlags& flags) {
  const MachineFlags& m = flags.machine;
  return !flags.recipe.empty() || (!m.json.empty() && m.json != "-") || !m.csv.empty() ||
         !m.profile.empty() || m.ranks > 1 || m.quick || m.resume || m.strict || m.budget_s != 0;
}

int print_fixed_list(const ProductsFlags& flags) {
  const bench::ProductReport report = bench::measure_products(
      int(flags.machine.threads), products_type(flags.dtype), flags.only, flags.peer);
  print_lines(!flags.machine.json.empty() ? bench::to_json_line(report) : bench::to_text(report));
  return 0;
}

// All that changes the products, as the profile names the command.
std::string products_text(const ProductsFlags& flags) {
  std::string text = flags.recipe.empty() ? "" : " " + flags.recipe;
  for (const std::string& override : flags.overrides) text += " " + override;
  for (const std::string& keys : flags.layouts) text += fmt::format(" --layout \"{}\"", keys);
  if (flags.world > 0) text += fmt::format(" --world {}", flags.world);
  if (flags.dtype != "auto") text += " --dtype " + flags.dtype;
  if (!flags.only.empty()) text += fmt::format(" --only \"{}\"", flags.only);
  if (flags.no_sweeps) text += " --no-sweeps";
  if (flags.tune) text += " --tune";
  return text;
}

void check_products_flags(const ProductsFlags& flags) {
  constexpr int kMostRanks = 1024;
  ASHLAR_REQUIRE(flags.world >= 0 && flags.world <= kMostRanks, kConfig,
                 "--world is {}; expected 1 to {}, or 0: as many as --ranks", flags.world,
                 kMostRanks);
  ASHLAR_REQUIRE(!flags.tune || !flags.machine.profile.empty(), kConfig,
                 "--tune writes a table beside a profile; name it with --profile FILE");
  ASHLAR_REQUIRE(!flags.tune || flags.peer.empty(), kConfig,
                 "--tune compares forms of our own products; leave out --peer");
  if (!flags.recipe.empty()) return;
  const auto refuse = [](bool given, const char* flag) {
    ASHLAR_REQUIRE(!given, kConfig, "{} needs a recipe: ashlar bench products RECIPE {}", flag,
                   flag);
  };
  refuse(!flags.layouts.empty(), "--layout");
  refuse(flags.world > 0, "--world");
  refuse(flags.no_sweeps, "--no-sweeps");
  refuse(flags.tune, "--tune");
  if (!characterizes(flags)) return;
  refuse(!flags.only.empty(), "--only");
  refuse(!flags.peer.empty(), "--peer");
  refuse(flags.dtype != "auto", "--dtype");
}

// The profile names the table and its checksum, so the table is there before the profile is.
void keep_choices(const std::string& path, const std::vector<machine::ProductChoice>& choices,
                  bool disturbed) {
  const auto files = posix_files();
  machine::Profile profile = machine::parse_profile(read_text(*files, path), path);
  std::vector<machine::ProductChoice> older;
  const std::string isa(name_of(kernels::isa()));
  // A table of other kernels says nothing about these.
  if (profile.products && profile.products->isa == isa &&
      profile.products->forms == kernels::kProductFormsVersion)
    older = train::read_product_choices(*files, profile, path);
  const std::string table = file_beside(path, "products.tsv"),
                    text = machine::to_tsv(disturbed ? bench::merged(choices, older)
                                                     : bench::merged(older, choices));
  write_text(*files, table, text);
  profile.products = {last_part(table), xxh3_64(std::as_bytes(std::span(text))), isa,
                      kernels::kProductFormsVersion};
  write_text(*files, path, machine::to_toml(profile));
}

int tune_products(const MachineFlags& machine, const bench::RecipeProductOptions& options,
                  Log& log) {
  std::vector<machine::ProductChoice> choices;
  const auto measure = [&](const bench::Rig& rig) {
    return bench::tune_products(rig, options, choices);
  };
  const int code = run_machine(machine, "products", {{"products", measure}}, log);
  const bool disturbed = code == machine::exit_code(machine::Verdict::kDisturbed, false);
  if (disturbed)
    log.warn("other programs ran meanwhile: forms of products that {} has already stay",
             machine.profile);
  keep_choices(machine.profile, choices, disturbed);
  return code;
}

int run_products(const ProductsFlags& flags, Log& log) {
  check_products_flags(flags);
  if (!characterizes(flags)) return print_fixed_list(flags);
  MachineFlags machine = flags.machine;
  machine.more = products_text(flags);
  if (!flags.recipe.empty()) machine.inputs = {flags.recipe};
  if (flags.recipe.empty())
    return run_machine(machine, "products", {{"products", bench::measure_product_rates}}, log);
  bench::RecipeProductOptions options;
  options.layouts = layouts_of(flags.recipe, flags.overrides, flags.layouts);
  if (flags.dtype != "auto") options.compute = products_type(flags.dtype);
  options.world = flags.world;
  options.only = flags.only;
  options.peer = flags.peer;
  options.sweeps = !flags.no_sweeps;
  if (flags.tune) return tune_products(machine, options, log);
  const auto measure = [&](const bench::Rig& rig) {
    return bench::measure_recipe_products(rig, options);
  };
  return run_machine(machine, "products", {{"products", measure}}, log);
}

}  // namespace

std::vector<bench::Layout> layouts_of(const std::string& recipe,
                                      const std::vector<std::string>& overrides,
                                      const std::vector<std::string>& layouts) {
  const auto files = posix_files();
  std::vector<bench::Layout> list;
  const std::vector<std::string> own = {""};
  for (const std::string& keys : layouts.empty() ? own : layouts) {
    std::vector<std::string> all = overrides;
    for (const std::string& word : split(keys, ' '))
      if (!word.empty()) all.push_back(word);
    list.push_back({keys, train::read_recipe(*files, recipe, all)});
  }
  return list;
}

DType products_type(const std::string& dtype) {
  const DType compute = nn::parse_precision(dtype);
  ASHLAR_REQUIRE(compute != DType::kF64, kConfig, "--dtype is fp64; expected auto, bf16 or fp32");
  return compute;
}

void add_products(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<ProductsFlags>();
  CLI::App* sub = group.add_subcommand(
      "products", "matrix products: at training shapes, of a recipe, over their work");
  sub->alias("gemm");
  add_machine_flags(*sub, flags->machine);
  CLI::Option* json = sub->get_option("--json");
  json->expected(0, 1)->default_str("-");
  json->description("write the rows as one JSON object; - or nothing: to stdout alone");
  sub->add_option("RECIPE", flags->recipe, "TOML file, whose products are measured first");
  sub->add_option("OVERRIDES", flags->overrides, "section.key=value, over the recipe's");
  sub->add_option("--layout", flags->layouts,
                  "overrides of one layout, \"KEY=VALUE KEY=VALUE\"; may be given several times")
      ->allow_extra_args(false);
  sub->add_option("--world", flags->world,
                  "ranks of the layouts, which need not run here; 0: as many as --ranks")
      ->capture_default_str();
  sub->add_option("--dtype", flags->dtype, "auto, bf16 or fp32")->capture_default_str();
  sub->add_option("--only", flags->only, "only rows whose shape and op hold this text");
  sub->add_option("--peer", flags->peer,
                  "a library of oneDNN, version 3 or newer, whose products are measured too");
  sub->add_flag("--no-sweeps", flags->no_sweeps, "only the products of the recipe");
  sub->add_flag("--tune", flags->tune,
                "measure which forms of the recipe's products are faster, into a table beside "
                "--profile that train.machine reads");
  sub->callback(
      [flags, &action] { action = [flags](Log& log) { return run_products(*flags, log); }; });
}

}  // namespace ashlar::cli
