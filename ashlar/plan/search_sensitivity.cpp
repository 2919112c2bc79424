// How the answer of a search moves with the numbers of the profile: each by 10 % down and up, in
// closed form for all layouts that were simulated, scaled to their simulations; where another
// layout would win, both are simulated again with that number.
#include <algorithm>
#include <functional>

#include "ashlar/core/error.h"
#include "ashlar/plan/search_stages.h"

namespace ashlar::plan {
namespace {

constexpr double kMoved = 0.1;
constexpr double kShown = 1e-4;  // least change of the best layout's time
constexpr int kMostSimulatedAgain = 3;

struct MovedNumber {
  std::string name;
  std::function<void(MachineFile&, double factor)> scale;
};

std::vector<MovedNumber> numbers_of(const MachineFile& machine) {
  std::vector<MovedNumber> numbers;
  for (const auto& [name, quantity] : machine.profile.quantities)
    if (!name.starts_with("node.") && name != "device.memory")
      numbers.push_back({name, [name = name](MachineFile& m, double factor) {
                           m.profile.quantities.find(name)->second.value *= factor;
                         }});
  std::vector<machine::CollectiveOp> ops;
  for (const machine::CollectiveCurve& curve : machine.profile.collectives)
    if (std::find(ops.begin(), ops.end(), curve.op) == ops.end()) ops.push_back(curve.op);
  for (const machine::CollectiveOp op : ops)
    numbers.push_back(
        {fmt::format("times of {}", machine::to_string(op)), [op](MachineFile& m, double factor) {
           for (machine::CollectiveCurve& curve : m.profile.collectives)
             if (curve.op == op)
               for (machine::CurvePoint& p : curve.points)
                 p.p10_us *= factor, p.median_us *= factor, p.p90_us *= factor;
         }});
  if (!machine.kernels.empty())
    numbers.push_back({"times of kernels", [](MachineFile& m, double factor) {
                         for (machine::TimedKernel& kernel : m.kernels)
                           kernel.p10_us *= factor, kernel.median_us *= factor,
                               kernel.p90_us *= factor;
                       }});
  return numbers;
}

class MovedTimes {
 public:
  MovedTimes(SearchStages& stages, const std::vector<SearchedLayout>& layouts)
      : stages_(stages), layouts_(layouts) {
    for (const SearchedLayout& layout : layouts) shapes_.push_back(stages.shape_of(layout));
  }

  // Seconds a token of every layout.
  std::vector<double> on(const MachineFile& machine) const {
    const sizing::MachineRates rates(machine.profile, machine.kernels, stages_.options().num_ranks,
                                     stages_.compute() == DType::kBF16,
                                     stages_.options().ranks_per_node);
    std::vector<double> seconds;
    for (size_t i = 0; i < layouts_.size(); ++i) {
      const double moved = sizing::step_time(shapes_[i], rates).total_s / layouts_[i].time.total_s;
      seconds.push_back(moved * layouts_[i].step_s() / double(layouts_[i].tokens));
    }
    return seconds;
  }

  // The layout that wins by the closed form; 0 if the best stays, or a simulation says so.
  size_t winner(const MachineFile& machine, const std::vector<double>& seconds, bool& simulated) {
    const size_t first = size_t(std::min_element(seconds.begin(), seconds.end()) - seconds.begin());
    if (first == 0 || num_simulated_ >= kMostSimulatedAgain) return first;
    ++num_simulated_;
    simulated = true;
    const auto again_s = [&](size_t i) {
      const SimulatedStep step = stages_.simulated_on(machine, layouts_[i]);
      return (step.step_s + step.between_s) / double(layouts_[i].tokens);
    };
    return again_s(first) < again_s(0) ? first : 0;
  }

 private:
  SearchStages& stages_;
  const std::vector<SearchedLayout>& layouts_;
  std::vector<sizing::StepShape> shapes_;
  int num_simulated_ = 0;
};

}  // namespace

std::vector<Sensitivity> sensitivity_of(SearchStages& stages,
                                        const std::vector<SearchedLayout>& layouts) {
  MovedTimes times(stages, layouts);
  const Goal goal = stages.options().goal;
  const double now_s = layouts[0].step_s() / double(layouts[0].tokens);
  std::vector<Sensitivity> all;
  for (const MovedNumber& number : numbers_of(stages.machine())) {
    Sensitivity moved{number.name, 0, 0, "", "", false};
    for (const bool up : {false, true}) {
      MachineFile machine = stages.machine();
      number.scale(machine, up ? 1 + kMoved : 1 - kMoved);
      const std::vector<double> seconds = times.on(machine);
      (up ? moved.more : moved.less) = seconds[0] / now_s - 1;
      if (goal != Goal::kTime) continue;
      if (const size_t best = times.winner(machine, seconds, moved.simulated); best > 0)
        (up ? moved.more_best : moved.less_best) = layouts[best].keys;
    }
    const double largest = std::max(std::abs(moved.less), std::abs(moved.more));
    if (largest >= kShown || !moved.less_best.empty() || !moved.more_best.empty())
      all.push_back(std::move(moved));
  }
  std::stable_sort(all.begin(), all.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::max(std::abs(a.less), std::abs(a.more)) >
           std::max(std::abs(b.less), std::abs(b.more));
  });
  return all;
}

}  // namespace ashlar::plan
