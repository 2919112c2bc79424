#include "ashlar/sizing/moe_widths.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ashlar/core/error.h"
#include "ashlar/sizing/block_time.h"
#include "ashlar/sizing/model.h"
#include "ashlar/sizing/tiles.h"

namespace ashlar::sizing {
namespace {

// Parameters of a model, all and those of a token with the head.
struct WidthSums {
  double total = 0, active = 0;
};
WidthSums sums_of(const ModelSpec& model) {
  const ModelParameters p = model_parameters(model);
  return {double(p.total), double(p.active + p.embedding)};
}

// How full tiles and waves are of a grouped product whose experts have uneven rows.
double grouped_fill(double rows, int64_t experts, int64_t cols, int64_t units) {
  if (units <= 0) return 1;
  constexpr Tile kTile;
  const double tau = rows / double(experts);
  const double reach = std::sqrt(3 * 0.02 * std::log(double(experts)));
  int64_t tiles = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const double x = experts > 1 ? reach * (2 * double(e) / double(experts - 1) - 1) : 0;
    const int64_t here = int64_t(std::max(0.0, std::round(tau * (1 + x))));
    tiles += (here + kTile.rows - 1) / kTile.rows * ((cols + kTile.cols - 1) / kTile.cols);
  }
  const int64_t waves = std::max<int64_t>(1, (tiles + units - 1) / units);
  const double work = rows * double(cols) / double(kTile.rows * kTile.cols);
  return work / double(waves * units);
}

double train_s(const StepShape& base, const ModelSpec& model, const MoeTarget& target) {
  RankPass pass;
  pass.rows = double(base.micro_batch);
  pass.sequence = double(base.sequence_length);
  pass.tokens = pass.merged = pass.rows * pass.sequence;
  pass.stream_bytes = base.stream_bytes();
  const double H = double(model.hidden_size);
  const BlockTime t = block_time(model.blocks[0], {}, H, pass, base.bf16, target.rates);
  const MixtureShape shape = shape_of(model);
  const double rows = pass.tokens * double(shape.chosen);
  const double up = grouped_fill(rows, shape.experts, 2 * shape.width, target.compute_units);
  const double down = grouped_fill(rows, shape.experts, int64_t(H), target.compute_units);
  const double lost = 2.0 / 3 / up + 1.0 / 3 / down - 1;  // two thirds of the flop are in the first
  const double experts_s = t.experts_forward_s + t.experts_backward_s;
  const EndTime ends = end_time(model, {}, pass, base.bf16, target.rates);
  return (double(shape.blocks) * (t.forward_s() + t.backward_s() + lost * experts_s) +
          ends.input_s + ends.input_backward_s + ends.loss_s) /
         pass.tokens;
}

double generate_s(const ModelSpec& model, const MoeTarget& target) {
  constexpr double kLaunchesOfABlock = 14, kBytes = 2;
  const WidthSums counts = sums_of(model);
  const double k = double(shape_of(model).chosen);
  return target.rates.memory_s(kBytes * counts.active) +
         target.launch_s * double(model.num_blocks()) * (kLaunchesOfABlock + 2 * (k - 1));
}

void mark_front(std::vector<MoeChoice>& all, size_t target) {
  std::vector<size_t> order;
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].fits[target]) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(all[a].train_s, all[a].generate_s[target]) <
           std::pair(all[b].train_s, all[b].generate_s[target]);
  });
  double least = std::numeric_limits<double>::infinity();
  for (const size_t i : order) {
    if (all[i].generate_s[target] >= least) continue;
    least = all[i].generate_s[target];
    all[i].on_front[target] = true;
  }
}

}  // namespace

MixtureShape shape_of(const ModelSpec& model) {
  const auto* moe = std::get_if<MoeSpec>(&model.blocks.at(0).feed_forward);
  const bool alike = std::all_of(model.blocks.begin(), model.blocks.end(), [&](const auto& block) {
    return block.feed_forward == model.blocks[0].feed_forward &&
           block.mixer.index() == model.blocks[0].mixer.index();
  });
  ASHLAR_REQUIRE(moe && alike, kConfig,
                 "widths of experts are compared for models whose blocks are alike and have a "
                 "mixture; this one has others");
  return {moe->num_experts, moe->experts_of_token(), model.num_blocks(), moe->width};
}

