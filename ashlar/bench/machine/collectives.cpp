#include "ashlar/bench/machine/collectives.h"

#include <algorithm>
#include <charconv>

#include "ashlar/bench/machine/collective_case.h"
#include "ashlar/bench/machine/collective_data.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

using machine::CollectiveOp;

// The color of a rank in the shape: ranks of one color form a group.  nodes[r]: the number of the
// node of rank r.
std::vector<int> colors_of(const GroupShape& shape, const std::vector<int>& nodes) {
  std::vector<int> colors(nodes.size()), on_node(nodes.size());
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto local = int(std::count(nodes.begin(), nodes.begin() + long(rank), nodes[rank]));
    switch (shape.kind) {
      case GroupShape::Kind::kAll:
        break;
      case GroupShape::Kind::kNode:
        colors[rank] = nodes[rank];
        break;
      case GroupShape::Kind::kRail:
        colors[rank] = local;
        break;
      case GroupShape::Kind::kStride:
        colors[rank] = int(int64_t(rank) % shape.size);
        break;
      case GroupShape::Kind::kBlock:
        colors[rank] = int(int64_t(rank) / shape.size);
        break;
      case GroupShape::Kind::kPairs:
        colors[rank] = int(rank / 2);
        break;
    }
  }
  return colors;
}

// The number of every rank's node, in the order of their first ranks.
std::vector<int> nodes_of(comm::Group& ranks) {
  std::vector<std::string> seen;
  std::vector<int> nodes;
  for (const std::string& host : comm::all_said(ranks, train::host_name(), "hosts")) {
    const auto found = std::find(seen.begin(), seen.end(), host);
    nodes.push_back(int(found - seen.begin()));
    if (found == seen.end()) seen.push_back(host);
  }
  return nodes;
}

int64_t iterations_of(const Rig& rig, const CollectiveOptions& options, int64_t bytes,
                      double warm_s) {
  if (options.iterations > 0) return options.iterations;
  const double seconds = rig.quick ? 0.02 : 0.2;
  const int64_t least = bytes < 65536 ? (rig.quick ? 20 : 100) : (rig.quick ? 5 : 20);
  const auto wanted = int64_t(seconds / std::max(warm_s, 1e-7));
  return std::clamp<int64_t>(wanted, least, rig.quick ? 100 : 1000);
}

// Measures one form of one row on a group that takes part.
CollectiveTime time_case(const Rig& rig, const CollectiveOptions& options, CollectiveCase& c) {
  CollectiveTime result;
  for (int64_t check = 0; check < options.checks; ++check) {
    c.fill(uint64_t(check) + 1);
    c.run();
    result.num_wrong += c.num_wrong(uint64_t(check) + 1);
  }
  c.fill(1);
  const auto start = Clock::now();
  for (int64_t i = 0; i < options.warm_up; ++i) c.run();
  const double warm_s = seconds_since(start) / double(std::max<int64_t>(options.warm_up, 1));
  const int64_t iterations =
      comm::from_leader(c.group(), iterations_of(rig, options, c.bytes(), warm_s), "iterations");
  std::vector<double> us;
  us.reserve(size_t(iterations));
  c.group().barrier("measured").wait();
  for (int64_t i = 0; i < iterations; ++i) {
    const auto begin = Clock::now();
    c.run();
    us.push_back(us_since(begin));
  }
  result.times_us = slowest_of_ranks(c.group(), std::move(us));
  result.us = repeats_of(result.times_us);
  result.algbw = double(c.bytes()) / result.us.median * 1e-3;
  result.busbw = result.algbw * machine::bus_factor(c.op(), c.group().size());
  return result;
}

std::vector<int64_t> sizes_of(const Rig& rig, const CollectiveOptions& options, CollectiveOp op) {
  if (op == CollectiveOp::kBarrier) return {0};
  const int64_t most = options.max_bytes > 0 ? options.max_bytes
                       : rig.quick           ? int64_t{4} << 20
                                             : int64_t{64} << 20;
  const int64_t factor = options.factor > 0 ? options.factor : rig.quick ? 4 : 2;
  std::vector<int64_t> sizes;
  for (int64_t size = options.min_bytes; size <= most;
       size = options.step_bytes > 0 ? size + options.step_bytes : size * factor)
    sizes.push_back(size);
  return sizes;
}

std::vector<CollectiveOp> usual_ops(bool quick) {
  using enum CollectiveOp;
  if (quick) return {kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast};
  return {kAllReduce, kAllGather, kReduceScatter, kAllToAll,    kAllToAllV, kBroadcast,
          kReduce,    kGather,    kScatter,       kSendReceive, kBarrier};
}

