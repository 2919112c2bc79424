#include "ashlar/sizing/machine_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ashlar/core/error.h"
#include "ashlar/machine/collective_laws.h"

namespace ashlar::sizing {
namespace {

using machine::CollectiveOp;

bool is_sum(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kReduceScatter ||
         op == CollectiveOp::kReduce;
}

double share_or_one(const machine::Profile& profile, std::string_view key) {
  const machine::Quantity* quantity = profile.find(key);
  return quantity ? quantity->value : 1;
}

}  // namespace

double MachineRates::value(const machine::Profile& profile,
                           std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const machine::Quantity* found = profile.find(key); found && found->value > 0) {
      const bool assumed = found->origin == machine::Origin::kAssumed;
      used_.push_back(assumed ? fmt::format("{} (assumed)", key) : key);
      return found->value;
    }
  return profile.need(*keys.begin()).value;
}

MachineRates::MachineRates(const machine::Profile& profile,
                           const std::vector<machine::TimedKernel>& kernels, int64_t num_ranks,
                           bool bf16, int64_t ranks_per_node)
    : num_ranks_(num_ranks), mesh_(profile.links == machine::NodeLinks::kMesh) {
  on_devices_ = profile.find("device.compute_units") || profile.find("device.memory") ||
                profile.find("device.peak_bf16");
  ranks_per_node_ = ranks_per_node > 0 ? ranks_per_node
                    : on_devices_      ? int64_t(profile.need("node.devices").value)
                                       : num_ranks;
  ranks_per_node_ = std::min(ranks_per_node_, num_ranks);
  if (kernels.empty())
    read_rates(profile, bf16);
  else
    read_kernels(kernels, bf16);
  if (!on_devices_ && profile.find("node.cores")) {
    // Ranks beyond the cores take turns on them.
    const double crowd = std::max(1.0, double(ranks_per_node_) / profile.need("node.cores").value);
    product_flop_ /= crowd, fp32_flop_ /= crowd, attention_flop_ /= crowd, memory_ /= crowd;
  }
  if (num_ranks > 1) on_devices_ ? read_links(profile) : read_curves(profile);
  if (const auto* memory = profile.find("device.memory"))
    device_memory_ = memory->value;
  else if (const auto* node = profile.find("node.memory"))
    device_memory_ = node->value / double(ranks_per_node_);
  for (const machine::Mount& mount : profile.mounts)
    if (const auto read = mount.quantities.find("storage.read"); read != mount.quantities.end())
      disk_ = disk_ > 0 ? disk_ : 1e9 * read->second.value;
}

void MachineRates::read_rates(const machine::Profile& profile, bool bf16) {
  const auto fp32 = [&] {
    return 1e12 * value(profile,
                        {"compute.achievable_fp32", "compute.sustained_fp32", "device.peak_fp32"});
  };
  product_flop_ = bf16 ? 1e12 * value(profile, {"compute.achievable_bf16", "compute.sustained_bf16",
                                                "device.peak_bf16"})
                       : fp32();
  attention_flop_ = product_flop_;
  const bool has_fp32 = profile.find("compute.achievable_fp32") ||
                        profile.find("compute.sustained_fp32") || profile.find("device.peak_fp32");
  fp32_flop_ = !bf16 || !has_fp32 ? product_flop_ : fp32();
  if (!has_fp32) used_.push_back("compute.achievable_fp32 is not known: taken as that of bf16");
  memory_ = 1e9 * value(profile, {"memory.triad", "memory.copy", "device.peak_memory"});
}

// The rates of the table: its work over its time, by kind of kernel.
void MachineRates::read_kernels(const std::vector<machine::TimedKernel>& kernels, bool bf16) {
  int64_t ranks = 0;
  for (const machine::TimedKernel& row : kernels) ranks = std::max(ranks, row.ranks);
  double flop[3] = {}, flop_us[3] = {}, bytes = 0, bytes_us = 0;
  for (const machine::TimedKernel& row : kernels) {
    if (row.ranks != ranks) continue;
    const double us = row.median_us * double(row.calls);
    if (row.flop <= row.bytes) {
      bytes += double(row.bytes) * double(row.calls);
      bytes_us += us;
      continue;
    }
    const bool attends = row.op.find("attention") != std::string::npos;
    const size_t kind = attends ? 1 : row.dtype == (bf16 ? "BF16" : "F32") ? 0 : 2;
    flop[kind] += double(row.flop) * double(row.calls);
    flop_us[kind] += us;
  }
  const auto rate = [&](size_t kind) { return flop_us[kind] > 0 ? flop[kind] / flop_us[kind] : 0; };
  product_flop_ = 1e6 * rate(0);
  attention_flop_ = flop_us[1] > 0 ? 1e6 * rate(1) : product_flop_;
  fp32_flop_ = flop_us[2] > 0 ? 1e6 * rate(2) : product_flop_;
  memory_ = bytes_us > 0 ? 1e6 * bytes / bytes_us : 0;
  used_.push_back("the table of kernels");
}

