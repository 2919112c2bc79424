// Differences between a rank's dry run and what the rank took and sent; "" where they agree.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train::testing_support {

// Memory by tag and in all, and the number of allocations.
inline std::string differences(const RunPlan& plan, const MemoryCounts& real) {
  std::string text;
  const auto compare = [&](std::string_view what, int64_t planned, int64_t found) {
    if (planned != found) text += fmt::format("{}: planned {}, real {}\n", what, planned, found);
  };
  for (size_t tag = 0; tag < size_t(kNumTags); ++tag)
    compare(name_of(Tag(tag)), plan.memory.tags[tag].peak_bytes, real.tags[tag].peak_bytes);
  compare("total", plan.memory.total.peak_bytes, real.total.peak_bytes);
  compare("allocations", plan.memory.num_allocations, real.num_allocations);
  return text;
}

// The traffic of one step.
inline std::string differences(std::vector<GroupTraffic> planned, std::vector<GroupTraffic> real) {
  std::erase_if(real, [](const GroupTraffic& t) { return t.row.op == comm::Op::kBarrier; });
  // How many rows go to which experts depends on the tokens: ep_test.cpp has their formula.
  const bool routed =
      std::ranges::any_of(planned, [](const GroupTraffic& t) { return t.group == "ep"; });
  for (auto* list : {&planned, &real})
    std::erase_if(*list, [&](const GroupTraffic& t) {
      return (t.row.label.starts_with("expert ") && t.row.label != "expert counts") ||
             (routed && t.row.label == "tp adapters");
    });
  if (planned == real) return "";
  std::string text;
  for (const auto* list : {&planned, &real})
    for (const GroupTraffic& t : *list)
      text += fmt::format("{} {} {} {}: {} launches, {} sent, {} received\n",
                          list == &planned ? "planned" : "real", t.group, name_of(t.row.op),
                          t.row.label, t.row.launches, t.row.sent_bytes, t.row.received_bytes);
  return text;
}

// Experts of other ranks take what a full room of rows would.
inline std::string difference_in_workspace(const RunPlan& plan, const Trainer& trainer) {
  const StepMemory used = trainer.peak_memory(), planned = plan.step_memory;
  const bool fits =
      used.workspace_bytes <= planned.workspace_bytes && used.late_bytes <= planned.late_bytes;
  const bool to_the_byte = trainer.recipe().parallel.ep == 1;
  if (to_the_byte ? used == planned : fits) return "";
  return fmt::format("used of the workspace: planned {}, real {}; for deferred products: {}, {}\n",
                     planned.workspace_bytes, used.workspace_bytes, planned.late_bytes,
                     used.late_bytes);
}

}  // namespace ashlar::train::testing_support
