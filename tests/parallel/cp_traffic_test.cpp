// Bytes and launches of context parallelism are the closed formulas of docs/parallel/cp.md, as
// integers, between real ranks and recorded.
#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/parallel/cp_split.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;
using comm::Op;
using comm::TrafficRow;

struct TrafficRun {
  Recipe recipe;
  DType compute = DType::kF64;
};

TrafficRun how_of(CpLayout layout, int num_ranks, CpExchange kind, DType compute, int64_t rows,
                  int64_t length) {
  TrafficRun how{recipe_of(nn::tiny_spec(), rows, length), compute};
  how.recipe.parallel.cp = num_ranks;
  how.recipe.parallel.cp_layout = layout;
  how.recipe.parallel.cp_exchange = kind;
  return how;
}

// Bytes that rank r has moved after `passes` forward and backward passes.
std::vector<TrafficRow> formula(const TrafficRun& how, int r, int64_t passes) {
  const ModelKeys& spec = how.recipe.model;
  const ParallelSpec& parallel = how.recipe.parallel;
  const int64_t n = parallel.cp, L = spec.num_hidden_layers, B = how.recipe.train.micro_batch;
  const int64_t T = B * how.recipe.data.sequence_length / n,
                kv = spec.num_key_value_heads * spec.head_dim;
  const int64_t C = (spec.num_attention_heads + spec.num_key_value_heads) * spec.head_dim;
  const int64_t stream = how.compute == DType::kF64 ? 8 : 4;
  const int64_t activation = how.compute == DType::kBF16 ? 2 : stream;
  const bool zigzag = parallel.cp_layout == CpLayout::kZigzag;
  const int64_t behind = (r < n - 1) + (zigzag && r > 0), before = (r > 0) + (zigzag && r < n - 1);
  const int64_t forwards = passes * (how.recipe.train.recompute ? 2 * L - 1 : L);
  const int64_t backwards = passes * L;
  const int64_t message = B * (2 * C + kv / 2) * stream;
  const auto row = [](Op op, const char* label, int64_t launches, int64_t sent, int64_t received) {
    return TrafficRow{op, label, launches, launches * sent, launches * received};
  };
  const TrafficRow halo =
      row(Op::kSendReceive, "halo", forwards, behind * message, before * message);
  const TrafficRow halo_gradient =
      row(Op::kSendReceive, "halo gradient", backwards, before * message, behind * message);
  const auto keys = [&](Op op, int64_t launches, int64_t bytes) {
    return row(op, "keys values", launches, bytes, bytes);
  };
  const auto gradient = [&](Op op, int64_t launches, int64_t bytes) {
    return row(op, "keys values gradient", launches, bytes, bytes);
  };
  if (parallel.cp_exchange == CpExchange::kAllToAll) {
    const int64_t K = spec.num_key_value_heads, D = spec.head_dim;
    const int64_t query = (n - 1) * T * spec.num_attention_heads / n * D,
                  key = (n - 1) * T * std::max<int64_t>(1, K / n) * D;
    const auto both = [&](const char* label, int64_t launches, int64_t numel, int64_t width) {
      return row(Op::kAllToAll, label, launches, numel * width, numel * width);
    };
    return {both("keys values", 2 * (forwards + (K < n ? backwards : 0)), key, activation),
            both("keys values gradient", 2 * backwards, key, stream),
            both("output", forwards + backwards, query, activation),
            both("output gradient", backwards, query, activation),
            both("queries", forwards, query, activation),
            both("queries gradient", backwards, query, stream),
            halo,
            halo_gradient};
  }
  if (parallel.cp_exchange == CpExchange::kAllGather)
    return {gradient(Op::kReduceScatter, 2 * backwards, (n - 1) * T * kv * stream),
            keys(Op::kAllGather, 2 * (forwards + backwards), (n - 1) * T * kv * activation), halo,
            halo_gradient};
  return {halo, halo_gradient,
          keys(Op::kSendReceive, (n - 1) * (forwards + backwards), 2 * T * kv * activation),
          gradient(Op::kSendReceive, (n - 1) * backwards, 2 * T * kv * stream)};
}

std::vector<TrafficRun> all_traffic_runs() {
  std::vector<TrafficRun> all;
  for (const int n : {2, 3, 4})
    for (const CpLayout layout : {CpLayout::kContiguous, CpLayout::kZigzag})
      for (const CpExchange kind :
           {CpExchange::kAllGather, CpExchange::kRing, CpExchange::kAllToAll})
        for (const DType compute : {DType::kF64, DType::kBF16}) {
          if (kind == CpExchange::kAllToAll && n == 3) continue;  // 4 heads
          all.push_back(how_of(layout, n, kind, compute, 2, 24));
          all.back().recipe.train.recompute = n == 3 || kind == CpExchange::kAllToAll;
        }
  return all;
}

