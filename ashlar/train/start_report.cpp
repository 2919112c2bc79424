#include "ashlar/train/start_report.h"

#include <fmt/ranges.h>

#include "ashlar/core/text.h"
#include "ashlar/sizing/model.h"
#include "ashlar/train/changes.h"

namespace ashlar::train {

std::string describe_run(const Trainer& trainer, const RunPlan& plan, const std::string& isa,
                         double peak_flops, std::string_view origin_of_peak) {
  const parallel::RankModel& model = trainer.model();
  const Recipe& recipe = model.recipe();
  const ParallelSpec& p = model.parallel();
  const int num_ranks = model.groups().world().size();
  const int num_threads = trainer.context().threads->size();
  std::string ranks, parameters = format_thousands(plan.num_parameters) + " parameters";
  if (!recipe.tune.trains_all())
    parameters =
        fmt::format("{} trained parameters, {} of the model", format_thousands(plan.num_parameters),
                    format_thousands(model_parameters(model.local().spec()).total));
  if (num_ranks > 1)
    ranks = fmt::format("{} ranks ({}, zero {}), ", num_ranks, mesh_text(p), p.zero);
  return fmt::format(
      "{}: {}, {} tokens a step, {} on {} ({}{} thread{}{}), peak {:.0f} GFLOP/s {}, "
      "memory {}{}",
      recipe.name.empty() ? recipe.source : recipe.name, parameters,
      format_thousands(recipe.train.global_batch * recipe.data.sequence_length),
      name_of(model.local().types().compute), isa, ranks, num_threads, num_threads > 1 ? "s" : "",
      ranks.empty() ? "" : " each", peak_flops * 1e-9, origin_of_peak,
      format_bytes(plan.memory.total.peak_bytes), ranks.empty() ? "" : " a rank");
}

bool report_resumed(const Restored& saved, const Trainer& trainer, const std::string& isa,
                    bool same_data, Log& log) {
  const Recipe& recipe = trainer.recipe();
  const int64_t step = saved.counters.step;
  log.info("continuing after step {} ({} tokens)", step, format_thousands(saved.counters.tokens));
  std::vector<std::string> others;
  if (!saved.isa.empty() && saved.isa != isa)
    others.push_back(fmt::format("the instruction set of kernels was {}, is {}", saved.isa, isa));
  auto reasons = report_changes(saved.recipe, fmt::format("the recipe of step {}", step), recipe,
                                others, step, log);
  if (!same_data) reasons.insert(reasons.begin(), "the data");
  if (!reasons.empty())
    log.info("the window of health.window steps begins anew, because these changed: {}",
             fmt::join(reasons, ", "));
  if (saved.num_converted > 0)
    log.info("the state of step {} was converted to train.precision {}{}: {} tensors", step,
             kPrecisionNames[size_t(recipe.train.precision)],
             trainer.model().local().types().compute == DType::kF64 ? "" : ", which rounds it",
             saved.num_converted);
  return !reasons.empty();
}

}  // namespace ashlar::train