// One row; on ranks outside of the running groups it only waits.
CollectiveRow measure_row(const Rig& rig, const CollectiveOptions& options, comm::Group* group,
                          CollectiveOp op, DType dtype, int64_t bytes, int64_t group_size) {
  CollectiveRow row;
  row.op = op;
  row.dtype = dtype;
  int64_t wrong[2] = {};
  for (const bool in_place : {false, true}) {
    if (!CollectiveCase::exists(op, in_place)) continue;
    CollectiveTime time;
    if (group) {
      CollectiveCase c(rig.allocator, *group, op, dtype, bytes, in_place, options.root);
      time = time_case(rig, options, c);
      row.bytes = c.bytes();
      row.count = c.count();
      wrong[in_place] = time.num_wrong;
    }
    (in_place ? row.in_place : row.out_of_place) = std::move(time);
  }
  comm::add_up(rig.ranks, wrong, "wrong");
  if (row.out_of_place) row.out_of_place->num_wrong = wrong[0];
  if (row.in_place) row.in_place->num_wrong = wrong[1];
  if (CollectiveCase::has_root(op)) row.root = options.root % int(group_size);
  return row;
}

}  // namespace

int64_t CollectiveRow::num_wrong() const {
  return (out_of_place ? out_of_place->num_wrong : 0) + (in_place ? in_place->num_wrong : 0);
}

std::string GroupShape::text() const {
  switch (kind) {
    case Kind::kAll:
      return "all";
    case Kind::kNode:
      return "node";
    case Kind::kRail:
      return "rail";
    case Kind::kPairs:
      return "pairs";
    case Kind::kStride:
      return fmt::format("stride:{}", size);
    case Kind::kBlock:
      return fmt::format("block:{}", size);
  }
  return "";
}

GroupShape parse_shape(std::string_view text) {
  using Kind = GroupShape::Kind;
  if (text == "all") return {Kind::kAll, 0};
  if (text == "node") return {Kind::kNode, 0};
  if (text == "rail") return {Kind::kRail, 0};
  if (text == "pairs") return {Kind::kPairs, 0};
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  int64_t size = 0;
  if (colon != text.npos && (name == "stride" || name == "block")) {
    const std::string_view digits = text.substr(colon + 1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), size);
    if (parsed.ptr == digits.data() + digits.size() && size >= 1 && size <= 1 << 20)
      return {name == "stride" ? Kind::kStride : Kind::kBlock, size};
  }
  ASHLAR_FAIL(kConfig, "--shape is {}; expected all, node, rail, pairs, stride:N or block:N", text);
}

CollectiveReport measure_collectives(const Rig& rig, const CollectiveOptions& options) {
  ASHLAR_REQUIRE(rig.ranks.size() > 1, kConfig,
                 "collectives of one rank; expected 2 ranks or more (--ranks, or mpirun)");
  const std::vector<int> colors = colors_of(options.shape, nodes_of(rig.ranks));
  CollectiveReport report;
  report.group_size = std::count(colors.begin(), colors.end(), colors[0]);
  for (const int color : colors)
    ASHLAR_REQUIRE(
        std::count(colors.begin(), colors.end(), color) == report.group_size, kConfig,
        "--shape {} leaves groups of {} and {} of {} ranks; choose one with equal groups",
        options.shape.text(), report.group_size, std::count(colors.begin(), colors.end(), color),
        colors.size());
  report.num_groups = options.alone ? 1 : int64_t(colors.size()) / report.group_size;
  const auto group = rig.ranks.split("measured", [&](int rank) {
    return comm::SplitKey{options.alone && colors[size_t(rank)] > 0 ? -1 : colors[size_t(rank)],
                          rank};
  });
  const std::vector<DType> dtypes = !options.dtypes.empty() ? options.dtypes
                                    : rig.quick             ? std::vector{DType::kF32}
                                                : std::vector{DType::kF32, DType::kBF16};
  for (const DType dtype : dtypes)
    ASHLAR_REQUIRE(has_exact_data(dtype), kConfig,
                   "--dtype has {}; expected float, bfloat16, double, int32 or uint8",
                   name_of(dtype));
  for (const CollectiveOp op : options.ops.empty() ? usual_ops(rig.quick) : options.ops)
    for (const DType dtype : dtypes) {
      if (op == CollectiveOp::kBarrier && dtype != dtypes[0]) continue;
      for (const int64_t bytes : sizes_of(rig, options, op)) {
        if (report.num_left_out > 0 || !rig.goes_on()) {
          ++report.num_left_out;
          continue;
        }
        report.rows.push_back(
            measure_row(rig, options, group.get(), op, dtype, bytes, report.group_size));
      }
    }
  return report;
}

Findings measure_collectives(const Rig& rig) {
  const CollectiveOptions options;
  return findings_of(measure_collectives(rig, options), rig, options);
}

}  // namespace ashlar::bench
