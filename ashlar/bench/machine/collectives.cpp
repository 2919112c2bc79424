#include "ashlar/bench/machine/collectives.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "ashlar/bench/machine/collective_case.h"
#include "ashlar/bench/machine/collective_data.h"
#include "ashlar/bench/machine/collective_engines.h"
#include "ashlar/bench/machine/collective_timing.h"
#include "ashlar/comm/agree.h"
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

// The operation of a row.
struct RowKey {
  CollectiveOp op;
  DType dtype;
  int64_t bytes;
  int root;
};

// Both forms of a row on a group that takes part.
void measure_forms(const CollectiveOptions& options, bool quick, Allocator& allocator,
                   comm::Group& group, const RowKey& key, CollectiveRow& row) {
  for (const bool in_place : {false, true}) {
    if (!CollectiveCase::exists(key.op, in_place)) continue;
    CollectiveCase c(allocator, group, key.op, key.dtype, key.bytes, in_place, key.root);
    (in_place ? row.in_place : row.out_of_place) = time_case(options, quick, c);
    row.bytes = c.bytes();
    row.count = c.count();
  }
}

// The wrong elements of all ranks, in both forms.
void add_up_wrong(comm::Group& ranks, CollectiveRow& row) {
  int64_t wrong[2] = {};
  for (const bool in_place : {false, true})
    if (const auto& time = in_place ? row.in_place : row.out_of_place)
      wrong[in_place] = time->num_wrong;
  comm::add_up(ranks, wrong, "wrong");
  if (row.out_of_place) row.out_of_place->num_wrong = wrong[0];
  if (row.in_place) row.in_place->num_wrong = wrong[1];
}

// One row; on ranks outside of the running groups it only waits.
CollectiveRow measure_row(const Rig& rig, const CollectiveOptions& options,
                          const EngineOfGroup& engine, const RowKey& key, int64_t group_size) {
  CollectiveRow row;
  row.engine = engine.name;
  row.op = key.op;
  row.dtype = key.dtype;
  if (engine.group)
    measure_forms(options, rig.quick, rig.allocator, *engine.group, key, row);
  else if (engine.kind == CollectiveEngine::kThread)
    on_threads(rig, [&](comm::Group& group) {
      CollectiveRow mine;
      measure_forms(options, rig.quick, rig.allocator, group, key, mine);
      add_up_wrong(group, mine);
      if (group.rank() != 0) return;
      row = std::move(mine);
      row.engine = engine.name;
      row.op = key.op;
      row.dtype = key.dtype;
    });
  if (engine.group || engine.kind != CollectiveEngine::kThread) add_up_wrong(rig.ranks, row);
  if (CollectiveCase::has_root(key.op)) row.root = key.root % int(group_size);
  return row;
}

std::vector<int> roots_of(const CollectiveOptions& options, CollectiveOp op, int64_t group_size) {
  if (options.root >= 0 || !CollectiveCase::has_root(op)) return {std::max(options.root, 0)};
  std::vector<int> roots(static_cast<size_t>(group_size));
  std::iota(roots.begin(), roots.end(), 0);
  return roots;
}

// All rows, in the order of the table.
std::vector<RowKey> keys_of_rows(const Rig& rig, const CollectiveOptions& options,
                                 int64_t group_size) {
  const std::vector<DType> dtypes = !options.dtypes.empty() ? options.dtypes
                                    : rig.quick             ? std::vector{DType::kF32}
                                                : std::vector{DType::kF32, DType::kBF16};
  for (const DType dtype : dtypes)
    ASHLAR_REQUIRE(has_exact_data(dtype), kConfig,
                   "--dtype has {}; expected float, bfloat16, double, int32 or uint8",
                   name_of(dtype));
  std::vector<RowKey> keys;
  for (const CollectiveOp op : options.ops.empty() ? usual_ops(rig.quick) : options.ops)
    for (const DType dtype : dtypes) {
      if (op == CollectiveOp::kBarrier && dtype != dtypes[0]) continue;
      for (const int root : roots_of(options, op, group_size))
        for (const int64_t bytes : sizes_of(rig, options, op))
          keys.push_back({op, dtype, bytes, root});
    }
  return keys;
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

std::vector<int> nodes_of(const std::vector<std::string>& hosts) {
  std::vector<std::string> seen;
  std::vector<int> nodes;
  for (const std::string& host : hosts) {
    const auto found = std::find(seen.begin(), seen.end(), host);
    nodes.push_back(int(found - seen.begin()));
    if (found == seen.end()) seen.push_back(host);
  }
  return nodes;
}

CollectiveReport measure_collectives(const Rig& rig, const CollectiveOptions& options) {
  ASHLAR_REQUIRE(rig.ranks.size() > 1, kConfig,
                 "collectives of one rank; expected 2 ranks or more (--ranks, or mpirun)");
  const std::vector<int> colors =
      colors_of(options.shape, nodes_of(comm::all_said(rig.ranks, train::host_name(), "hosts")));
  CollectiveReport report;
  report.group_size = std::count(colors.begin(), colors.end(), colors[0]);
  for (const int color : colors)
    ASHLAR_REQUIRE(
        std::count(colors.begin(), colors.end(), color) == report.group_size, kConfig,
        "--shape {} leaves groups of {} and {} of {} ranks; choose one with equal groups",
        options.shape.text(), report.group_size, std::count(colors.begin(), colors.end(), color),
        colors.size());
  report.num_groups = options.alone ? 1 : int64_t(colors.size()) / report.group_size;
  const auto key_of = [&](int rank) {
    return comm::SplitKey{options.alone && colors[size_t(rank)] > 0 ? -1 : colors[size_t(rank)],
                          rank};
  };
  const std::vector<RowKey> keys = keys_of_rows(rig, options, report.group_size);
  const std::vector<EngineOfGroup> engines = engines_of(rig, options, key_of);
  for (const RowKey& key : keys)
    for (const EngineOfGroup& engine : engines) {
      if (report.num_left_out > 0 || !rig.goes_on()) {
        ++report.num_left_out;
        continue;
      }
      CollectiveRow row = measure_row(rig, options, engine, key, report.group_size);
      if (rig.again()) row = measure_row(rig, options, engine, key, report.group_size);
      row.row = rig.row();
      report.rows.push_back(std::move(row));
    }
  return report;
}

Findings measure_collectives(const Rig& rig) {
  const CollectiveOptions options;
  return findings_of(measure_collectives(rig, options), rig, options);
}

}  // namespace ashlar::bench
