#include "ashlar/sim/imbalance.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"

namespace ashlar::sim {
namespace {

// Experts that a rank holds, by the products that it runs for them.
int experts_of(const RankPrograms& programs, int rank) {
  int experts = 0;
  for (const ProgramEvent& event : programs.ranks[size_t(rank)].events) {
    if (event.kind != ProgramEvent::Kind::kKernel) continue;
    const KernelWork& work = programs.kernels[size_t(event.value)];
    if (work.varies == TraceEvent::Varies::kExpertRows)
      experts = std::max(experts, work.dims.groups);
  }
  return experts;
}

}  // namespace

ExpertLoads parse_loads(std::string_view metrics, const std::string& name) {
  ExpertLoads loads;
  const std::vector<std::string> lines = split(metrics, '\n');
  for (size_t i = lines.size(); i-- > 0 && loads.empty();) {
    if (lines[i].find("\"expert_loads\"") == std::string::npos) continue;
    const std::string where = fmt::format("{}, line {}", name, i + 1);
    const Json row = parse_json(lines[i], where, ErrorKind::kData);
    const Fields fields(row, where, ErrorKind::kData);
    const Json& blocks = fields.at("blocks");
    const Fields checked(blocks, where + ": blocks", ErrorKind::kData);
    for (const auto& [block, values] : blocks.items()) {
      std::vector<double>& list = loads[int32_t(std::atoi(block.c_str()))];
      for (const int64_t choices : checked.counts(block)) list.push_back(double(choices));
    }
  }
  ASHLAR_REQUIRE(!loads.empty(), kData,
                 "{} has no row of expert loads; train.expert_loads_every writes them", name);
  return loads;
}

Imbalance::Imbalance(const RankPrograms& programs, const ImbalanceOptions& options)
    : programs_(programs),
      slow_(programs.ranks.size(), 1),
      rows_(programs.ranks.size()),
      mean_rows_(programs.ranks.size(), 1) {
  for (const auto& [rank, factor] : options.slow) {
    ASHLAR_REQUIRE(rank >= 0 && rank < int(slow_.size()), kConfig,
                   "--slow {}: there is no such rank; the last is {}", rank, slow_.size() - 1);
    slow_[size_t(rank)] = factor;
  }
  if (!options.hot && !options.loads) return;
  for (const RankGroup& group : programs.groups) {
    if (group.name != "ep" || group.ranks.size() < 2) continue;
    splits_experts_ = true;
    for (size_t member = 0; member < group.ranks.size(); ++member) {
      const size_t rank = size_t(group.ranks[member]);
      const size_t mine = size_t(experts_of(programs, int(rank)));
      const size_t all = mine * group.ranks.size();
      ExpertLoads loads;
      if (options.loads) {
        loads = *options.loads;
      } else {
        ASHLAR_REQUIRE(*options.hot <= double(all), kConfig,
                       "--hot {} of {} experts: one has at most the load of all, {}", *options.hot,
                       all, all);
        std::vector<double>& even = loads[-1];
        even.assign(all, (double(all) - *options.hot) / double(all - 1));
        even[0] = *options.hot;
      }
      double sum_of_blocks = 0;
      for (const auto& [block, list] : loads) {
        ASHLAR_REQUIRE(list.size() == all, kData,
                       "the loads of block {} are of {} experts; the program has {}", block,
                       list.size(), all);
        const auto first = list.begin() + int64_t(member * mine);
        const double total = std::accumulate(list.begin(), list.end(), 0.0);
        const double here = std::accumulate(first, first + int64_t(mine), 0.0);
        rows_[rank][block] = total > 0 ? here / total * double(group.ranks.size()) : 1;
        sum_of_blocks += rows_[rank][block];
      }
      mean_rows_[rank] = sum_of_blocks / double(loads.size());
    }
  }
}

double Imbalance::of_rows(int rank, int32_t block) const {
  const auto& blocks = rows_[size_t(rank)];
  const auto found = blocks.find(block);
  return found != blocks.end() ? found->second : mean_rows_[size_t(rank)];
}

double Imbalance::of_kernel(int rank, const ProgramEvent& event) const {
  const double slow = slow_[size_t(rank)];
  if (programs_.kernels[size_t(event.value)].varies != TraceEvent::Varies::kExpertRows) return slow;
  return slow * of_rows(rank, programs_.places[size_t(event.place)].block);
}

}  // namespace ashlar::sim
