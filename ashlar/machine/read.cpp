// Reads a profile: TOML is turned into JSON, whose members Fields checks.
#include <nlohmann/json.hpp>
#include <set>

#include "ashlar/core/fields.h"
#include "ashlar/machine/profile.h"
#include "ashlar/machine/toml.h"

namespace ashlar::machine {
namespace {

constexpr std::string_view kSchema = "ashlar-machine-1";

double nonnegative(const Fields& fields, std::string_view key) {
  const double value = fields.number(key);
  if (!(value >= 0)) fields.fail("{} is {}; expected a number from 0 on", key, value);
  return value;
}

Origin origin_of(const Fields& fields) {
  const std::string& text = fields.text("source");
  for (const Origin origin :
       {Origin::kMeasured, Origin::kPublished, Origin::kVendor, Origin::kAssumed})
    if (to_string(origin) == text) return origin;
  fields.fail("source is '{}'; expected measured, published, vendor or assumed", printable(text));
}

std::string text_or(const Fields& fields, std::string_view key) {
  return fields.has(key) ? fields.text(key) : std::string();
}

Quantity quantity_of(const Fields& fields, std::string_view unit) {
  fields.only({"value", "unit", "source", "from", "date", "spread"});
  Quantity result;
  result.value = nonnegative(fields, "value");
  result.unit = fields.text("unit");
  if (result.unit != unit) fields.fail("unit is '{}'; expected {}", printable(result.unit), unit);
  result.origin = origin_of(fields);
  result.from = fields.text("from");
  result.date = text_or(fields, "date");
  if (fields.has("spread")) result.spread = nonnegative(fields, "spread");
  return result;
}

// Every key of a section that profile_keys knows.
void read_quantities(const Fields& section, const Json& members, std::string_view prefix,
                     std::map<std::string, Quantity, std::less<>>& quantities) {
  for (const auto& item : members.items()) {
    const std::string name = fmt::format("{}.{}", prefix, item.key());
    std::vector<std::string> known;
    const ProfileKey* found = nullptr;
    for (const ProfileKey& key : profile_keys()) {
      known.emplace_back(key.name);
      if (key.name == name) found = &key;
    }
    if (!found) section.fail("there is no key {}{}", printable(name), suggestion(name, known));
    quantities.emplace(name, quantity_of(section.object(item.key()), found->unit));
  }
}

Provenance provenance_of(const Fields& fields) {
  Provenance result{origin_of(fields), fields.text("from"), text_or(fields, "date"), 0};
  if (fields.has("foreign_share")) result.foreign_share = nonnegative(fields, "foreign_share");
  return result;
}

// A list of [at, p10, median, p90].
std::vector<RatePoint> points_of(const Fields& fields) {
  std::vector<RatePoint> result;
  for (const Json& row : fields.array("points")) {
    if (!row.is_array() || row.size() != 4 ||
        !std::all_of(row.begin(), row.end(), [](const Json& v) { return v.is_number(); }))
      fields.fail("points holds {}; expected [at, p10, median, p90]", shown(row));
    const RatePoint point{row[0].get<double>(), row[1].get<double>(), row[2].get<double>(),
                          row[3].get<double>()};
    if (!(point.at >= 0 && point.p10 >= 0 && point.p10 <= point.median &&
          point.median <= point.p90))
      fields.fail("points holds {}; expected p10 <= median <= p90, from 0 on", shown(row));
    result.push_back(point);
  }
  return result;
}

CollectiveCurve collective_curve_of(const Fields& fields) {
  fields.only({"engine", "op", "dtype", "shape", "ranks", "groups", "algorithm", "staging_bytes",
               "source", "from", "date", "foreign_share", "points", "fit"});
  CollectiveCurve result;
  result.engine = fields.text("engine");
  try {
    result.op = collective_of(fields.text("op"));
  } catch (const Error& error) {
    fields.fail("{}", error.what());
  }
  result.dtype = fields.text("dtype");
  result.shape = fields.text("shape");
  result.ranks = fields.integer("ranks", 1, int64_t{1} << 24);
  result.groups = fields.integer("groups", 1, int64_t{1} << 24);
  result.algorithm = text_or(fields, "algorithm");
  if (fields.has("staging_bytes")) result.staging_bytes = fields.count("staging_bytes");
  result.provenance = provenance_of(fields);
  for (const RatePoint& p : points_of(fields))
    result.points.push_back({p.at, p.p10, p.median, p.p90});
  return result;
}

RateCurve rate_curve_of(const Fields& fields) {
  fields.only({"subject", "at_unit", "unit", "threads", "source", "from", "date", "foreign_share",
               "points"});
  RateCurve result;
  result.subject = fields.text("subject");
  result.at_unit = fields.text("at_unit");
  result.unit = fields.text("unit");
  result.threads = fields.integer("threads", 1, int64_t{1} << 24);
  result.provenance = provenance_of(fields);
  result.points = points_of(fields);
  return result;
}

PairTimes pair_times_of(const Fields& fields) {
  fields.only({"engine", "ranks", "latency_bytes", "bandwidth_bytes", "source", "from", "date",
               "foreign_share", "times"});
  PairTimes result;
  result.engine = fields.text("engine");
  result.ranks = fields.integer("ranks", 2, PairTimes::kMostRanks);
  result.latency_bytes = fields.count("latency_bytes");
  result.bandwidth_bytes = fields.count("bandwidth_bytes");
  result.provenance = provenance_of(fields);
  for (const Json& row : fields.array("times")) {
    const bool numbers = row.is_array() && row.size() == 4 && row[0].is_number_integer() &&
                         row[1].is_number_integer() && row[2].is_number() && row[3].is_number();
    if (!numbers) fields.fail("times holds {}; expected [rank, rank, us, GB/s]", shown(row));
    const PairOfTimes pair{row[0].get<int64_t>(), row[1].get<int64_t>(), row[2].get<double>(),
                           row[3].get<double>()};
    if (!(0 <= pair.first && pair.first < pair.second && pair.second < result.ranks &&
          pair.latency_us >= 0 && pair.gbps >= 0))
      fields.fail("times holds {}; expected two ascending ranks below {} and numbers from 0 on",
                  shown(row), result.ranks);
    result.pairs.push_back(pair);
  }
  return result;
}

Calibration calibration_of(const Fields& fields, const Json& json) {
  fields.only({"date", "commit", "layouts", "factors", "mean_error", "largest_error"});
  Calibration result;
  result.date = fields.text("date");
  result.commit = fields.text("commit");
  result.mean_error = nonnegative(fields, "mean_error");
  result.largest_error = nonnegative(fields, "largest_error");
  for (const Json& layout : fields.array("layouts")) {
    if (!layout.is_string()) fields.fail("layouts holds {}; expected text", shown(layout));
    result.layouts.push_back(layout.get<std::string>());
  }
  const Fields factors = fields.object("factors");
  for (const auto& item : json.at("factors").items())
    result.factors.emplace(item.key(), nonnegative(factors, item.key()));
  return result;
}

// body(fields, json) for every table of the list `key`, if there is one.
template <typename Body>
void for_tables(const Fields& root, std::string_view key, const std::string& source, Body body) {
  if (!root.has(key)) return;
  size_t number = 0;
  for (const Json& item : root.array(key))
    body(Fields(item, fmt::format("{}: {} {}", source, key, ++number), ErrorKind::kConfig), item);
}

void read_identity(const Fields& root, const Json& json, Profile& profile) {
  if (!root.has("identity")) return;
  const Fields identity = root.object("identity");
  for (const auto& item : json.at("identity").items())
    profile.identity.emplace(item.key(), identity.text(item.key()));
}

Mount mount_of(const Fields& fields, const Json& json) {
  Json quantities = json;
  quantities.erase("path");
  quantities.erase("filesystem");
  Mount mount{fields.text("path"), text_or(fields, "filesystem"), {}};
  read_quantities(fields, quantities, "storage", mount.quantities);
  return mount;
}

}  // namespace

Profile parse_profile(const std::string& text, const std::string& source) {
  const Json json = json_of_toml(text, source, "a machine profile");
  const Fields root(json, source, ErrorKind::kConfig);
  if (const std::string& schema = root.text("schema"); schema != kSchema)
    root.fail("schema is '{}'; expected {}", printable(schema), kSchema);
  Profile profile;
  profile.name = root.text("name");
  profile.date = text_or(root, "date");
  const std::string links = root.text("links");
  if (links != "mesh" && links != "switch")
    root.fail("links is '{}'; expected mesh or switch", printable(links));
  profile.links = links == "mesh" ? NodeLinks::kMesh : NodeLinks::kSwitch;
  read_identity(root, json, profile);
  std::set<std::string_view> sections;
  for (const ProfileKey& key : profile_keys())
    sections.insert(key.name.substr(0, key.name.find('.')));
  const std::set<std::string_view> others = {
      "schema", "name",    "date",       "links",       "fingerprint", "identity", "mount",
      "rate",   "kernels", "collective", "calibration", "pairs",       "products"};
  for (const auto& item : json.items()) {
    if (others.contains(item.key())) continue;
    if (item.key() == "storage" || !sections.contains(item.key()))
      root.fail("there is no section [{}]", printable(item.key()));
    read_quantities(root.object(item.key()), item.value(), item.key(), profile.quantities);
  }
  for_tables(root, "collective", source, [&](const Fields& fields, const Json&) {
    profile.collectives.push_back(collective_curve_of(fields));
  });
  for_tables(root, "rate", source, [&](const Fields& fields, const Json&) {
    profile.rates.push_back(rate_curve_of(fields));
  });
  for_tables(root, "pairs", source, [&](const Fields& fields, const Json&) {
    profile.pairs.push_back(pair_times_of(fields));
  });
  for_tables(root, "mount", source, [&](const Fields& fields, const Json& mount) {
    profile.mounts.push_back(mount_of(fields, mount));
  });
  if (root.has("kernels")) {
    const Fields kernels = root.object("kernels");
    kernels.only({"file", "xxh3"});
    profile.kernels = {kernels.text("file"), kernels.hex("xxh3", 16)};
  }
  if (root.has("products")) {
    const Fields products = root.object("products");
    products.only({"file", "xxh3", "isa", "forms"});
    profile.products = {products.text("file"), products.hex("xxh3", 16), products.text("isa"),
                        products.count("forms")};
  }
  if (root.has("calibration"))
    profile.calibration = calibration_of(root.object("calibration"), json.at("calibration"));
  return profile;
}

}  // namespace ashlar::machine
