// Traffic of the steps of a real trainer, on threads and on recorded ranks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/parallel/shards.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train::testing_support {

struct Moved {
  int64_t launches = 0, sent_bytes = 0, received_bytes = 0;
  Moved& operator+=(const Moved& more) {
    launches += more.launches;
    sent_bytes += more.sent_bytes;
    received_bytes += more.received_bytes;
    return *this;
  }
  friend Moved operator*(int64_t times, const Moved& m) {
    return {times * m.launches, times * m.sent_bytes, times * m.received_bytes};
  }
  bool operator==(const Moved&) const = default;
};

inline void PrintTo(const Moved& m, std::ostream* out) {
  *out << m.launches << " launches, " << m.sent_bytes << " sent, " << m.received_bytes
       << " received";
}

// By group, op and label.
using Traffic = std::map<std::tuple<std::string, comm::Op, std::string>, Moved>;

// One collective of group.h's table over n ranks, of S bytes of which c are of rank r.
inline Moved moved(comm::Op op, int64_t n, int64_t S, int64_t c) {
  if (op == comm::Op::kReduceScatter) return {1, S - c, (n - 1) * c};
  if (op == comm::Op::kAllGather) return {1, (n - 1) * c, S - c};
  EXPECT_EQ(op, comm::Op::kAllReduce);
  return {1, n == 1 ? 0 : S + (n - 2) * c, n == 1 ? 0 : S + (n - 2) * c};
}

// The same, cut evenly in elements.
inline Moved moved_evenly(comm::Op op, int64_t n, int64_t r, int64_t numel, int64_t width) {
  return moved(op, n, numel * width, (numel * (r + 1) / n - numel * r / n) * width);
}

class Steps {
 public:
  Steps(const Recipe& recipe, DType compute, comm::Group& ranks)
      : Steps(recipe, compute, ranks,
              plan_run(recipe, compute, ranks.size(), 1, ranks.rank()).step_memory, Device::kCpu) {
    trainer_.initialize();
  }
  Steps(const Recipe& recipe, DType compute, comm::RecordingWorld& recorded)
      : Steps(recipe, compute, recorded.group(), std::nullopt, Device::kMeta) {
    trainer_.weights_changed();
  }
  const Trainer& trainer() const { return trainer_; }

  // Traffic of the second of two steps: from updated weights to updated weights.
  Traffic second_step() {
    step(0);
    const Traffic before = traffic();
    step(1);
    Traffic change;
    for (const auto& [key, now] : traffic()) {
      const auto found = before.find(key);
      change[key] = now;
      if (found != before.end()) change[key] += -1 * found->second;
    }
    std::erase_if(change, [](const auto& row) { return row.second.launches == 0; });
    return change;
  }

 private:
  Steps(const Recipe& recipe, DType compute, comm::Group& ranks, std::optional<StepMemory> memory,
        Device device)
      : threads_(1),
        allocator_(device),
        trainer_(recipe, compute, allocator_, threads_, ranks, memory) {}

  void step(int64_t number) {
    const int64_t rows = trainer_.recipe().train.micro_batch,
                  length = trainer_.recipe().data.sequence_length;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < rows * length; ++i)
      ids.push_back(int32_t((7 * i + number) % trainer_.recipe().model.vocab_size));
    const kernels::Sequence sequence = kernels::Sequence::rows(rows, length);
    const MicroBatch batch{ids, ids, sequence.segments()};
    trainer_.run(number, std::vector(size_t(trainer_.model().micro_batches_per_step()), batch));
    trainer_.reduce();
    trainer_.apply(trainer_.measure());
  }

  // A barrier is the last in the queue: all that was called before it has ended.
  Traffic traffic() {
    const parallel::Groups& groups = trainer_.model().groups();
    Traffic all;
    for (comm::Group* group : {&groups.world(), &groups.cp(), &groups.tsp(), &groups.tp(),
                               &groups.data(), &groups.model()})
      group->barrier("end of step").wait();
    for (const comm::Group* group : groups.list())
      for (const comm::TrafficRow& row : group->traffic())
        if (row.op != comm::Op::kBarrier)
          all[{group->name(), row.op, row.label}] +=
              {row.launches, row.sent_bytes, row.received_bytes};
    return all;
  }

  Threads threads_;
  Allocator allocator_;
  Trainer trainer_;
};

