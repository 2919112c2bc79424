// Writes a profile.  Numbers are written with the digits that give the same double again; fits and
// the fingerprint are for readers of the file, and are computed again when it is read.
#include <fmt/format.h>

#include "ashlar/machine/profile.h"

namespace ashlar::machine {
namespace {

// A basic string of TOML.
std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\u{:04x}", int(c));
    else
      out += c;
  }
  return out + '"';
}

bool is_bare(std::string_view key) {
  for (const char c : key)
    if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '_' &&
        c != '-')
      return false;
  return !key.empty();
}

std::string key_text(std::string_view key) {
  return is_bare(key) ? std::string(key) : toml_text(key);
}

std::string inline_table(const Quantity& q) {
  std::string out =
      fmt::format("{{ value = {}, unit = {}, source = {}, from = {}", q.value, toml_text(q.unit),
                  toml_text(to_string(q.origin)), toml_text(q.from));
  if (!q.date.empty()) out += fmt::format(", date = {}", toml_text(q.date));
  if (q.spread > 0) out += fmt::format(", spread = {:.4g}", q.spread);
  return out + " }";
}

void add_provenance(const Provenance& p, std::string& out) {
  out += fmt::format("source = {}\nfrom = {}\n", toml_text(to_string(p.origin)), toml_text(p.from));
  if (!p.date.empty()) out += fmt::format("date = {}\n", toml_text(p.date));
  if (p.foreign_share > 0) out += fmt::format("foreign_share = {:.4g}\n", p.foreign_share);
}

void add_points(const std::vector<RatePoint>& points, std::string& out) {
  out += "points = [  # at, p10, median, p90\n";
  for (const RatePoint& p : points)
    out += fmt::format("  [{}, {}, {}, {}],\n", p.at, p.p10, p.median, p.p90);
  out += "]\n";
}

void add_curve(const CollectiveCurve& curve, std::string& out) {
  out += fmt::format(
      "\n[[collective]]\nengine = {}\nop = {}\ndtype = {}\nshape = {}\nranks = {}\ngroups = {}\n",
      toml_text(curve.engine), toml_text(to_string(curve.op)), toml_text(curve.dtype),
      toml_text(curve.shape), curve.ranks, curve.groups);
  if (!curve.algorithm.empty()) out += fmt::format("algorithm = {}\n", toml_text(curve.algorithm));
  if (curve.staging_bytes > 0) out += fmt::format("staging_bytes = {}\n", curve.staging_bytes);
  add_provenance(curve.provenance, out);
  if (const auto law = fit(curve.points, curve.factor())) {
    out += fmt::format("fit = {{ alpha_us = {:.4g}, gbps = {:.4g}, largest_error = {:.3g}",
                       law->alpha_us(), law->gbps(), law->largest_error);
    for (const int percent : {90, 95})
      if (const auto size = saturating_size(curve.points, percent / 100.0))
        out += fmt::format(", saturating_{} = {}", percent, *size);
    out += " }\n";
  }
  std::vector<RatePoint> points;
  for (const CurvePoint& p : curve.points)
    points.push_back({p.size, p.p10_us, p.median_us, p.p90_us});
  add_points(points, out);
}

void add_pairs(const PairTimes& times, std::string& out) {
  out += fmt::format(
      "\n[[pairs]]\nengine = {}\nranks = {}\nlatency_bytes = {}\nbandwidth_bytes = {}\n",
      toml_text(times.engine), times.ranks, times.latency_bytes, times.bandwidth_bytes);
  add_provenance(times.provenance, out);
  out += "times = [  # rank, rank, us, GB/s\n";
  for (const PairOfTimes& pair : times.pairs)
    out +=
        fmt::format("  [{}, {}, {}, {}],\n", pair.first, pair.second, pair.latency_us, pair.gbps);
  out += "]\n";
}

// "[section]" before the first key of each.
void add_quantities(const Profile& profile, std::string& out) {
  std::string section;
  for (const ProfileKey& key : profile_keys()) {
    const Quantity* quantity = profile.find(key.name);
    if (!quantity) continue;
    const size_t dot = key.name.find('.');
    if (section != key.name.substr(0, dot)) {
      section = key.name.substr(0, dot);
      out += fmt::format("\n[{}]\n", section);
    }
    out += fmt::format("{} = {}\n", key.name.substr(dot + 1), inline_table(*quantity));
  }
}

void add_calibration(const Calibration& calibration, std::string& out) {
  out += fmt::format(
      "\n[calibration]\ndate = {}\ncommit = {}\nmean_error = {}\nlargest_error = {}\nlayouts = [",
      toml_text(calibration.date), toml_text(calibration.commit), calibration.mean_error,
      calibration.largest_error);
  for (const std::string& layout : calibration.layouts) out += toml_text(layout) + ", ";
  out += "]\n\n[calibration.factors]\n";
  for (const auto& [category, factor] : calibration.factors)
    out += fmt::format("{} = {}\n", key_text(category), factor);
}

}  // namespace

std::string to_toml(const Profile& profile) {
  std::string out = fmt::format(
      "schema = \"ashlar-machine-1\"\nname = {}\ndate = {}\nlinks = \"{}\"\nfingerprint = \"{}\"\n",
      toml_text(profile.name), toml_text(profile.date),
      profile.links == NodeLinks::kMesh ? "mesh" : "switch", profile.fingerprint());
  if (!profile.identity.empty()) out += "\n[identity]\n";
  for (const auto& [key, text] : profile.identity)
    out += fmt::format("{} = {}\n", key_text(key), toml_text(text));
  add_quantities(profile, out);
  if (profile.kernels)
    out += fmt::format("\n[kernels]\nfile = {}\nxxh3 = \"{:016x}\"\n",
                       toml_text(profile.kernels->file), profile.kernels->xxh3);
  if (profile.products)
    out += fmt::format("\n[products]\nfile = {}\nxxh3 = \"{:016x}\"\nisa = {}\nforms = {}\n",
                       toml_text(profile.products->file), profile.products->xxh3,
                       toml_text(profile.products->isa), profile.products->forms);
  if (profile.calibration) add_calibration(*profile.calibration, out);
  for (const Mount& mount : profile.mounts) {
    out += fmt::format("\n[[mount]]\npath = {}\nfilesystem = {}\n", toml_text(mount.path),
                       toml_text(mount.filesystem));
    for (const auto& [key, quantity] : mount.quantities)
      out += fmt::format("{} = {}\n", key.substr(key.find('.') + 1), inline_table(quantity));
  }
  for (const CollectiveCurve& curve : profile.collectives) add_curve(curve, out);
  for (const PairTimes& times : profile.pairs) add_pairs(times, out);
  for (const RateCurve& curve : profile.rates) {
    out += fmt::format("\n[[rate]]\nsubject = {}\nat_unit = {}\nunit = {}\nthreads = {}\n",
                       toml_text(curve.subject), toml_text(curve.at_unit), toml_text(curve.unit),
                       curve.threads);
    add_provenance(curve.provenance, out);
    add_points(curve.points, out);
  }
  return out;
}

}  // namespace ashlar::machine
