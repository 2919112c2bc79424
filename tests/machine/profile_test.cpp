#include "ashlar/machine/profile.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ashlar::machine {
namespace {

Profile small_profile() {
  Profile p;
  p.name = "two cores \"here\"";
  p.date = "2026-11-26";
  p.identity = {{"cpu", "Intel Xeon"}, {"odd key", "a\\b\n"}};
  p.set("node.devices", {2, "1", Origin::kMeasured, "the launcher", "2026-11-26", 0});
  p.set("memory.triad",
        {26.9, "GB/s", Origin::kMeasured, "ashlar bench stream", "2026-11-26", 0.03});
  p.set("topology.link", {12.5, "GB/s", Origin::kAssumed, "a guess", "", 0});
  CollectiveCurve curve;
  curve.engine = "thread";
  curve.dtype = "F32";
  curve.shape = "all";
  curve.ranks = 2;
  curve.staging_bytes = 8 << 20;
  curve.provenance = {Origin::kMeasured, "ashlar bench collectives", "2026-11-26", 0.01};
  for (double size = 1024; size <= 1 << 24; size *= 4)
    curve.points.push_back({size, 5 + size / 1e4, 6 + size / 1e4, 0.1 + 7 + size / 1e4});
  p.set(curve);
  p.set(RateCurve{"stream triad", "B", "GB/s", 2, curve.provenance, {{65536, 90, 95.25, 99}}});
  p.mounts.push_back(
      {"/data",
       "ext4",
       {{"storage.iops",
         {9e4, "1/s", Origin::kMeasured, "ashlar bench storage", "2026-11-26", 0.1}}}});
  p.pairs.push_back({"mpi",
                     3,
                     8,
                     4 << 20,
                     {Origin::kMeasured, "ashlar bench p2p", "2026-11-26", 0.02},
                     {{0, 1, 3.5, 9.25}, {0, 2, 4, 9}, {1, 2, 20, 1.5}}});
  p.kernels = {"machine.kernels.tsv", 0x0123456789abcdefu};
  p.products = {"machine.products.tsv", 0xfedcba9876543210u, "amx", 1};
  p.calibration = {"2026-11-26", "abc", {"zero 1", "tp 2"}, {{"products", 1.05}}, 0.04, 0.079};
  return p;
}

TEST(ProfileFile, ReadsWhatItWrote) {
  const Profile p = small_profile();
  const std::string text = to_toml(p);
  const Profile again = parse_profile(text, "machine.toml");
  EXPECT_EQ(to_toml(again), text);
  EXPECT_EQ(again.name, p.name);
  EXPECT_EQ(again.identity, p.identity);
  EXPECT_EQ(again.need("memory.triad").value, 26.9);
  EXPECT_EQ(again.need("memory.triad").spread, 0.03);
  ASSERT_EQ(again.collectives.size(), 1u);
  EXPECT_EQ(again.collectives[0].points.size(), p.collectives[0].points.size());
  EXPECT_EQ(again.collectives[0].points[2].p90_us, p.collectives[0].points[2].p90_us);
  EXPECT_EQ(again.collectives[0].staging_bytes, 8 << 20);
  EXPECT_EQ(again.rates[0].points[0].median, 95.25);
  EXPECT_EQ(again.mounts[0].quantities.at("storage.iops").value, 9e4);
  ASSERT_EQ(again.pairs[0].pairs.size(), 3u);
  EXPECT_EQ(again.pairs[0].pairs[2].gbps, 1.5);
  EXPECT_EQ(again.pairs[0].provenance.foreign_share, 0.02);
  EXPECT_EQ(again.kernels->xxh3, 0x0123456789abcdefu);
  EXPECT_EQ(again.products->xxh3, 0xfedcba9876543210u);
  EXPECT_EQ(again.products->isa, "amx");
  EXPECT_EQ(again.products->forms, 1);
  EXPECT_EQ(again.calibration->factors.at("products"), 1.05);
  EXPECT_EQ(again.assumed(), std::vector<std::string>{"topology.link"});
}

TEST(ProfileFile, NewMeasurementsReplaceOldOnes) {
  Profile p = small_profile();
  const std::string fingerprint = p.fingerprint();
  CollectiveCurve curve = p.collectives[0];
  curve.points.resize(4);
  p.set(curve);
  ASSERT_EQ(p.collectives.size(), 1u);
  EXPECT_EQ(p.collectives[0].points.size(), 4u);
  curve.ranks = 4;
  p.set(curve);
  EXPECT_EQ(p.collectives.size(), 2u);
  p.set("memory.triad", {30, "GB/s", Origin::kMeasured, "ashlar bench stream", "2026-11-27", 0});
  EXPECT_EQ(p.fingerprint(), fingerprint);  // the same machine
  p.set("node.devices", {4, "1", Origin::kMeasured, "the launcher", "2026-11-26", 0});
  EXPECT_NE(p.fingerprint(), fingerprint);
}

TEST(ProfileFile, NamesWhatIsMissingAndWhoMeasuresIt) {
  const std::string message = testing_support::message_of(
      ErrorKind::kConfig, [] { small_profile().need("compute.sustained_bf16"); });
  EXPECT_NE(message.find("compute.sustained_bf16"), std::string::npos) << message;
  EXPECT_NE(message.find("ashlar bench products --profile"), std::string::npos) << message;
}

TEST(ProfileFile, RefusesMalformedFiles) {
  const std::string text = to_toml(small_profile());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return testing_support::message_of(ErrorKind::kConfig,
                                       [&] { parse_profile(changed, "m.toml"); });
  };
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"ashlar-machine-1", "ashlar-machine-2", "expected ashlar-machine-1"},
      {"links = \"switch\"", "links = \"torus\"", "expected mesh or switch"},
      {"triad = ", "triads = ", "did you mean 'memory.triad'"},
      {"value = 26.9", "value = -1", "expected a number from 0 on"},
      {"value = 26.9", "value = nan", "value"},
      {"unit = \"GB/s\"", "unit = \"GiB/s\"", "expected GB/s"},
      {"source = \"measured\"", "source = \"guessed\"", "expected measured"},
      {", from = \"the launcher\"", "", "'from' is missing"},
      {"op = \"all_reduce\"", "op = \"all_redcue\"", "all_reduce"},
      {"ranks = 2", "ranks = 0", "expected an integer from 1"},
      {"[memory]", "[memroy]", "there is no section [memroy]"},
      {"xxh3 = \"0123456789abcdef\"", "xxh3 = \"12\"", "16 lower-case hex digits"},
      {"[1, 2, 20, 1.5]", "[2, 1, 20, 1.5]", "two ascending ranks below 3"},
      {"[1, 2, 20, 1.5]", "[1, 2, 20]", "expected [rank, rank, us, GB/s]"},
      {"name = ", "name ", "expected TOML"},
  };
  for (const auto& [from, to, expected] : cases) {
    const std::string message = with(from, to);
    EXPECT_NE(message.find(expected), std::string::npos) << message;
    EXPECT_EQ(message.find("m.toml"), 0u) << message;
  }
}

