#include "tests/train/parity.h"

#include <cmath>
#include <map>
#include <mutex>

#include "ashlar/comm/self/self.h"
#include "ashlar/tensor/box_order.h"
#include "ashlar/tensor/pieces.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"
#include "tests/train/plan_differences.h"
#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

// Row `row` of the global batch: ids without pattern, in documents that end anywhere, also at the
// borders where context-parallel ranks meet.  With best-fit packing rows end in padding, and one of
// them has nothing else.
struct Row {
  std::vector<int32_t> ids, targets;
  std::vector<Segment> segments;
};

Row row_of(const Recipe& recipe, int64_t step, int64_t row) {
  const int64_t length = recipe.data.sequence_length;
  Row r;
  auto seed = uint32_t(step * 1000 + row + 1);
  const auto random = [&](uint32_t limit) {
    seed = seed * 1664525u + 1013904223u;
    return int64_t((seed >> 8) % limit);
  };
  for (int64_t i = 0; i <= length; ++i)
    r.ids.push_back(int32_t(random(uint32_t(recipe.model.vocab_size))));
  r.targets.assign(r.ids.begin() + 1, r.ids.end());
  r.ids.pop_back();
  for (int64_t i = 0; i < row % 3; ++i) r.targets[size_t(5 * i)] = -1;  // ranks differ in targets
  const bool packed = recipe.data.packing == Packing::kBestFit;
  const int64_t inputs = !packed ? length : row == 3 ? 0 : length - 7 * (row % 4);
  std::fill(r.targets.begin() + inputs, r.targets.end(), -1);
  const int64_t most = row % 4 == 0 ? length : row % 4 == 1 ? length / 2 : 11;
  for (int64_t at = 0; at < inputs;) {
    const int64_t end = std::min(inputs, at + (row % 4 == 1 ? most : 1 + random(uint32_t(most))));
    r.segments.push_back({at, end - at, 0, int64_t(r.segments.size())});
    at = end;
  }
  if (inputs < length)
    r.segments.push_back({inputs, length - inputs, 0, int64_t(r.segments.size()), true});
  return r;
}

// micro_batch rows from `first` on.
struct Batch {
  std::vector<int32_t> ids, targets;
  std::vector<Segment> segments;
  MicroBatch view() const { return {ids, targets, segments}; }
};

Batch batch_of(const Recipe& recipe, int64_t step, int64_t first) {
  Batch batch;
  for (int64_t i = 0; i < recipe.train.micro_batch; ++i) {
    const Row row = row_of(recipe, step, first + i);
    const auto begin = int64_t(batch.ids.size()), document = int64_t(batch.segments.size());
    for (Segment segment : row.segments) {
      segment.row += begin;
      segment.document += document;
      batch.segments.push_back(segment);
    }
    batch.ids.insert(batch.ids.end(), row.ids.begin(), row.ids.end());
    batch.targets.insert(batch.targets.end(), row.targets.begin(), row.targets.end());
  }
  return batch;
}

class Training {
 public:
  Training(const Recipe& recipe, DType compute, comm::Group& ranks, Allocator& allocator)
      : plan_(plan_run(recipe, compute, ranks.size(), 1, ranks.rank())),
        threads_(1),
        trainer_(recipe, compute, allocator, threads_, ranks, plan_.step_memory) {
    trainer_.initialize();
  }
  StepStats gradients(int64_t step) {
    const Recipe& recipe = trainer_.recipe();
    const int64_t dp = trainer_.model().groups().coordinate(parallel::Axis::kDp);
    const int64_t batches = trainer_.model().micro_batches_per_step();
    std::vector<Batch> rows;
    std::vector<MicroBatch> views;
    for (int64_t i = 0; i < batches; ++i)
      rows.push_back(batch_of(recipe, step, (dp * batches + i) * recipe.train.micro_batch));
    for (const Batch& batch : rows) views.push_back(batch.view());
    trainer_.run(step, views);
    trainer_.reduce();
    return trainer_.measure();
  }
  Trainer& trainer() { return trainer_; }
  const RunPlan& plan() const { return plan_; }
  // So far, of all steps that were applied.
  std::vector<GroupTraffic> traffic() const {
    trainer_.model().groups().world().barrier("between steps").wait();
    return testing_support::traffic_of(trainer_);
  }

 private:
  RunPlan plan_;
  Threads threads_;
  Trainer trainer_;
};

using Values = std::map<std::string, std::vector<double>>;  // of whole tensors

struct Steps {
  std::vector<StepStats> stats;
  std::vector<Values> gradients;
  Values weights;
};

template <typename Use>
void for_each_piece(const Trainer& trainer, bool gradient, Use use) {
  for (const Parameter& p : trainer.optimizer().parameters())
    for (const Piece& piece : pieces_of({&p, p.logical, gradient ? p.gradient : p.value}))
      use(piece);
}

// Calls use(position in the whole tensor, position in the piece) for every element.
template <typename Use>
void for_each_element(const Piece& piece, Use use) {
  for (int64_t i = 0; i < piece.box.length.numel(); ++i)
    use(index_in_tensor(piece.logical.global_shape, piece.box, i), i);
}