using Check = std::function<void(const Steps& steps, const Traffic& second_step)>;

// Traffic of recorded rank `rank` in its second step.
inline void on_recorded_rank(const Recipe& recipe, DType compute, int rank, int num_ranks,
                             const Check& check) {
  Allocator meta(Device::kMeta);
  comm::RecordingWorld recorded(rank, num_ranks, {}, meta);
  Steps steps(recipe, compute, recorded);
  check(steps, steps.second_step());
}

inline void on_recorded_ranks(const Recipe& recipe, DType compute, int num_ranks,
                              const Check& check) {
  for (int rank = 0; rank < num_ranks; ++rank)
    on_recorded_rank(recipe, compute, rank, num_ranks, check);
}

// Calls `check` for every rank as a thread, which must say the same as a recorded one.
inline void on_all_ranks(const Recipe& recipe, DType compute, int num_ranks, const Check& check) {
  Allocator staging(Device::kCpu);
  comm::run_ranks(num_ranks, {}, staging, [&](comm::Group& ranks) {
    Steps steps(recipe, compute, ranks);
    const Traffic real = steps.second_step();
    check(steps, real);
    on_recorded_rank(recipe, compute, ranks.rank(), num_ranks,
                     [&](const Steps&, const Traffic& recorded) { EXPECT_EQ(recorded, real); });
  });
}

// Every bucket of a unit once.  data: who shares the unit.
inline Moved unit_once(const parallel::RankModel& model, const comm::Group& data, int64_t unit,
                       comm::Op op, DType dtype) {
  const int64_t width = size_of(dtype);
  const parallel::Shards& shards = model.shards_of(unit);
  Moved sum;
  for (int64_t b = 0; b < shards.num_buckets(unit); ++b) {
    const int64_t numel = shards.bucket(unit, b).size();
    sum += op == comm::Op::kAllReduce ? moved_evenly(op, data.size(), data.rank(), numel, width)
                                      : moved(op, data.size(), numel * width,
                                              shards.piece(unit, b, data.rank()).size() * width);
  }
  return sum;
}
inline Moved unit_once(const parallel::RankModel& model, int64_t unit, comm::Op op, DType dtype) {
  return unit_once(model, model.groups().data(), unit, op, dtype);
}

// The table of zero.h: how often the weights of block l of 1 .. L, or of the root, are gathered in
// a step of m micro-batches.
inline int64_t times_gathered(int64_t stage, int64_t l, int64_t L, int64_t m) {
  return l > 0 && stage == 3 ? 1 + (l > 2 ? m - 1 : 0) + (l < L - 1 ? m : 0) : 1;
}

// The table of zero.h, for labels "gradients" and "weights".
inline Traffic zero_formula(const Trainer& trainer) {
  const parallel::RankModel& model = trainer.model();
  const int64_t L = model.recipe().model.num_hidden_layers, m = model.micro_batches_per_step();
  const int64_t stage = model.parallel().zero;
  const nn::Types& types = model.local().types();
  Traffic traffic;
  if (model.groups().data().size() == 1) return traffic;
  const comm::Op sum = stage == 0 ? comm::Op::kAllReduce : comm::Op::kReduceScatter;
  for (int64_t l = 0; l <= L; ++l) {
    const int64_t reduced = l > 0 && stage >= 2 ? m : 1;
    traffic[{"data", sum, "gradients"}] += reduced * unit_once(model, l, sum, types.wide);
    if (stage > 0)
      traffic[{"data", comm::Op::kAllGather, "weights"}] +=
          times_gathered(stage, l, L, m) *
          unit_once(model, l, comm::Op::kAllGather, l == 0 ? types.wide : types.activation);
  }
  return traffic;
}

}  // namespace ashlar::train::testing_support
