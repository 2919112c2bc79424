#include "ashlar/sim/machine_costs.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "ashlar/core/error.h"

namespace ashlar::sim {
namespace {

using machine::CollectiveOp;

bool has_devices(const machine::Profile& profile) {
  return profile.find("device.compute_units") || profile.find("device.memory") ||
         profile.find("device.peak_bf16");
}

int ranks_a_node(const machine::Profile& profile, int num_ranks, int wanted, bool on_devices) {
  if (wanted > 0) return wanted;
  if (!on_devices) return num_ranks;
  const int devices = int(profile.need("node.devices").value);
  const auto* nodes = profile.find("topology.nodes");
  ASHLAR_REQUIRE(!nodes || num_ranks <= devices * nodes->value, kConfig,
                 "{} ranks on the profile {}, which has {} nodes of {} devices", num_ranks,
                 profile.name, nodes->value, devices);
  return std::min(devices, num_ranks);
}

// The name of a collective of the profile whose ranks are sent unlike amounts.
CollectiveOp op_of(const RankOperation& operation) {
  if (operation.op == CollectiveOp::kAllToAll && operation.num_messages > 0)
    return CollectiveOp::kAllToAllV;
  return operation.op;
}

}  // namespace

double disk_gbps(const machine::Profile& profile) {
  for (const machine::Mount& mount : profile.mounts)
    if (const auto read = mount.quantities.find("storage.read"); read != mount.quantities.end())
      return read->second.value;
  return 0;
}

MachineCosts::MachineCosts(const machine::Profile& profile, const RankPrograms& programs,
                           const WorkTimes& kernels, const Imbalance& imbalance,
                           const MachineOptions& options)
    : profile_(profile),
      programs_(programs),
      imbalance_(imbalance),
      options_(options),
      on_devices_(has_devices(profile)),
      ranks_per_node_(
          ranks_a_node(profile, int(programs.ranks.size()), options.ranks_per_node, on_devices_)),
      times_(profile, options.engine),
      kernel_factor_(factor(kCategories[0])),
      operation_factor_(factor(kCategories[1])) {
  for (const KernelWork& work : programs.kernels) kernel_times_.push_back(kernels.of(work));
  for (const RankGroup& group : programs.groups)
    groups_at_once_[{group.name, group.ranks.size()}] += programs.groups_for(group);
  // Products are slower while a collective uses their memory.
  const auto* factor = profile.find("contention.products");
  for (const KernelWork& work : programs.kernels)
    contention_.push_back(
        factor && work.op.find("linear") != std::string::npos ? std::max(1.0, factor->value) : 1);
  if (on_devices_) {
    if (!curves_for_all()) links_.emplace(profile, programs, ranks_per_node_);
    return;
  }
  const double cores = profile.need("node.cores").value;
  threads_ = std::max(1.0, std::floor(cores / ranks_per_node_));
  const auto *busy = profile.find("launch.wake_busy"), *idle = profile.find("launch.wake_idle"),
             *own = profile.find("launch.lane_cores");
  lanes_have_cores_ = own && own->value >= 1;
  // Curves were measured on lanes that wake on idle cores.
  if (busy) wake_busy_s_ = 1e-6 * std::max(0.0, busy->value - (idle ? idle->value : 0));
}

double MachineCosts::factor(std::string_view category) const {
  if (!profile_.calibration) return 1;
  const auto found = profile_.calibration->factors.find(category);
  return found == profile_.calibration->factors.end() ? 1 : found->second;
}

bool MachineCosts::curves_for_all() const {
  std::set<std::pair<CollectiveOp, size_t>> known;
  for (const RankProgram& rank : programs_.ranks)
    for (const RankOperation& operation : rank.operations) {
      const size_t n = programs_.groups[size_t(operation.group)].ranks.size();
      if (operation.lane < 0 || !known.emplace(op_of(operation), n).second) continue;
      if (!has_curve(operation, int64_t(n))) return false;
    }
  return true;
}

// Where only some ranks of a node are simulated, they have their share of it.
void MachineCosts::build(FlowSets& sets) {
  const int num_ranks = int(programs_.ranks.size());
  for (int first = 0; first < num_ranks; first += ranks_per_node_) {
    const int end = std::min(first + ranks_per_node_, num_ranks);
    int simulated = 0;
    for (int rank = first; rank < end; ++rank) simulated += programs_.simulates(rank);
    const double share = double(std::max(1, simulated)) / (end - first);
    if (!on_devices_)
      node_cores_.push_back(sets.add_resource(profile_.need("node.cores").value * share));
    if (options_.read_bytes > 0)
      node_disks_.push_back(sets.add_resource(1e9 * disk_gbps(profile_) * share));
  }
  if (links_) links_->build(sets);
}

CoreShare MachineCosts::cores(int rank) const {
  if (on_devices_) return {};
  return {node_cores_[size_t(rank / ranks_per_node_)], threads_};
}

int MachineCosts::lane_cores(int rank) const {
  return on_devices_ || lanes_have_cores_ ? -1 : node_cores_[size_t(rank / ranks_per_node_)];
}

int MachineCosts::disk(int rank) const {
  return node_disks_.empty() ? -1 : node_disks_[size_t(rank / ranks_per_node_)];
}

double MachineCosts::kernel_s(int rank, const ProgramEvent& event) const {
  return kernel_factor_ * kernel_times_[size_t(event.value)].seconds *
         imbalance_.of_kernel(rank, event);
}

double MachineCosts::contention(const ProgramEvent& event) const {
  return contention_[size_t(event.value)];
}

double MachineCosts::received_scale(int rank, const RankOperation& operation) const {
  if (programs_.groups[size_t(operation.group)].name != "ep") return 1;
  return imbalance_.of_rows(rank, -1);
}

OperationTime MachineCosts::time_of(const RankOperation& operation, int64_t num_ranks) const {
  const RankGroup& group = programs_.groups[size_t(operation.group)];
  const int64_t at_once = std::llround(groups_at_once_.at({group.name, group.ranks.size()}));
  OperationTime time =
      times_.of(op_of(operation), operation.dtype, num_ranks, at_once, double(operation.bytes));
  time.fixed_s *= operation_factor_;
  time.s_per_received *= operation_factor_;
  return time;
}

bool MachineCosts::has_curve(const RankOperation& operation, int64_t num_ranks) const {
  for (const auto& curve : profile_.collectives)
    if (curve.engine == times_.engine() && curve.op == op_of(operation) &&
        curve.ranks == num_ranks && curve.points.size() > 1)
      return true;
  return false;
}

// The operation alone takes the time of its curve; beside others it shares the links.
std::vector<OperationPart> MachineCosts::by_curve(const RankGroup& group,
                                                  const RankOperation& operation) const {
  const int64_t n = int64_t(group.ranks.size());
  const OperationTime time = time_of(operation, n);
  const double received = even_received(op_of(operation), n, double(operation.bytes));
  const double moving_s = time.s_per_received * received;
  OperationPart part{.latency_s = time.fixed_s, .work = moving_s, .limit = 1};
  if (links_ && moving_s > 0)
    for (const OperationPart& by_law : links_->parts(group, operation))
      for (const ResourceUse& use : by_law.links)
        part.links.push_back({use.resource, use.weight * by_law.work / moving_s});
  return {part};
}

OperationPart MachineCosts::slowed(OperationPart part) const {
  part.latency_s *= operation_factor_;
  part.work *= operation_factor_;
  return part;
}

std::vector<OperationPart> MachineCosts::parts(const RankGroup& group,
                                               const RankOperation& operation) const {
  const int64_t n = int64_t(group.ranks.size());
  if (on_devices_) {
    if (has_curve(operation, n)) return by_curve(group, operation);
    std::vector<OperationPart> by_law = links_->parts(group, operation);
    for (OperationPart& part : by_law) part = slowed(part);
    return by_law;
  }
  const OperationTime time = time_of(operation, n);
  const int rounds = std::max(1, int(operation.rounds));
  return std::vector<OperationPart>(
      size_t(rounds),
      {.core_s = time.fixed_s / rounds, .core_s_per_received = time.s_per_received / rounds});
}

OperationPart MachineCosts::message(int from, int to, int64_t bytes) const {
  if (on_devices_ && links_) return slowed(links_->message(from, to, double(bytes)));
  const OperationTime time =
      times_.of(CollectiveOp::kSendReceive, DType::kF32, 2, 1, double(bytes));
  const double fixed_s = operation_factor_ * time.fixed_s;
  const double all_s = fixed_s + operation_factor_ * time.s_per_received * double(bytes);
  if (on_devices_) return {.latency_s = fixed_s, .work = all_s - fixed_s, .limit = 1};
  return {.core_s = all_s};
}

std::array<double, 3> MachineCosts::kernel_seconds() const {
  std::array<double, 3> seconds{};
  const std::vector<double> of_kernels = seconds_of_kernels();
  for (size_t i = 0; i < of_kernels.size(); ++i)
    seconds[size_t(kernel_times_[i].source)] += of_kernels[i];
  return seconds;
}

std::vector<double> MachineCosts::seconds_of_kernels() const {
  std::vector<double> seconds(programs_.kernels.size());
  for (int rank = 0; rank < int(programs_.ranks.size()); ++rank)
    for (const ProgramEvent& event : programs_.ranks[size_t(rank)].events)
      if (event.kind == ProgramEvent::Kind::kKernel)
        seconds[size_t(event.value)] += kernel_s(rank, event);
  return seconds;
}

std::array<double, 3> MachineCosts::operation_seconds() const {
  std::array<double, 3> seconds{};
  FlowSets sets;
  std::optional<ClusterLinks> links = links_;
  if (links) links->build(sets);
  // Most operations take the time of one before; only the bytes that a rank receives may differ.
  std::map<std::tuple<int32_t, CollectiveOp, DType, int64_t>, OperationTime> times;
  const auto time = [&](const RankOperation& operation) {
    const RankGroup& group = programs_.groups[size_t(operation.group)];
    const bool collective = operation.number >= 0;
    const int64_t bytes = collective || !on_devices_ ? operation.bytes : operation.received_bytes;
    const auto [found, is_new] =
        times.try_emplace({operation.group, op_of(operation), operation.dtype, bytes});
    OperationTime& time = found->second;
    const int64_t n = collective ? int64_t(group.ranks.size()) : 2;
    if (!is_new) return time;
    if (!on_devices_ || has_curve(operation, n)) return time = time_of(operation, n);
    time.source = TimeSource::kLaw;
    for (const OperationPart& part :
         collective ? links->parts(group, operation)
                    : std::vector{links->message(group.ranks[0], group.ranks[1], double(bytes))})
      time.fixed_s += alone_s(slowed(part), sets);
    return time;
  };
  for (const RankProgram& rank : programs_.ranks)
    for (const RankOperation& operation : rank.operations) {
      if (operation.lane < 0) continue;
      const OperationTime of_one = time(operation);
      seconds[size_t(of_one.source)] +=
          of_one.fixed_s + of_one.s_per_received * double(operation.received_bytes);
    }
  return seconds;
}

}  // namespace ashlar::sim
