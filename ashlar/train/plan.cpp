#include "ashlar/train/plan.h"

#include <algorithm>
#include <map>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/core/text.h"
#include "ashlar/sizing/zaya.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train {
namespace {

// One step and one evaluation; every micro-batch of the real run takes the same memory.
void run_once(Trainer& trainer, kernels::Recorder& recorder) {
  const int64_t rows = trainer.recipe().train.micro_batch,
                length = trainer.recipe().data.sequence_length;
  const std::vector<int32_t> ids(size_t(rows * length), 0);
  const kernels::Sequence sequence = kernels::Sequence::rows(rows, length);
  const MicroBatch batch{ids, ids, sequence.segments()};
  trainer.evaluate(batch);
  recorder.records.clear();  // the step's work alone is reported
  trainer.begin_step(0);
  for (int64_t i = 0; i < trainer.micro_batches_per_step(); ++i) trainer.accumulate(batch);
  trainer.reduce();
  trainer.apply(trainer.measure());
}

}  // namespace

DType resolve_precision(Precision precision) {
  switch (precision) {
    case Precision::kBF16:
      return DType::kBF16;
    case Precision::kF32:
      return DType::kF32;
    case Precision::kF64:
      return DType::kF64;
    case Precision::kAuto:
      break;
  }
  return nn::auto_compute();
}

RunPlan plan_run(const Recipe& recipe, DType compute, int num_ranks, int num_threads, int rank) {
  RunPlan plan;
  // As many as the run will have: Newton-Schulz takes workspace per thread.
  Threads threads(num_threads > 0 ? num_threads : int(recipe.train.threads));
  kernels::Recorder recorder;
  {
    Allocator allocator(Device::kMeta);
    comm::RecordingWorld world(rank, num_ranks, {}, allocator);
    Trainer trainer(recipe, compute, allocator, threads, world.group(), std::nullopt);
    run_once(trainer, recorder);
    plan.workspace_bytes = trainer.workspace_peak_bytes();
  }
  Allocator allocator(Device::kMeta);
  comm::RecordingWorld world(rank, num_ranks, {}, allocator);
  Trainer trainer(recipe, compute, allocator, threads, world.group(), plan.workspace_bytes,
                  &recorder);
  plan.num_parameters = trainer.num_parameters();
  run_once(trainer, recorder);
  plan.memory = allocator.counts();
  std::map<std::string, kernels::Cost> by_op;
  for (const kernels::Record& record : recorder.records) {
    kernels::Cost& cost = by_op[std::string(record.op)];
    cost.flop += record.cost.flop;
    cost.bytes += record.cost.bytes;
  }
  plan.step_cost = recorder.total();
  plan.cost_by_op.assign(by_op.begin(), by_op.end());
  std::sort(plan.cost_by_op.begin(), plan.cost_by_op.end(),
            [](const auto& a, const auto& b) { return a.second.flop > b.second.flop; });
  return plan;
}

std::string describe(const RunPlan& plan, const Recipe& recipe, DType compute) {
  const ZayaParameters counts = zaya_parameters(recipe.model);
  const int64_t tokens = recipe.train.global_batch * recipe.data.sequence_length;
  std::string text = fmt::format(
      "parameters   {:>20}   (closed formula: {})\n"
      "  without embedding {:>13}\n"
      "  active            {:>13}   (without embedding)\n"
      "precision    {:>20}\n"
      "tokens a step {:>19}\n"
      "flop a step  {:>20.4g}   (the kernels' own record: forward, backward, update)\n"
      "flop a token {:>20.4g}   (exact-causal: forward and backward)\n\n"
      "{:<12} {:>20} {:>12}\n",
      format_thousands(plan.num_parameters), format_thousands(counts.total),
      format_thousands(counts.without_embedding), format_thousands(counts.active),
      compute == DType::kBF16  ? "bf16"
      : compute == DType::kF32 ? "fp32"
                               : "fp64",
      format_thousands(tokens), double(plan.step_cost.flop),
      zaya_flop(recipe.model, recipe.data.sequence_length).training, "memory", "peak bytes", "");
  for (int tag = 0; tag < kNumTags; ++tag) {
    const int64_t peak = plan.memory.tags[size_t(tag)].peak_bytes;
    text += fmt::format("{:<12} {:>20} {:>12}\n", name_of(Tag(tag)), format_thousands(peak),
                        format_bytes(peak));
  }
  text += fmt::format("{:<12} {:>20} {:>12}\n\n{:<26} {:>12} {:>12}\n", "total",
                      format_thousands(plan.memory.total.peak_bytes),
                      format_bytes(plan.memory.total.peak_bytes), "kernel", "flop a step", "bytes");
  for (const auto& [op, cost] : plan.cost_by_op)
    text += fmt::format("{:<26} {:>12.4g} {:>12.4g}\n", op, double(cost.flop), double(cost.bytes));
  return text;
}

}  // namespace ashlar::train
