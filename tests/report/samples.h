// A profile and a plan with every part that their pages show.
#pragma once

#include <fmt/format.h>

#include <string>

#include "ashlar/machine/profile.h"

namespace ashlar::report {

inline machine::Profile sample_profile() {
  using machine::Origin;
  machine::Profile p;
  p.name = "two cores";
  p.date = "2026-11-26";
  p.identity = {{"cpu", "Intel Xeon"}, {"isa", "amx"}};
  const auto measured = [](double value, const char* unit, double spread) {
    return machine::Quantity{value,        unit,  Origin::kMeasured, "ashlar bench all",
                             "2026-11-26", spread};
  };
  p.set("node.devices", measured(4, "1", 0));
  p.set("topology.link", {12.5, "GB/s", Origin::kAssumed, "a guess", "", 0});
  p.set("topology.nic", {5, "GB/s", Origin::kAssumed, "a guess", "", 0});
  p.set("topology.link_usable", {0.8, "1", Origin::kAssumed, "a guess", "", 0});
  p.set("compute.sustained_bf16", measured(4.4, "TFLOP/s", 0.02));
  p.set("memory.triad", measured(26.9, "GB/s", 0.03));
  p.mounts.push_back({"/data",
                      "ext4",
                      {{"storage.read", measured(2, "GB/s", 0.5)},
                       {"storage.write", measured(0.8, "GB/s", 0.1)}}});
  p.mounts[0].quantities["storage.iops"] = measured(70000, "1/s", 0);
  p.set("node.l2", {2 << 20, "B", Origin::kMeasured, "the system", "", 0});
  p.calibration = {"2026-11-26", "abc", {"zero 1"}, {{"products", 1.05}}, 0.04, 0.079};
  const machine::Provenance by = {Origin::kMeasured, "ashlar bench all", "2026-11-26", 0.01};
  for (const auto op : {machine::CollectiveOp::kAllReduce, machine::CollectiveOp::kBarrier})
    for (const int64_t ranks : {2, 4}) {
      machine::CollectiveCurve curve;
      curve.engine = "thread";
      curve.op = op;
      curve.dtype = "F32";
      curve.shape = "all";
      curve.ranks = ranks;
      curve.provenance = by;
      if (op == machine::CollectiveOp::kBarrier) {
        curve.points = {{0, 3, 4, 5}};
      } else {
        for (double size = 8; size <= 1 << 24; size *= 4) {
          const double time = 6 + curve.factor() * size / 10e3;  // 10 GB/s
          curve.points.push_back({size, 0.9 * time, time, 1.2 * time});
        }
      }
      p.set(curve);
    }
  p.set(machine::PairTimes{
      "thread", 3, 8, 4 << 20, by, {{0, 1, 3, 9}, {0, 2, 3.5, 8.8}, {1, 2, 12, 2}}});
  for (const int64_t threads : {1, 2})
    p.set(machine::RateCurve{
        "stream triad", "B", "GB/s", threads, by, {{4096, 90, 95, 99}, {1 << 20, 40, 50, 51}}});
  p.set(machine::RateCurve{"product BF16 K 1024",
                           "GFLOP",
                           "TFLOP/s",
                           2,
                           by,
                           {{0.01, 1, 1.2, 1.3}, {0.5, 4, 4.1, 4.2}, {2, 4.2, 4.3, 4.4}}});
  for (const int64_t N : {512, 1024})
    p.set(machine::RateCurve{fmt::format("product BF16 K 7168 N {}", N),
                             "rows",
                             "TFLOP/s",
                             2,
                             by,
                             {{256, 1, 2, 3}, {512, 1, 2.5, 3}}});
  p.set(machine::RateCurve{"attention forward D 64",
                           "tokens",
                           "TFLOP/s",
                           2,
                           by,
                           {{512, 1, 1, 1}, {1024, 1.9, 1.9, 1.9}, {2048, 2, 2, 2}}});
  p.set(machine::RateCurve{"norm forward", "elements", "GB/s", 2, by, {{1 << 20, 20, 22, 24}}});
  p.set(machine::RateCurve{"whatever comes", "tokens", "tokens/s", 2, by, {{512, 7, 7, 7}}});
  return p;
}

// The output of `ashlar plan dry-run --json`, shortened.
inline std::string sample_plan(int tp) {
  const std::string text = R"({"recipe":"nano","ranks":4,
    "parallel":{"dp":DP,"cp":1,"tp":TP,"ep":1,"pp":1,"schedule":"1f1b","zero":1},
    "model":{"parameters":22600000},"precision":"bf16","tokens_per_step":8192,
    "classes":[
      {"ranks":[0],"memory_bytes":{"weights":2000000000,"saved":1000000000,"total":3000000000},
       "allocations":12,"workspace_peak":"loss",
       "step":{"flop":5000000000,"bytes":3000000000,
         "kernels":{"linear_forward":{"flop":5000000000,"bytes":1000000},
                    "add":{"flop":1000,"bytes":2999000000}}},
       "traffic":[{"axis":"dp","ranks":4,"collective":"all_gather","label":"weights","launches":3,
                   "sent_bytes":1000000,"received_bytes":3000000}]},
      {"ranks":[1,2,3],"memory_bytes":{"weights":1000000000,"saved":900000000,"total":1900000000},
       "allocations":12,"workspace_peak":"loss","step":{"kernels":{}},"traffic":[]}],
    "checkpoint":{"files_per_step":9}})";
  std::string out = text;
  const auto set = [&](const std::string& name, int value) {
    const size_t at = out.find(name);
    out.replace(at, name.size(), std::to_string(value));
  };
  set("DP", 4 / tp);
  set("TP", tp);
  return out;
}