TEST(ShippedProfiles, EveryNumberHasItsSource) {
  EXPECT_EQ(shipped_names(),
            (std::vector<std::string>{"a100-dgx", "h100", "h200", "mi300x-pollara"}));
  EXPECT_EQ(shipped_text("h300"), nullptr);
  for (const std::string& name : shipped_names()) {
    const Profile p = parse_profile(shipped_text(name), name);
    EXPECT_EQ(p.name, name);
    for (const auto& [key, quantity] : p.quantities) {
      EXPECT_NE(quantity.origin, Origin::kMeasured) << name << " " << key;
      EXPECT_NE(quantity.from, "") << name << " " << key;
    }
    for (const CollectiveCurve& curve : p.collectives) {
      EXPECT_EQ(curve.provenance.origin, Origin::kPublished) << name;
      EXPECT_NE(curve.provenance.from, "") << name;
    }
    EXPECT_EQ(p.cluster().devices, 8);
    p.need("compute.sustained_bf16");
    p.need("memory.copy");
  }
}

// The busbw of the curves are the published ones.
TEST(ShippedProfiles, CurvesGiveThePublishedBandwidths) {
  const Profile p = parse_profile(shipped_text("mi300x-pollara"), "mi300x-pollara");
  const auto busbw = [](const CollectiveCurve& curve) {
    const CurvePoint& last = curve.points.back();
    return curve.factor() * last.size / last.median_us * 1e-3;
  };
  EXPECT_NEAR(busbw(p.collectives[0]), 47.671, 0.01);
  EXPECT_NEAR(busbw(p.collectives[1]), 312.912, 0.01);
  const Profile h200 = parse_profile(shipped_text("h200"), "h200");
  EXPECT_NEAR(busbw(h200.collectives[0]), 367, 0.01);
  EXPECT_NEAR(busbw(h200.collectives[1]), 361, 0.01);
  EXPECT_NEAR(busbw(h200.collectives[2]), 363, 0.01);
  EXPECT_EQ(h200.assumed(), (std::vector<std::string>{"compute.sustained_bf16", "memory.copy",
                                                      "topology.link_latency"}));
}

}  // namespace
}  // namespace ashlar::machine