Values whole_values(const Trainer& trainer, bool gradient) {
  Values values;
  for_each_piece(trainer, gradient, [&](const Piece& piece) {
    std::vector<double>& all = values[piece.logical.name];
    all.resize(size_t(piece.logical.global_shape.numel()));
    for_each_element(piece,
                     [&](int64_t at, int64_t i) { all[size_t(at)] = piece.data.as<double>()[i]; });
  });
  return values;
}

constexpr int64_t kSteps = 2;

const Steps& on_one_rank(const ParityCase& c) {
  static std::mutex mutex;
  static std::map<std::vector<std::string>, Steps> known;
  const std::lock_guard lock(mutex);
  const auto [found, added] = known.try_emplace(c.model);
  if (!added) return found->second;
  Steps& steps = found->second;
  Allocator allocator(Device::kCpu);
  comm::SelfWorld world(allocator);
  Training one(parity_recipe(c, "fp64", false), DType::kF64, world.group(), allocator);
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepStats stats = one.gradients(step);
    steps.stats.push_back(stats);
    steps.gradients.push_back(whole_values(one.trainer(), true));
    one.trainer().apply(stats);
  }
  steps.weights = whole_values(one.trainer(), false);
  return steps;
}

class Differences {
 public:
  void value(const std::string& name, double want, double got) {
    judge(name, std::abs(got - want), std::abs(want));
  }
  void tensors(const std::string& what, const Values& want, const Trainer& trainer, bool gradient) {
    for_each_piece(trainer, gradient, [&](const Piece& piece) {
      const std::vector<double>& whole = want.at(piece.logical.name);
      double scale = 0, difference = 0;
      for (const double v : whole) scale = std::max(scale, std::abs(v));
      for_each_element(piece, [&](int64_t at, int64_t i) {
        difference = std::max(difference, std::abs(piece.data.as<double>()[i] - whole[size_t(at)]));
      });
      judge(what + " " + piece.logical.name, difference, scale);
    });
  }
  const std::string& text() const { return text_; }

 private:
  void judge(const std::string& what, double difference, double scale) {
    if (difference <= 1e-10 * scale || text_.size() > 2000) return;
    text_ += fmt::format("{}: {:.3g} of {:.3g}\n", what, difference, scale);
  }
  std::string text_;
};

}  // namespace

Recipe parity_recipe(const ParityCase& c, const std::string& precision, bool layout) {
  std::vector<std::string> overrides = {"train.precision=" + precision, "train.micro_batch=1",
                                        "train.global_batch=8", "data.num_streams=8",
                                        "data.sequence_length=48"};
  overrides.insert(overrides.end(), c.model.begin(), c.model.end());
  if (layout) {
    overrides.push_back("health.weights_every=1");  // copies must never differ
    overrides.insert(overrides.end(), c.overrides.begin(), c.overrides.end());
  }
  return load_recipe(testing_support::kTiny, overrides);
}

std::string check_parity(const ParityCase& c, comm::Group& ranks, Allocator* counted) {
  Allocator own(Device::kCpu);
  const Steps& want = on_one_rank(c);
  Training training(parity_recipe(c, "fp64", true), DType::kF64, ranks, counted ? *counted : own);
  Differences differences;
  std::vector<GroupTraffic> before;
  for (int64_t step = 0; step < kSteps; ++step) {
    before = training.traffic();
    const StepStats stats = training.gradients(step);
    const std::string at = fmt::format("step {} ", step);
    const StepStats& one = want.stats[size_t(step)];
    differences.value(at + "loss", one.loss, stats.loss);
    differences.value(at + "norm", one.gradient_norm, stats.gradient_norm);
    differences.value(at + "balance loss", one.aux_loss, stats.aux_loss);
    differences.value(at + "z loss", one.z_loss, stats.z_loss);
    differences.value(at + "load entropy", one.entropy, stats.entropy);
    differences.tensors(at + "gradient", want.gradients[size_t(step)], training.trainer(), true);
    training.trainer().apply(stats);
  }
  differences.tensors("weight", want.weights, training.trainer(), false);
  const RunPlan& plan = training.plan();
  std::string text = differences.text() +
                     testing_support::differences(
                         plan.traffic, testing_support::traffic_since(before, training.traffic()));
  if (counted)
    text += testing_support::differences(plan, counted->counts()) +
            testing_support::difference_in_workspace(plan, training.trainer());
  return text;
}

std::vector<double> train_losses(const ParityCase& c, const std::string& precision, int64_t steps,
                                 comm::Group& ranks) {
  const Recipe recipe = parity_recipe(c, precision, ranks.size() > 1);
  Allocator allocator(Device::kCpu);
  Training training(recipe, nn::resolve_precision(recipe.train.precision), ranks, allocator);
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    const StepStats stats = training.gradients(step);
    losses.push_back(stats.loss);
    training.trainer().apply(stats);
  }
  return losses;
}

double largest_loss_difference(const ParityCase& c, comm::Group& ranks) {
  constexpr int64_t kLossSteps = 50;
  Allocator allocator(Device::kCpu);
  comm::SelfWorld world(allocator);
  const std::vector<double> want = train_losses(c, "fp32", kLossSteps, world.group());
  const std::vector<double> got = train_losses(c, "fp32", kLossSteps, ranks);
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) largest = std::max(largest, std::abs(want[i] - got[i]));
  return largest;
}

}  // namespace ashlar::train
