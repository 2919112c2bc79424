// Runs whose kernels read a table of products (train.machine): the same losses bit for bit, and
// tables of other machines and kernels refused.
#include "ashlar/train/product_table.h"

#include <gtest/gtest.h>

#include "ashlar/core/checksum.h"
#include "ashlar/core/process.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/dry_rank.h"
#include "ashlar/train/start.h"
#include "tests/support/errors.h"
#include "tests/train/tiny_run.h"

namespace ashlar::train {
namespace {

using ashlar::testing_support::message_of;
using kernels::ProductEntry;
using kernels::ProductForm;
using machine::ProductChoice;

// A form that no rule would choose, for every product of a step.
std::vector<ProductChoice> choices_of_step(const Recipe& recipe) {
  const DType compute = nn::resolve_precision(recipe.train.precision);
  Threads threads(1);
  DryRank dry(recipe, compute, 1, 0, threads);
  std::vector<ProductChoice> choices;
  for (const auto& [call, count] : dry.calls_of_step()) {
    ProductEntry entry;
    if (!kernels::set_op(call.op, entry.key)) continue;
    entry.key.compute = call.dtype;
    entry.key.groups = call.dims.groups;
    entry.key.rows = call.dims.rows;
    entry.key.cols = call.dims.cols;
    entry.key.depth = call.dims.depth;
    entry.key.threads = int32_t(recipe.train.threads);
    entry.form = {32, 1, kernels::TaskOrder::kPanelsFirst, kernels::RowCopies::kAlways};
    for (const DType result : {DType::kF32, DType::kBF16}) {
      entry.key.result = result;
      ProductChoice choice = choice_of(entry);
      choice.rule_us = choice.form_us = 1;
      const auto is_same = [&](const ProductChoice& other) { return choice.same_product(other); };
      if (std::none_of(choices.begin(), choices.end(), is_same)) choices.push_back(choice);
    }
  }
  return choices;
}

machine::Profile this_machine() {
  machine::Profile profile;
  profile.name = "here";
  profile.identity["cpu"] = processor_name();
  return profile;
}

// Writes both files; returns the profile's path.
std::string write_profile(FileSystem& files, const TemporaryDirectory& root,
                          machine::Profile profile, std::span<const ProductChoice> choices) {
  const std::string text = machine::to_tsv(choices);
  if (!profile.products)
    profile.products = {"machine.products.tsv", xxh3_64(std::as_bytes(std::span(text))),
                        std::string(name_of(kernels::isa())), kernels::kProductFormsVersion};
  write_text(files, root / "machine.products.tsv", text);
  write_text(files, root / "machine.toml", machine::to_toml(profile));
  return root / "machine.toml";
}

TEST(ProductTables, LossesAreTheSameBits) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  std::vector<std::string> overrides = {"train.steps=3", "train.threads=2", "train.eval_every=0",
                                        "checkpoint.every=-1"};
  const Recipe recipe = tiny_run(*files, root, overrides);
  const std::string profile = write_profile(*files, root, this_machine(), choices_of_step(recipe));
  std::vector<std::vector<double>> losses;
  std::string said;
  for (const char* run : {"rules", "table"}) {
    Recipe mine = recipe;
    mine.train.run_dir = root / run;
    if (run == std::string("table")) mine.train.machine = profile;
    Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
    start_run(mine, *files, log, {.num_ranks = 1, .report = {}});
    std::vector<double>& list = losses.emplace_back();
    for (const std::string& line :
         split(read_text(*files, mine.train.run_dir + "/metrics.jsonl"), '\n'))
      if (!line.empty() && nlohmann::json::parse(line).contains("loss"))
        list.push_back(nlohmann::json::parse(line)["loss"]);
  }
  EXPECT_GE(losses[0].size(), 3u);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_NE(said.find("machine.toml has "), said.npos) << said;
  EXPECT_EQ(said.find(": 0 of "), said.npos) << said;  // the table served most calls
}

TEST(ProductTables, OthersAreRefused) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  const auto refusal = [&](machine::Profile profile, ErrorKind kind = ErrorKind::kConfig) {
    const std::string path = write_profile(*files, root, std::move(profile), {});
    return message_of(kind, [&] { read_product_table(*files, path); });
  };
  const auto with = [](std::string isa, int64_t forms) {
    machine::Profile profile = this_machine();
    profile.products = {"machine.products.tsv", 7, std::move(isa), forms};
    return profile;
  };
  const std::string isa(name_of(kernels::isa()));
  EXPECT_NE(refusal(with("vax", 1)).find("is for the kernels of vax, but this run's are " + isa),
            std::string::npos);
  EXPECT_NE(refusal(with(isa, 99)).find("forms of version 99, this program's kernels of version"),
            std::string::npos);
  EXPECT_NE(refusal(with(isa, kernels::kProductFormsVersion), ErrorKind::kCorrupt)
                .find("its checksum is not the one in "),
            std::string::npos);
  machine::Profile other = with(isa, kernels::kProductFormsVersion);
  other.identity["cpu"] = "an abacus";
  EXPECT_NE(refusal(other).find("the profile of another machine: cpu is an abacus, here "),
            std::string::npos);
  write_text(*files, root / "machine.toml", machine::to_toml(this_machine()));
  const std::string none =
      message_of(ErrorKind::kConfig, [&] { read_product_table(*files, root / "machine.toml"); });
  EXPECT_NE(none.find("has no table of products; measure one: ashlar bench products RECIPE --tune "
                      "--profile "),
            none.npos)
      << none;
  EXPECT_EQ(read_product_table(*files, ""), nullptr);
}

}  // namespace
}  // namespace ashlar::train
