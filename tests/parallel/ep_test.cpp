// The exchange of rows with the ranks that hold their experts, without a model: where rows arrive,
// what comes back, in how many rounds, and what that moves.
#include "ashlar/parallel/ep.h"

#include <gtest/gtest.h>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/threads.h"
#include "ashlar/nn/moe.h"

namespace ashlar::parallel {
namespace {

constexpr int64_t kH = 3, kTokens = 24, kChoices = 2;

struct EpCase {
  std::string name;
  int num_ranks;
  int64_t num_experts;
  // The expert of a token's choice; num_experts: none.
  int64_t (*expert)(int rank, int64_t token, int64_t choice, int64_t num_experts);
  double expert_rows;
};

int64_t even(int rank, int64_t token, int64_t choice, int64_t E) {
  return (token + choice * 3 + rank) % E;
}
int64_t uneven(int rank, int64_t token, int64_t choice, int64_t E) {
  return (token * token + choice + rank * 5) % (choice == 0 ? E : 3);
}
int64_t all_on_one(int, int64_t, int64_t, int64_t E) {
  return E - 1;
}
int64_t nobody(int, int64_t, int64_t, int64_t E) {
  return E;
}
// Ranks differ in how many of their tokens take an expert at all.
int64_t some(int rank, int64_t token, int64_t, int64_t E) {
  return token % (rank + 2) == 0 ? token % E : E;
}

// The identity of a row: its source, its token, its number among the token's choices.
double row_value(int rank, int64_t token, int64_t column) {
  return 1000.0 * rank + double(token) + 0.125 * double(column);
}

class EpTest : public testing::TestWithParam<EpCase> {};

void check(const EpCase& c, comm::Group& world) {
  Allocator allocator(Device::kCpu);
  Threads threads(1);
  Arena workspace(allocator, 1 << 20, Tag::kWorkspace);
  const kernels::Context ctx{.device = Device::kCpu, .threads = &threads, .workspace = &workspace};
  const auto ep = world.split("ep", [](int rank) { return comm::SplitKey{0, rank}; });
  const auto alone = world.split("tp", [](int rank) { return comm::SplitKey{rank, rank}; });
  const int n = c.num_ranks, me = world.rank();
  const int64_t E = c.num_experts, R = kTokens * kChoices, E_here = E / n;
  Arena arena(allocator, 1 << 20, Tag::kSaved);
  const Tensor expert_Tk = arena.take(DType::kI32, {kTokens, kChoices}),
               m = arena.take(DType::kF64, {kTokens, kH}), x = arena.take(DType::kF64, {R, kH}),
               y = arena.take(DType::kF64, {R, kH});
  std::vector<int32_t> counts(size_t(n * (E + 1)));
  const kernels::RoutePlan plan{.row_of_expert_E1 = arena.take(DType::kI32, {E + 1}),
                                .token_of_row_R = arena.take(DType::kI32, {R}),
                                .row_of_token_Tk = arena.take(DType::kI32, {kTokens, kChoices}),
                                .count_X = arena.take(DType::kI64, {E + 1})};
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t j = 0; j < kChoices; ++j)
      expert_Tk.as<int32_t>()[t * kChoices + j] = int32_t(c.expert(me, t, j, E));
    for (int64_t h = 0; h < kH; ++h) m.as<double>()[t * kH + h] = row_value(me, t, h);
  }
  route_plan(ctx, E, expert_Tk, plan);
  gather_rows(ctx, plan, m, x);

