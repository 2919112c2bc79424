// The profile of a machine: what benchmarks measured, or publications say, of one node and of the
// links between nodes.  Plans and simulations read it.
//
// A profile never invents a number: what nobody measured is absent, and whoever needs it names the
// key and the command that measures it (`need`).  docs/formats/machine.md describes the file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/machine/curve.h"
#include "ashlar/machine/laws.h"
#include "ashlar/machine/quantity.h"

namespace ashlar::machine {

// A number that a profile may hold under this name, "section.key".
struct ProfileKey {
  std::string_view name, unit, meaning;
  std::string_view command;  // that measures it; "" where it is a fact of the machine or the site
  std::string_view absent_because = "";  // the usual reason why that command did not; "": none
};
const std::vector<ProfileKey>& profile_keys();

// Where numbers of a curve come from.
struct Provenance {
  Origin origin = Origin::kMeasured;
  std::string from, date;
  double foreign_share = 0;  // processor time of other programs meanwhile, per core and second
};

// The times of a collective over message sizes, for one shape of groups.
struct CollectiveCurve {
  std::string engine;  // "thread", "mpi", "mpi-native", "nccl", "rccl"
  CollectiveOp op = CollectiveOp::kAllReduce;
  std::string dtype;          // "F32", "BF16"
  std::string shape;          // "all", "node", "rail", "stride:2", "block:2", "pairs"
  int64_t ranks = 0;          // of a group
  int64_t groups = 1;         // that ran at once
  std::string algorithm;      // "direct", "ring", "tree", "two-level"; "" if unknown
  int64_t staging_bytes = 0;  // of a round of the exact engines; 0: whole operations
  Provenance provenance;
  std::vector<CurvePoint> points;

  double factor() const { return bus_factor(op, ranks); }
};

// Messages between every two of some ranks, each a way of its own.
struct PairOfTimes {
  int64_t first = 0, second = 0;  // ranks, first < second
  double latency_us = 0, gbps = 0;
};
struct PairTimes {
  static constexpr int64_t kMostRanks = 128;  // of which a profile keeps every pair
  std::string engine;
  int64_t ranks = 0;
  int64_t latency_bytes = 0, bandwidth_bytes = 0;  // of the messages of both numbers
  Provenance provenance;
  std::vector<PairOfTimes> pairs;
};

// A rate over some size: bandwidth over array bytes, products over tokens, attention over length.
struct RatePoint {
  double at = 0;
  double p10 = 0, median = 0, p90 = 0;
};
struct RateCurve {
  std::string subject;  // "stream triad", "attention forward D 128"
  std::string at_unit, unit;
  int64_t threads = 1;
  Provenance provenance;
  std::vector<RatePoint> points;
};

// The numbers of a mounted file system.
struct Mount {
  std::string path, filesystem;
  std::map<std::string, Quantity, std::less<>> quantities;  // keys of the section "storage"
};

// The file with the times of kernels, beside the profile.
struct KernelTableFile {
  std::string file;   // relative to the profile
  uint64_t xxh3 = 0;  // of its bytes
};

// A file that the profile at that path names.
std::string path_beside(const std::string& profile, const std::string& file);

// The file with the forms of products (product_choices.h), beside the profile.
struct ProductTableFile {
  std::string file;   // relative to the profile
  uint64_t xxh3 = 0;  // of its bytes
  std::string isa;    // whose kernels were measured: "amx"
  int64_t forms = 0;  // version of what forms mean
};

// The result of a calibration by whole runs.
struct Calibration {
  std::string date, commit;
  std::vector<std::string> layouts;
  std::map<std::string, double, std::less<>> factors;  // by category
  double mean_error = 0, largest_error = 0;
};

struct Profile {
  std::string name;
  std::string date;  // of the last change
  // Text about the machine: "host", "os", "kernel", "cpu", "isa", "device", "driver", "commit", ...
  std::map<std::string, std::string, std::less<>> identity;
  NodeLinks links = NodeLinks::kSwitch;
  std::map<std::string, Quantity, std::less<>> quantities;  // by names of profile_keys
  std::vector<CollectiveCurve> collectives;
  std::vector<PairTimes> pairs;
  std::vector<RateCurve> rates;
  std::vector<Mount> mounts;
  std::optional<KernelTableFile> kernels;
  std::optional<ProductTableFile> products;
  std::optional<Calibration> calibration;

  const Quantity* find(std::string_view key) const;
  // kConfig where it is absent: names the profile, the key and the command that measures it.
  const Quantity& need(std::string_view key) const;
  // Replaces a number; its key must be one of profile_keys.
  void set(std::string_view key, Quantity quantity);
  void set(CollectiveCurve curve);  // replaces the curve of the same engine, op, dtype and groups
  void set(RateCurve curve);        // replaces the curve of the same subject and threads
  void set(PairTimes times);        // replaces those of the same engine and ranks
  // The links of a cluster of such nodes, from the section "topology".
  Cluster cluster() const;
  // All keys and curves that hold assumed numbers, for the warning of a plan.
  std::vector<std::string> assumed() const;
  // 16 hexadecimal digits of the machine, of identity and facts alone: measuring again keeps it.
  std::string fingerprint() const;
};

// Keys that a command measures and the profile lacks.
std::vector<ProfileKey> not_measured(const Profile& profile);

// `source` names the file for messages.  Unknown keys, wrong units and negative numbers are errors
// (kConfig).
Profile parse_profile(const std::string& text, const std::string& source);
std::string to_toml(const Profile& profile);

// The profiles that the program carries: "mi300x-pollara", "h200", "h100", "a100-dgx".
std::vector<std::string> shipped_names();
const char* shipped_text(std::string_view name);  // null for another name

}  // namespace ashlar::machine
