#include "ashlar/plan/json.h"

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/nn/precision.h"
#include "ashlar/sizing/model.h"
#include "ashlar/spec/keys.h"
#include "ashlar/train/training_flop.h"

namespace ashlar::plan {
namespace {

Ordered json_of(const KeyValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag;
  if (const int64_t* number = std::get_if<int64_t>(&value)) return *number;
  if (const double* number = std::get_if<double>(&value)) return *number;
  return std::get<std::string>(value);
}

// Every key of the section, resolved.
Ordered parallel_json(const MeshPlan& plan, const Recipe& recipe) {
  Recipe resolved = recipe;
  resolved.parallel = plan.parallel;
  const std::string section = "parallel.";
  Ordered json;
  for (const Key& key : recipe_keys())
    if (key.name.starts_with(section))
      json[key.name.substr(section.size())] = json_of(key.get(resolved));
  return json;
}

Ordered model_json(const MeshPlan& plan, const Recipe& recipe) {
  const ModelParameters counts = model_parameters(model_of(recipe.model));
  return {{"parameters", plan.classes[0].plan.num_parameters},
          {"parameters_formula", counts.total},
          {"parameters_without_embedding_formula", counts.without_embedding},
          {"active_parameters_formula", counts.active},
          {"training_flop_per_token_formula", train::training_flop(recipe)}};
}

Ordered work_json(const train::KernelCosts& costs) {
  const kernels::Cost sum = train::total(costs);
  Ordered kernels = Ordered::object();
  for (const auto& [op, cost] : costs) kernels[op] = {{"flop", cost.flop}, {"bytes", cost.bytes}};
  return {{"flop", sum.flop}, {"bytes", sum.bytes}, {"kernels", kernels}};
}

Ordered memory_json(const train::RunPlan& plan) {
  Ordered json;
  for (int tag = 0; tag < kNumTags; ++tag)
    json[std::string(name_of(Tag(tag)))] = plan.memory.tags[size_t(tag)].peak_bytes;
  json["total"] = plan.memory.total.peak_bytes;
  return json;
}

Ordered traffic_json(const train::RunPlan& plan) {
  Ordered rows = Ordered::array();
  for (const train::GroupTraffic& t : plan.traffic) {
    if (t.size == 1) continue;
    rows.push_back({{"axis", t.group},
                    {"ranks", t.size},
                    {"collective", name_of(t.row.op)},
                    {"label", t.row.label},
                    {"launches", t.row.launches},
                    {"sent_bytes", t.row.sent_bytes},
                    {"received_bytes", t.row.received_bytes}});
  }
  return rows;
}

Ordered checkpoint_json(const checkpoint::StepSize& size) {
  return {{"files_per_step", size.files},
          {"max_files_per_writer", size.max_writer_files},
          {"index_bytes", size.index_bytes},
          {"max_writer_bytes", size.max_writer_bytes},
          {"mean_writer_bytes", size.mean_writer_bytes},
          {"boxes_per_step", size.boxes},
          {"max_boxes_per_writer", size.max_writer_boxes},
          {"data_files", size.data_files},
          {"data_bytes", size.data_bytes}};
}

Ordered class_json(const RankClass& c) {
  return {{"ranks", c.ranks},
          {"memory_bytes", memory_json(c.plan)},
          {"allocations", c.plan.memory.num_allocations},
          {"workspace_peak", c.plan.workspace_peak},
          {"step", work_json(c.plan.costs)},
          {"traffic", traffic_json(c.plan)}};
}

Ordered device_json(const DeviceSpec& device, const train::RunPlan& plan) {
  const int64_t taken = plan.memory.total.peak_bytes + device.reserved_bytes;
  return {{"name", device.name},
          {"architecture", device.architecture},
          {"memory_bytes", device.memory_bytes},
          {"reserved_bytes", device.reserved_bytes},
          {"pinned_bytes", plan.pinned_bytes},
          {"pinned_save_bytes", plan.pinned_save_bytes()},
          {"fits", taken <= device.memory_bytes}};
}

}  // namespace

std::string to_json(const MeshPlan& plan, const Recipe& recipe, DType compute) {
  Ordered classes = Ordered::array();
  for (const RankClass& c : plan.classes) classes.push_back(class_json(c));
  Ordered json = {{"recipe", recipe.name.empty() ? recipe.source : recipe.name},
                  {"ranks", plan.parallel.num_ranks()},
                  {"parallel", parallel_json(plan, recipe)},
                  {"model", model_json(plan, recipe)},
                  {"precision", nn::precision_name(compute)},
                  {"tokens_per_step", recipe.train.global_batch * recipe.data.sequence_length},
                  {"classes", classes}};
  if (plan.device) json["device"] = device_json(*plan.device, plan.classes[0].plan);
  if (plan.costs) json["all_ranks"] = work_json(*plan.costs);
  if (plan.checkpoint) json["checkpoint"] = checkpoint_json(*plan.checkpoint);
  return one_line(json);
}

}  // namespace ashlar::plan