// The outputs of `ashlar plan search --json` and `plan simulate --json`, shortened.
inline std::string sample_search() {
  return R"({"format":"ashlar-search-1","recipe":"nano","ranks":4,"goal":"time",
    "counts":{"layouts":4038,"refused_by_rules":2726,"dry_runs":9,"refusals_by_rule":{}},
    "memory_bytes":8000000000,"memory_from":"device.memory","mfu_convention":"exact-causal",
    "peak_from":"device.peak_bf16",
    "best":[{"keys":"parallel.zero=2","step_s":0.5,"tokens_per_s":16384.5,"mfu":0.4,
      "memory_bytes":{"rank":0,"weights":2000000000,"saved":1000000000,"total":3000000000},
      "mean_of_ranks_s":{"compute":0.4,"exposed":0.06,"waiting":0.03,"between":0.01}},
     {"keys":"","step_s":0.6,"tokens_per_s":13653.0,"mfu":0.3,
      "memory_bytes":{"rank":0,"weights":2000000000,"saved":1500000000,"total":3500000000},
      "mean_of_ranks_s":{"compute":0.5,"exposed":0.06,"waiting":0.03,"between":0.01}}],
    "neighbours":[{"key":"parallel.zero=3","why":"slower","reason":"3 % slower","slower":0.03},
      {"key":"parallel.tp=2","why":"links","reason":"2 of 4 links","slower":0.5},
      {"key":"parallel.zero=0","why":"memory","reason":"does not fit","slower":-0.1}],
    "classes":[{"ranks":[0],"memory_bytes":{"weights":2000000000,"total":2000000000},
      "compute_s":0.4,"exposed_s":0.05,"waiting_s":0.04,"between_s":0.01},
      {"ranks":[1,2,3],"memory_bytes":{"weights":1000000000,"total":1000000000},
      "compute_s":0.39,"exposed_s":0.06,"waiting_s":0.04,"between_s":0.01}],
    "sensitivity":[{"number":"memory.copy","less":0.07,"more":-0.06,"less_best":"parallel.pp=4",
      "more_best":"","simulated":true}],
    "machine":"two cores","fingerprint":"00ff","commit":"abc","assumed":["topology.link"],
    "never_measured":["launch.kernel"]})";
}
inline std::string sample_simulation() {
  return R"({"format":"ashlar-simulated-step-1","step_s":0.5,"tokens":8192,"tokens_per_s":16384.5,
    "ranks":[{"step_s":0.5,"compute_s":0.4,"exposed_s":0.06,"waiting_s":0.03,"between_s":0.01},
             {"step_s":0.5,"compute_s":0.45,"exposed_s":0.04,"waiting_s":0,"between_s":0.01}],
    "kernel_shares":{"exact":0.9,"neighbour":0.1,"law":0.0},"machine":"two cores",
    "fingerprint":"00ff","commit":"abc","assumed":["not calibrated"]})";
}

}  // namespace ashlar::report