std::string describe(const TrafficRun& how, int rank) {
  const ParallelSpec& p = how.recipe.parallel;
  return fmt::format("rank {} of {}, layout {}, kind {}, {}", rank, p.cp, int(p.cp_layout),
                     int(p.cp_exchange), name_of(how.compute));
}

Batch documents(const TrafficRun& how, const std::vector<std::vector<int64_t>>& lengths) {
  return batch_of(lengths, how.recipe.model.vocab_size);
}

Batch whole_rows(const TrafficRun& how) {
  const std::vector<int64_t> row = {how.recipe.data.sequence_length};
  return documents(how, std::vector(size_t(how.recipe.train.micro_batch), row));
}

const std::vector<std::vector<int64_t>> kMany = {{5, 7, 1, 11}, {12, 12}};

int64_t communication_bytes(const TinyRank& rank) {
  return rank.memory().tags[size_t(Tag::kCommunication)].peak_bytes;
}

struct Recorded {
  std::vector<TrafficRow> traffic;
  int64_t communication_bytes, workspace_bytes;
};
Recorded record(const TrafficRun& how, int index) {
  Allocator allocator(Device::kMeta);
  comm::RecordingWorld world(index, int(how.recipe.parallel.cp), {}, allocator);
  TinyRank rank(how.recipe, world.group(), {.compute = how.compute, .device = Device::kMeta});
  rank.step(whole_rows(how));
  return {rank.model.groups().cp().traffic(), communication_bytes(rank), rank.workspace_bytes()};
}

// Documents change no byte: a row of many costs what a row of one does.
TEST(CpTraffic, RealAndRecordedCountersAreTheFormulas) {
  for (const TrafficRun& how : all_traffic_runs()) {
    Allocator allocator(Device::kCpu);
    comm::run_ranks(int(how.recipe.parallel.cp), {}, allocator, [&](comm::Group& ranks) {
      TinyRank rank(how.recipe, ranks, {.compute = how.compute});
      rank.step(documents(how, kMany));
      rank.step(whole_rows(how));
      EXPECT_EQ(rank.model.groups().cp().traffic(), formula(how, ranks.rank(), 2))
          << describe(how, ranks.rank());
      EXPECT_EQ(record(how, ranks.rank()).traffic, formula(how, ranks.rank(), 1))
          << describe(how, ranks.rank());
    });
  }
}

// Memory by heads beside memory that gathers (docs/parallel/cp.md), where nothing is rounded up.
TEST(CpTraffic, MemoryIsTheFormula) {
  for (const int64_t n : {2, 4})
    for (const DType compute : {DType::kF64, DType::kBF16}) {
      const auto bytes = [&](CpExchange kind) {
        return record(how_of(CpLayout::kZigzag, int(n), kind, compute, 2, 64), 0)
            .communication_bytes;
      };
      const ModelKeys spec = nn::tiny_spec();
      const int64_t T = 2 * 64 / n, D = spec.head_dim, s = compute == DType::kF64 ? 8 : 4,
                    a = compute == DType::kF64 ? 8 : 2;
      const int64_t K = spec.num_key_value_heads, N = spec.num_attention_heads;
      const int64_t gathered = 2 * n * T * K * D * (a + s);
      const int64_t by_heads =
          T * N * D * (2 * a + s) + T * std::max(K, n) * D * ((K < n ? 4 : 2) * a + 4 * s);
      EXPECT_EQ(bytes(CpExchange::kAllToAll) - bytes(CpExchange::kAllGather), by_heads - gathered)
          << n << " " << name_of(compute);
    }
}

TEST(CpTraffic, AnyRankOfALargeWorldIsRecorded) {
  for (const CpExchange kind : {CpExchange::kAllGather, CpExchange::kRing})
    for (const int rank : {0, 77, 127}) {
      const TrafficRun how = how_of(CpLayout::kZigzag, 128, kind, DType::kBF16, 1, 131072);
      EXPECT_EQ(record(how, rank).traffic, formula(how, rank, 1)) << describe(how, rank);
    }
}

// A dry run of one document per row plans the memory that any documents need.
TEST(CpTraffic, ADryRunPlansTheMemory) {
  for (const TrafficRun& how : all_traffic_runs()) {
    Allocator allocator(Device::kCpu);
    comm::run_ranks(int(how.recipe.parallel.cp), {}, allocator, [&](comm::Group& ranks) {
      const Recorded plan = record(how, ranks.rank());
      TinyRank rank(how.recipe, ranks, {.compute = how.compute});
      for (const Batch& batch : {documents(how, kMany), whole_rows(how)}) {
        rank.step(batch);
        EXPECT_LE(rank.workspace_bytes(), plan.workspace_bytes) << describe(how, ranks.rank());
      }
      EXPECT_EQ(rank.workspace_bytes(), plan.workspace_bytes) << describe(how, ranks.rank());
      EXPECT_EQ(communication_bytes(rank), plan.communication_bytes);
    });
  }
}

}  // namespace
}  // namespace ashlar::parallel
