// Bytes and launches of context parallelism are the closed formulas of docs/parallel-context.md, as
// integers, between real ranks and recorded.
#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "context_pass.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;
using comm::Op;
using comm::TrafficRow;

// What rank r has moved after `passes` forward and backward passes.
std::vector<TrafficRow> formula(const PassSpec& how, int r, int64_t passes) {
  const ModelSpec& spec = how.spec;
  const int64_t n = how.split.num_ranks, L = spec.num_hidden_layers, B = how.split.num_rows;
  const int64_t T = B * how.split.length / n, kv = spec.num_key_value_heads * spec.head_dim;
  const int64_t C = (spec.num_attention_heads + spec.num_key_value_heads) * spec.head_dim;
  const int64_t stream = how.compute == DType::kF64 ? 8 : 4;
  const int64_t activation = how.compute == DType::kBF16 ? 2 : stream;
  const bool zigzag = how.split.layout == ContextLayout::kZigzag;
  const int64_t behind = (r < n - 1) + (zigzag && r > 0), before = (r > 0) + (zigzag && r < n - 1);
  const int64_t forwards = passes * (how.keep == nn::Keep::kAll ? L : 2 * L - 1);
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
  if (how.kind == ContextExchange::kAllGather)
    return {gradient(Op::kReduceScatter, 2 * backwards, (n - 1) * T * kv * stream),
            keys(Op::kAllGather, 2 * (forwards + backwards), (n - 1) * T * kv * activation), halo,
            halo_gradient};
  return {halo, halo_gradient,
          keys(Op::kSendReceive, (n - 1) * (forwards + backwards), 2 * T * kv * activation),
          gradient(Op::kSendReceive, (n - 1) * backwards, 2 * T * kv * stream)};
}

std::vector<PassSpec> specs() {
  std::vector<PassSpec> all;
  for (const int n : {2, 3, 4})
    for (const ContextLayout layout : {ContextLayout::kContiguous, ContextLayout::kZigzag})
      for (const ContextExchange kind : {ContextExchange::kAllGather, ContextExchange::kRing})
        for (const DType compute : {DType::kF64, DType::kBF16})
          all.push_back({nn::tiny_spec(),
                         compute,
                         {layout, n, 2, 24},
                         kind,
                         n == 3 ? nn::Keep::kBlockInput : nn::Keep::kAll});
  return all;
}

std::string describe(const PassSpec& how, int rank) {
  return fmt::format("rank {} of {}, layout {}, kind {}, {}", rank, how.split.num_ranks,
                     int(how.split.layout), int(how.kind), name_of(how.compute));
}

std::vector<std::vector<int64_t>> whole_rows(const ContextSplit& split) {
  return std::vector<std::vector<int64_t>>(size_t(split.num_rows), {split.length});
}

struct Recorded {
  std::vector<TrafficRow> traffic;
  int64_t communication_bytes, workspace_bytes;
};
Recorded record(PassSpec how, int rank) {
  how.device = Device::kMeta;
  Allocator allocator(Device::kMeta);
  comm::RecordingWorld world(rank, how.split.num_ranks, {}, allocator);
  Pass pass(how, &world.group());
  pass.run(batch_of(whole_rows(how.split), how.spec.vocab_size));
  return {world.group().traffic(), pass.communication_bytes(), pass.workspace_bytes()};
}

// Documents change no byte: a row of many costs what a row of one does.
TEST(ContextTraffic, RealAndRecordedCountersAreTheFormulas) {
  for (const PassSpec& how : specs()) {
    Allocator allocator(Device::kCpu);
    comm::run_ranks(how.split.num_ranks, {}, allocator, [&](comm::Group& ranks) {
      Pass pass(how, &ranks);
      pass.run(batch_of({{5, 7, 1, 11}, {12, 12}}, how.spec.vocab_size));
      pass.run(batch_of(whole_rows(how.split), how.spec.vocab_size));
      EXPECT_EQ(ranks.traffic(), formula(how, ranks.rank(), 2)) << describe(how, ranks.rank());
      EXPECT_EQ(record(how, ranks.rank()).traffic, formula(how, ranks.rank(), 1))
          << describe(how, ranks.rank());
    });
  }
}

TEST(ContextTraffic, AnyRankOfALargeWorldIsRecorded) {
  for (const ContextExchange kind : {ContextExchange::kAllGather, ContextExchange::kRing})
    for (const int rank : {0, 77, 127}) {
      const PassSpec how{nn::tiny_spec(),
                         DType::kBF16,
                         {ContextLayout::kZigzag, 128, 1, 131072},
                         kind,
                         nn::Keep::kAll};
      EXPECT_EQ(record(how, rank).traffic, formula(how, rank, 1)) << describe(how, rank);
    }
}

// A dry run of one document per row plans the memory that any documents need.
TEST(ContextTraffic, ADryRunPlansTheMemory) {
  for (const PassSpec& how : specs()) {
    Allocator allocator(Device::kCpu);
    comm::run_ranks(how.split.num_ranks, {}, allocator, [&](comm::Group& ranks) {
      const Recorded plan = record(how, ranks.rank());
      Pass pass(how, &ranks);
      for (const auto& documents :
           {std::vector<std::vector<int64_t>>{{5, 7, 1, 11}, {12, 12}}, whole_rows(how.split)}) {
        pass.run(batch_of(documents, how.spec.vocab_size));
        EXPECT_LE(pass.workspace_bytes(), plan.workspace_bytes) << describe(how, ranks.rank());
      }
      EXPECT_EQ(pass.workspace_bytes(), plan.workspace_bytes) << describe(how, ranks.rank());
      EXPECT_EQ(pass.communication_bytes(), plan.communication_bytes);
    });
  }
}

}  // namespace
}  // namespace ashlar::parallel