  nn::Share share;
  share.experts = {me, n}, share.expert_rows = c.expert_rows;
  const int64_t room = nn::rows_of_round(R, share);
  EpExchange exchange(*ep, *alone, E, room);
  Tensor here[2], results[2], row_of_expert[2];
  for (int i = 0; i < 2; ++i) {
    here[i] = arena.take(DType::kF64, {room, kH});
    results[i] = arena.take(DType::kF64, {room, kH});
    row_of_expert[i] = arena.take(DType::kI32, {E_here + 1});
  }
  const int rounds = exchange.count(ctx, plan, counts);
  // The longest list of rows for a rank, by the formula of ep.h.
  int64_t longest = 0, for_me = 0, elsewhere = 0;
  for (int rank = 0; rank < n; ++rank) {
    int64_t rows = 0;
    for (int source = 0; source < n; ++source)
      for (int64_t t = 0; t < kTokens; ++t)
        for (int64_t j = 0; j < kChoices; ++j) {
          const int64_t e = c.expert(source, t, j, E);
          if (e == E || e / E_here != rank) continue;
          ++rows;
          if (rank == me && source != me) ++for_me;
          if (source == me && rank != me) ++elsewhere;
        }
    longest = std::max(longest, rows);
  }
  EXPECT_EQ(rounds, std::max<int64_t>(2, (longest + room - 1) / room));
  const auto [counted, mixtures] = exchange.take_rounds();
  EXPECT_EQ(counted, rounds);
  EXPECT_EQ(mixtures, 1);
  EXPECT_EQ(exchange.take_rounds().rounds, 0);
  const auto round_of = [&](int number) {
    const int i = number % 2;
    return nn::ExpertRound{.kind = nn::ExpertRound::Kind::kForward,
                           .number = number,
                           .total = rounds,
                           .plan = plan,
                           .counts = counts,
                           .rows = kernels::Matrix::of(x),
                           .results = kernels::Matrix::of(y),
                           .room = i,
                           .rows_here = kernels::Matrix::of(here[i]),
                           .results_here = kernels::Matrix::of(results[i]),
                           .row_of_expert_here = row_of_expert[i]};
  };
  int64_t expert_before = 0, source_before = 0;  // of the row before, over all rounds
  exchange.post_rows(ctx, round_of(0));
  exchange.post_rows(ctx, round_of(1));
  for (int number = 0; number < rounds; ++number) {
    const auto round = round_of(number);
    const nn::ExpertRows rows = exchange.receive_rows(ctx, round);
    const int32_t* begins = row_of_expert[number % 2].as<int32_t>();
    for (int64_t e = 0; e < E_here; ++e)
      for (int64_t i = begins[e]; i < begins[e + 1]; ++i) {
        const double* row = here[number % 2].as<double>() + i * kH;
        const auto source = int64_t(row[0]) / 1000, token = int64_t(row[0]) % 1000;
        bool chosen = false;
        for (int64_t j = 0; j < kChoices; ++j)
          chosen |= c.expert(int(source), token, j, E) == me * E_here + e;
        EXPECT_TRUE(chosen) << source << " " << token << " at expert " << e;
        EXPECT_TRUE(std::pair(expert_before, source_before) <= std::pair(e, source));
        expert_before = e, source_before = source;
        for (int64_t h = 0; h < kH; ++h)
          results[number % 2].as<double>()[i * kH + h] = row[h] + 1e6 * double(me * E_here + e);
      }
    EXPECT_GE(rows.rows.rows, begins[E_here]);
    exchange.post_results(ctx, round);
    if (number + 2 >= rounds) continue;
    exchange.receive_results(ctx, round);
    exchange.post_rows(ctx, round_of(number + 2));
  }
  exchange.receive_results(ctx, round_of(rounds - 2));
  exchange.receive_results(ctx, round_of(rounds - 1));
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t j = 0; j < kChoices; ++j) {
      const int32_t row = plan.row_of_token_Tk.as<int32_t>()[t * kChoices + j];
      const int64_t e = c.expert(me, t, j, E);
      ASSERT_EQ(row < 0, e == E);
      for (int64_t h = 0; row >= 0 && h < kH; ++h)
        EXPECT_EQ(y.as<double>()[row * kH + h], row_value(me, t, h) + 1e6 * double(e));
    }
  for (const comm::TrafficRow& row : ep->traffic()) {
    if (row.label == "expert counts") {
      EXPECT_EQ(row.sent_bytes, (n - 1) * 4 * (E + 1));
      continue;
    }
    EXPECT_EQ(row.launches, rounds);
    const bool back = row.label == "expert results";
    EXPECT_EQ(row.sent_bytes, 8 * kH * (back ? for_me : elsewhere)) << row.label;
    EXPECT_EQ(row.received_bytes, 8 * kH * (back ? elsewhere : for_me)) << row.label;
  }
}

TEST_P(EpTest, RowsReachTheirExpertsAndComeBack) {
  const EpCase& c = GetParam();
  Allocator allocator(Device::kCpu);
  comm::run_ranks(c.num_ranks, {.timeout_s = 30, .staging_bytes = 1 << 16}, allocator,
                  [&](comm::Group& world) { check(c, world); });
}

std::vector<EpCase> ep_cases() {
  std::vector<EpCase> list;
  const std::pair<const char*, decltype(&even)> loads[] = {{"even", even},
                                                           {"uneven", uneven},
                                                           {"all_on_one", all_on_one},
                                                           {"nobody", nobody},
                                                           {"some", some}};
  for (const int n : {2, 3, 4})
    for (const int64_t per_rank : {1, 4})
      for (const auto& [name, expert] : loads)
        for (const double room : {1.0, 2.0, 100.0})
          list.push_back(
              {fmt::format("ranks{}_experts{}_{}_room{}", n, n * per_rank, name, int(room)), n,
               n * per_rank, expert, room});
  return list;
}

INSTANTIATE_TEST_SUITE_P(Loads, EpTest, testing::ValuesIn(ep_cases()),
                         [](const testing::TestParamInfo<EpCase>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace ashlar::parallel
