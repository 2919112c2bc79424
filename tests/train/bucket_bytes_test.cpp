// A run whose recipe leaves the size of buckets to the profile of its machine: it says the size,
// and sums gradients as its dry run does.
#include "ashlar/train/bucket_bytes.h"

#include <gtest/gtest.h>

#include "ashlar/core/checksum.h"
#include "ashlar/core/process.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/kernels/product_forms.h"
#include "ashlar/machine/product_choices.h"
#include "ashlar/machine/profile.h"
#include "ashlar/nn/precision.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/start.h"
#include "tests/support/errors.h"
#include "tests/train/tiny_run.h"

namespace ashlar::train {
namespace {

constexpr int kTwoRanks = 2;

// A profile of this machine whose links are saturated from 64 KiB on, with a table of no products.
std::string write_saturated_profile(FileSystem& files, const TemporaryDirectory& root) {
  machine::Profile profile;
  profile.name = "here";
  profile.identity["cpu"] = processor_name();
  machine::CollectiveCurve curve;
  curve.engine = "thread";
  curve.op = machine::CollectiveOp::kReduceScatter;
  curve.dtype = "F32";
  curve.shape = "all";
  curve.ranks = kTwoRanks;
  curve.provenance = {machine::Origin::kMeasured, "a test", "2026-11-27", 0};
  for (const auto& [size, us] :
       {std::pair{1024.0, 10.0}, {65536.0, 20.0}, {262144.0, 80.0}, {1048576.0, 320.0}})
    curve.points.push_back({size, us, us, us});
  profile.collectives.push_back(curve);
  const std::string text = machine::to_tsv({});
  profile.products = {"machine.products.tsv", xxh3_64(std::as_bytes(std::span(text))),
                      std::string(kernels::name_of(kernels::isa())), kernels::kProductFormsVersion};
  write_text(files, root / "machine.products.tsv", text);
  write_text(files, root / "machine.toml", machine::to_toml(profile));
  return root / "machine.toml";
}

int64_t launches_of_sums(const Recipe& recipe) {
  const RunPlan plan =
      plan_run(recipe, nn::resolve_precision(recipe.train.precision), kTwoRanks, 1, 0);
  int64_t launches = 0;
  for (const GroupTraffic& t : plan.traffic)
    if (t.group == "data" && t.row.label == "gradients") launches += t.row.launches;
  return launches;
}

TEST(AutoBuckets, AreThoseOfTheDryRun) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  const Recipe recipe =
      tiny_run(*files, root,
               {"train.steps=3", "train.trace_steps=1", "train.eval_every=0", "checkpoint.every=-1",
                "model.moe_intermediate_size=96", "parallel.bucket_bytes=auto",
                "train.machine=" + write_saturated_profile(*files, root)});
  std::string said;
  Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
  start_run(recipe, *files, log, {.num_ranks = kTwoRanks, .report = {}});
  EXPECT_NE(said.find("parallel.bucket_bytes is auto: 65536\n"), said.npos) << said;
  EXPECT_NE(read_text(*files, root / "run/recipe.toml").find("\nbucket_bytes = 65536\n"),
            std::string::npos);

  const auto trace =
      nlohmann::json::parse(read_text(*files, root / "run/trace/steps-2-2-rank-0.json"));
  int64_t launches = 0;
  for (const auto& event : trace.at("traceEvents"))
    launches += event.value("cat", "") == "operation" &&
                event.at("name") == "reduce_scatter gradients" && event.at("ph") == "X";
  EXPECT_EQ(launches, launches_of_sums(with_bucket_bytes(*files, recipe, kTwoRanks)));
  Recipe usual = recipe;
  usual.parallel.bucket_bytes = ParallelSpec().bucket_bytes;
  EXPECT_GT(launches, launches_of_sums(usual));
}

TEST(AutoBuckets, NeedTheProfileOfTheRecipe) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  Recipe recipe = tiny_run(*files, root, {"parallel.bucket_bytes=auto"});
  const auto refusal = [&](ErrorKind kind) {
    Log log([](std::string_view) {});
    return ashlar::testing_support::message_of(
        kind, [&] { start_run(recipe, *files, log, {.num_ranks = kTwoRanks, .report = {}}); });
  };
  EXPECT_NE(refusal(ErrorKind::kConfig).find("train.machine names no profile to take it from"),
            std::string::npos);
  recipe.train.machine = root / "absent.toml";
  EXPECT_NE(refusal(ErrorKind::kStorage).find("absent.toml"), std::string::npos);
  EXPECT_FALSE(files->stat(root / "run/recipe.toml"));
  recipe.train.machine = "";
  EXPECT_EQ(with_bucket_bytes(*files, recipe, 1).parallel.bucket_bytes,
            ParallelSpec().bucket_bytes);
}

}  // namespace
}  // namespace ashlar::train