ModelSpec with_shape(const ModelSpec& model, const MixtureShape& shape) {
  ModelSpec other = model;
  auto& moe = std::get<MoeSpec>(other.blocks.at(0).feed_forward);
  moe.num_experts = shape.experts;
  moe.width = shape.width;
  if (shape.chosen > 1 && std::holds_alternative<MlpRouterSpec>(moe.router))
    moe.router = LinearRouterSpec{};  // the other kind chooses one expert
  if (auto* linear = std::get_if<LinearRouterSpec>(&moe.router)) linear->num_chosen = shape.chosen;
  other.blocks.assign(size_t(shape.blocks), other.blocks[0]);
  return other;
}

std::vector<MoeChoice> moe_widths(const StepShape& base, const MoeTarget& train,
                                  const std::vector<MoeTarget>& serve,
                                  const MoeWidthsOptions& options) {
  const MixtureShape own = shape_of(base.model);
  const WidthSums wanted = sums_of(base.model);
  const int64_t least = options.least_blocks > 0 ? options.least_blocks : (own.blocks + 1) / 2;
  const int64_t most = options.most_blocks > 0 ? options.most_blocks : 2 * own.blocks;
  std::vector<MoeChoice> all;
  const auto add = [&](const MixtureShape& shape) {
    const ModelSpec model = with_shape(base.model, shape);
    const WidthSums counts = sums_of(model);
    if (std::abs(counts.total / wanted.total - 1) > options.tolerance ||
        std::abs(counts.active / wanted.active - 1) > options.tolerance)
      return;
    MoeChoice choice;
    choice.shape = shape;
    choice.total = counts.total, choice.active = counts.active;
    choice.train_s = train_s(base, model, train);
    for (const MoeTarget& target : serve) {
      choice.generate_s.push_back(generate_s(model, target));
      const double memory = target.rates.device_memory();
      choice.fits.push_back(memory <= 0 || 2 * counts.total <= memory);
      choice.on_front.push_back(false);
    }
    all.push_back(std::move(choice));
  };
  add(own);
  // Active parameters are linear in the width, all parameters in the number of experts: the values
  // within the tolerance are an interval.
  const auto sums = [&](const MixtureShape& shape) {
    return sums_of(with_shape(base.model, shape));
  };
  const auto interval = [&](double at_none, double more, double target, int64_t step) {
    const double low = (target * (1 - options.tolerance) - at_none) / more / double(step);
    const double high = (target * (1 + options.tolerance) - at_none) / more / double(step);
    return std::pair(int64_t(std::ceil(low - 1e-9)), int64_t(std::floor(high + 1e-9)));
  };
  const int64_t E0 = options.expert_step;
  for (const int64_t k : options.chosen)
    for (int64_t L = least; L <= most; ++L) {
      const WidthSums none = sums({E0, k, L, 0}), one = sums({E0, k, L, 1});
      const auto [narrow, wide] =
          interval(none.active, one.active - none.active, wanted.active, options.width_step);
      // Routers make active parameters grow a little with the experts: a width less is tried too.
      for (int64_t i = std::max<int64_t>(1, narrow - 2); i <= wide; ++i) {
        const int64_t I = i * options.width_step;
        const double less = sums({E0, k, L, I}).total, more = sums({2 * E0, k, L, I}).total;
        const auto [few, many] =
            interval(2 * less - more, (more - less) / double(E0), wanted.total, E0);
        for (int64_t e = std::max<int64_t>(1, few); e <= many; ++e) {
          const MixtureShape shape{e * E0, k, L, I};
          if (k <= shape.experts && shape.experts <= options.most_experts && shape != own)
            add(shape);
        }
      }
    }
  for (size_t target = 0; target < serve.size(); ++target) mark_front(all, target);
  return all;
}

}  // namespace ashlar::sizing
