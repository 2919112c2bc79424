#include "ashlar/plan/print.h"

#include <algorithm>

#include "ashlar/core/text.h"
#include "ashlar/nn/precision.h"
#include "ashlar/sizing/model.h"
#include "ashlar/spec/keys.h"
#include "ashlar/train/training_flop.h"

namespace ashlar::plan {
namespace {

constexpr std::string_view kParallel = "parallel.";

std::string mesh_lines(const MeshPlan& plan, const Recipe& recipe) {
  const ParallelSpec& p = plan.parallel;
  Recipe resolved = recipe;
  resolved.parallel = p;
  std::string keys;
  for (const Key& key : recipe_keys()) {
    if (!key.name.starts_with(kParallel)) continue;
    const std::string_view name = std::string_view(key.name).substr(kParallel.size());
    if (name.size() == 2 || name == "tsp") continue;              // the axes
    const bool full = keys.size() - (keys.rfind('\n') + 1) > 70;  // npos + 1 is 0
    keys += fmt::format("{}{} {}",
                        keys.empty() ? ""
                        : full       ? ",\n       "
                                     : ", ",
                        name, value_text(key.get(resolved)));
  }
  return fmt::format("mesh   {} rank{} = {}\n       {}\n\n", format_thousands(p.num_ranks()),
                     p.num_ranks() == 1 ? "" : "s", mesh_text(p), keys);
}

std::string model_lines(const MeshPlan& plan, const Recipe& recipe, DType compute) {
  const ModelParameters counts = model_parameters(model_of(recipe.model));
  const int64_t tokens = recipe.train.global_batch * recipe.data.sequence_length;
  const train::RunPlan& first = plan.classes[0].plan;
  std::string text =
      recipe.tune.trains_all()
          ? fmt::format("parameters     {:>20}   (closed formula: {})\n",
                        format_thousands(first.num_parameters), format_thousands(counts.total))
          : fmt::format(
                "parameters     {:>20}   (closed formula, without adapters)\n"
                "  trained      {:>20}\n",
                format_thousands(counts.total), format_thousands(first.num_parameters));
  text += fmt::format(
      "  without embedding {:>15}\n"
      "  active       {:>20}   (without embedding)\n"
      "precision      {:>20}\n"
      "tokens a step  {:>20}\n"
      "flop a token   {:>20.4g}   (exact-causal: forward and backward)\n",
      format_thousands(counts.without_embedding), format_thousands(counts.active),
      nn::precision_name(compute), format_thousands(tokens), train::training_flop(recipe));
  const std::string of_kernels = "the kernels' own record: forward, backward, update";
  if (plan.costs)
    text += fmt::format("flop a step    {:>20.4g}   (all ranks; {})\n",
                        double(train::total(*plan.costs).flop), of_kernels);
  else
    text +=
        fmt::format("flop a step    {:>20.4g}   (rank {}; {})\n",
                    double(train::total(first.costs).flop), plan.classes[0].ranks[0], of_kernels);
  return text;
}

std::string memory_lines(const train::RunPlan& plan) {
  std::string text = fmt::format("{:<12} {:>20} {:>12}\n", "memory", "peak bytes", "");
  const auto line = [&](std::string_view name, int64_t peak) {
    text += fmt::format("{:<12} {:>20} {:>12}\n", name, format_thousands(peak), format_bytes(peak));
  };
  for (int tag = 0; tag < kNumTags; ++tag)
    line(name_of(Tag(tag)), plan.memory.tags[size_t(tag)].peak_bytes);
  line("total", plan.memory.total.peak_bytes);
  return text + fmt::format("all of it taken at the start; workspace fullest in: {}\n",
                            plan.workspace_peak);
}

std::string device_lines(const DeviceSpec& device, const train::RunPlan& plan) {
  const auto line = [](std::string_view name, int64_t bytes, std::string_view remark = "") {
    return fmt::format("{:<12} {:>20} {:>12}{}\n", name, format_thousands(bytes),
                       format_bytes(bytes), remark);
  };
  const int64_t taken = plan.memory.total.peak_bytes;
  const int64_t left = device.memory_bytes - device.reserved_bytes - taken;
  return fmt::format("\non {}{}:\n", device.name,
                     device.architecture.empty() ? "" : " (" + device.architecture + ")") +
         line("the run", taken) +
         line("reserved", device.reserved_bytes, "  outside of the plan: driver, code, libraries") +
         line("memory", device.memory_bytes) +
         (left >= 0 ? line("left", left)
                    : fmt::format("it does not fit: {} too much\n", format_bytes(-left))) +
         "\npinned memory of the host:\n" + line("lists", plan.pinned_bytes) +
         line("saves", plan.pinned_save_bytes());
}

std::string traffic_line(std::string_view axis, int size, std::string_view op,
                         std::string_view label, const comm::TrafficRow& row) {
  return fmt::format("{:<8} {:>6} {:<15} {:<28} {:>10} {:>20} {:>20}\n", axis, size, op, label,
                     format_thousands(row.launches), format_thousands(row.sent_bytes),
                     format_thousands(row.received_bytes));
}

std::string traffic_lines(const train::RunPlan& plan) {
  std::string text =
      fmt::format("{:<8} {:>6} {:<15} {:<28} {:>10} {:>20} {:>20}\n", "axis", "ranks", "collective",
                  "label", "launches", "bytes sent", "bytes received");
  std::vector<train::GroupTraffic> totals;
  for (const train::GroupTraffic& t : plan.traffic) {
    if (t.size == 1) continue;
    text += traffic_line(t.group, t.size, name_of(t.row.op), t.row.label, t.row);
    if (totals.empty() || totals.back().group != t.group) totals.push_back({t.group, t.size, {}});
    comm::TrafficRow& sum = totals.back().row;
    sum.launches += t.row.launches;
    sum.sent_bytes += t.row.sent_bytes;
    sum.received_bytes += t.row.received_bytes;
  }
  for (const train::GroupTraffic& t : totals)
    text += traffic_line(t.group, t.size, "total", "", t.row);
  return totals.empty() ? "" : "\n" + text;
}

std::string checkpoint_lines(const checkpoint::StepSize& size) {
  const auto line = [](std::string_view name, const std::string& step, const std::string& most) {
    return fmt::format("{:<12} {:>20} {:>20}\n", name, step, most);
  };
  return fmt::format(
      "\n{:<12} {:>20} {:>20}\n{}{}{}{}", "checkpoint", "a step", "a writer at most",
      line("files", format_thousands(size.files), format_thousands(size.max_writer_files)),
      line("boxes", format_thousands(size.boxes), format_thousands(size.max_writer_boxes)),
      line("bytes", format_thousands(size.data_bytes), format_thousands(size.max_writer_bytes)) +
          fmt::format("{:<12} {:>20} {:>20}\n", "", "mean of a writer",
                      format_thousands(int64_t(size.mean_writer_bytes))),
      line("index.bin", format_thousands(size.index_bytes), ""));
}

std::string kernel_lines(const train::KernelCosts& costs) {
  std::vector<std::pair<std::string, kernels::Cost>> rows(costs.begin(), costs.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.flop > b.second.flop; });
  std::string text = fmt::format("{:<32} {:>12} {:>12}\n", "kernel", "flop a step", "bytes");
  for (const auto& [op, cost] : rows)
    text += fmt::format("{:<32} {:>12.4g} {:>12.4g}\n", op, double(cost.flop), double(cost.bytes));
  return text;
}

constexpr size_t kMostClasses = 8;  // that are printed in full

std::string class_lines(const MeshPlan& plan, size_t index) {
  const RankClass& c = plan.classes[index];
  std::string text;
  if (plan.costs)
    text = fmt::format("\nclass {} of {}: {} of {} ranks: {}\nbelow, rank {}: flop a step {:.6g}\n",
                       index + 1, plan.classes.size(), format_thousands(int64_t(c.ranks.size())),
                       format_thousands(plan.parallel.num_ranks()), ranges_text(c.ranks),
                       c.ranks[0], double(train::total(c.plan.costs).flop));
  return text + "\n" + memory_lines(c.plan) + traffic_lines(c.plan);
}

// Where there are many classes: what their memory is, and the one with most of it.
std::string many_classes_lines(const MeshPlan& plan) {
  const auto total = [](const RankClass& c) { return c.plan.memory.total.peak_bytes; };
  const auto by_total = [&](const RankClass& a, const RankClass& b) { return total(a) < total(b); };
  const auto [least, most] =
      std::minmax_element(plan.classes.begin(), plan.classes.end(), by_total);
  return fmt::format(
             "\n{} classes of ranks, whose totals are from {} to {} bytes; the fullest follows"
             "\n(--rank R shows the class of one rank, --json all)\n",
             plan.classes.size(), format_thousands(total(*least)), format_thousands(total(*most))) +
         class_lines(plan, size_t(most - plan.classes.begin()));
}

}  // namespace

std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0, end = 0; i < numbers.size(); i = end) {
    const int step = i + 1 < numbers.size() ? numbers[i + 1] - numbers[i] : 1;
    for (end = i + 1; end < numbers.size() && numbers[end] - numbers[end - 1] == step;) ++end;
    if (step > 1 && end - i < 3) end = i + 1;  // no series
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (end - i > 1) text += fmt::format("-{}", numbers[end - 1]);
    if (end - i > 1 && step > 1) text += fmt::format(" step {}", step);
  }
  return text;
}

std::string describe(const MeshPlan& plan, const Recipe& recipe, DType compute) {
  std::string text = mesh_lines(plan, recipe) + model_lines(plan, recipe, compute);
  if (plan.classes.size() > kMostClasses)
    text += many_classes_lines(plan);
  else
    for (size_t i = 0; i < plan.classes.size(); ++i) text += class_lines(plan, i);
  if (plan.device) text += device_lines(*plan.device, plan.classes[0].plan);
  if (plan.checkpoint) text += checkpoint_lines(*plan.checkpoint);
  const train::KernelCosts& costs = plan.costs ? *plan.costs : plan.classes[0].plan.costs;
  return text + "\n" + kernel_lines(costs);
}

}  // namespace ashlar::plan