void MachineRates::read_links(const machine::Profile& profile) {
  if (ranks_per_node_ > 1) {
    link_ = 1e9 * value(profile, {"topology.link"}) * share_or_one(profile, "topology.link_usable");
    link_alpha_s_ = 1e-6 * value(profile, {"topology.link_latency"});
  }
  if (num_ranks_ > ranks_per_node_) {
    nic_ = 1e9 * value(profile, {"topology.nic"}) * share_or_one(profile, "topology.nic_usable");
    nic_alpha_s_ = 1e-6 * value(profile, {"topology.nic_latency"});
  }
}

void MachineRates::read_curves(const machine::Profile& profile) {
  for (const machine::CollectiveCurve& curve : profile.collectives) {
    if (curve.points.empty()) continue;
    if (const auto law = machine::fit(curve.points, curve.factor())) {
      curves_.push_back({curve.op, curve.ranks, 1e-6 * law->alpha_us(), 1e9 * law->gbps()});
      continue;
    }
    // Too few points for a law: the fastest, and what the largest takes beyond it.
    double least_us = curve.points[0].median_us;
    machine::CurvePoint largest = curve.points[0];
    for (const machine::CurvePoint& point : curve.points) {
      least_us = std::min(least_us, point.median_us);
      if (point.size > largest.size) largest = point;
    }
    const double more_s = 1e-6 * (largest.median_us - least_us);
    curves_.push_back({curve.op, curve.ranks, 1e-6 * least_us,
                       more_s > 0 ? curve.factor() * largest.size / more_s : 0});
  }
  if (curves_.empty())
    ASHLAR_FAIL(kConfig,
                "the profile {} has no curve of a collective: ashlar bench collectives --profile "
                "FILE measures them",
                profile.name);
  used_.push_back("the curves of collectives");
}

RankSpan MachineRates::group(int64_t ranks, int64_t stride) const {
  const int64_t of_a_node = std::clamp<int64_t>(ranks_per_node_ / stride, 1, ranks);
  return {ranks, (ranks + of_a_node - 1) / of_a_node};
}

double MachineRates::by_curve_s(CollectiveOp op, int64_t n, double S) const {
  const Curve* best = nullptr;
  int64_t least = 0;
  for (const Curve& curve : curves_) {
    const int64_t far = (curve.op == op                   ? 0
                         : is_sum(curve.op) == is_sum(op) ? 1000
                                                          : 100000) +
                        std::abs(curve.ranks - n);
    if (!best || far < least) best = &curve, least = far;
  }
  const double others = double(n - 1) / double(std::max<int64_t>(1, best->ranks - 1));
  const double moved = machine::bus_factor(op, n) * S;
  return best->alpha_s * others + (best->bytes_a_second > 0 ? moved / best->bytes_a_second : 0);
}

double MachineRates::by_law_s(CollectiveOp op, const RankSpan& group, double S) const {
  const double n = double(group.ranks), nodes = double(group.nodes), g = n / nodes;
  const double node = link_ * (mesh_ ? g - 1 : 1);
  const bool across = group.nodes > 1;
  const double alpha = across ? nic_alpha_s_ : link_alpha_s_;
  const double rate = !across ? node : g > 1 && node > 0 ? std::min(node, g * nic_) : g * nic_;
  if (op == CollectiveOp::kAllToAll || op == CollectiveOp::kAllToAllV ||
      op == CollectiveOp::kSendReceive) {
    // With all partners at once; bytes that leave the node pass the NIC of their rank.
    const machine::LinkLaw law = machine::ring_law(op, group.ranks, S);
    const double beyond = (n - g) / (n - 1);
    const double inside_s = node > 0 ? law.bytes / node : 0;
    return law.hops * alpha +
           (across ? std::max(inside_s, law.bytes * beyond / nic_) : law.bytes / node);
  }
  if (op == CollectiveOp::kBroadcast || op == CollectiveOp::kReduce)
    return machine::pipelined_law(group.ranks, S, alpha, rate).time_s(alpha, rate);
  const machine::LinkGroup on{n, nodes, {alpha, rate}, {link_alpha_s_, node}, {nic_alpha_s_, nic_}};
  return machine::fastest_law(op, on, S).time_s;
}

double MachineRates::collective_s(CollectiveOp op, const RankSpan& group, double S) const {
  if (group.ranks <= 1 || S <= 0) return 0;
  return on_devices_ ? by_law_s(op, group, S) : by_curve_s(op, group.ranks, S);
}

double MachineRates::collective_s(CollectiveOp op, const RankSpan& group, double S,
                                  double piece) const {
  if (S <= piece) return collective_s(op, group, S);
  const double whole = std::floor(S / piece), rest = S - whole * piece;
  return whole * collective_s(op, group, piece) + collective_s(op, group, rest);
}

double MachineRates::message_s(const RankSpan& pair, double bytes) const {
  if (bytes <= 0) return 0;
  if (!on_devices_) return by_curve_s(CollectiveOp::kSendReceive, 2, bytes);
  return pair.nodes > 1 ? nic_alpha_s_ + bytes / nic_ : link_alpha_s_ + bytes / link_;
}

double MachineRates::reading_s(double bytes) const {
  return disk_ > 0 ? bytes * double(ranks_per_node_) / disk_ : 0;
}

}  // namespace ashlar::sizing
