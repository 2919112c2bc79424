#include <algorithm>

#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {
namespace {

// Choices of T tokens, k of each: experts, E to skip, kNoClass of padding.
struct RoutedTokens {
  std::string name;
  int64_t E, k;
  std::vector<int32_t> expert;

  int64_t T() const { return int64_t(expert.size()) / k; }
  int64_t rows() const {
    return std::ranges::count_if(expert, [&](int32_t e) { return e != E && e != kNoClass; });
  }
};

RoutedTokens some_tokens(int64_t T, int64_t E, int64_t k) {
  RoutedTokens c{fmt::format("{}x{}of{}", T, k, E), E, k, {}};
  const Rng rng(1, c.name);
  for (int64_t t = 0; t < T; ++t) {
    const bool padding = rng.below(uint64_t(2 * t), 16) == 0;
    for (int64_t j = 0; j < k; ++j)
      c.expert.push_back(padding
                             ? kNoClass
                             : int32_t((rng.below(uint64_t(2 * t + 1), uint64_t(E)) + uint64_t(j)) %
                                       uint64_t(E + 1)));
  }
  return c;
}

std::vector<RoutedTokens> small_routings() {
  return {{"none", 3, 2, {}},
          {"one", 1, 1, {0}},
          {"skipped", 3, 1, {3, 3, 3}},
          {"padding", 2, 2, std::vector<int32_t>(6, kNoClass)},
          {"mixed", 4, 2, {3, 0, 4, 3, kNoClass, kNoClass, 1, 3, 0, 4}},
          {"one-expert", 3, 1, std::vector<int32_t>(35, 1)}};
}

RoutePlan make_plan(Place& p, const RoutedTokens& c) {
  const Shape Tk{c.T(), c.k};
  const RoutePlan plan{p.unset(DType::kI32, {c.E + 1}), p.unset(DType::kI32, {Tk.numel()}),
                       p.unset(DType::kI32, Tk), p.unset(DType::kI64, {c.E + 1})};
  route_plan(p.context(), c.E, p.ints(c.expert).view(Tk), plan);
  return plan;
}

// Several parts of choices, of which the last is short, is full or has one choice; more classes
// than a group of lanes; more counts than threads that scan them.
TEST(GpuMoe, PlansAreThoseOfTheCpu) {
  std::vector<RoutedTokens> all = small_routings();
  for (const auto& [T, E, k] : {std::array<int64_t, 3>{1000, 5, 3},
                                {1024, 16, 1},
                                {1025, 33, 1},
                                {512, 40, 4},
                                {700, 600, 3}})
    all.push_back(some_tokens(T, E, k));
  for (const RoutedTokens& c : all)
    expect_op(fmt::format("route_plan/{}", c.name), {DType::kF32, DType::kF32},
              [&](Place& p) -> std::vector<Output> {
                const RoutePlan plan = make_plan(p, c);
                return {{"row_of_expert", plan.row_of_expert_E1},
                        {"token_of_row", plan.token_of_row_R.slice(0, c.rows())},
                        {"row_of_token", plan.row_of_token_Tk},
                        {"count", plan.count_X}};
              });
}

TEST(GpuMoe, PaddingHasNoChoice) {
  const Sequence sequence(
      {{0, 2, 0, 0}, {2, 1, 0, 1, true}, {3, 1, 0, 2}, {4, 2, 0, 3, true}, {6, 3, 1, 4}});
  for (const int64_t k : {1, 3})
    for (const auto& [name, tokens] : {std::pair{"some", sequence}, {"none", Sequence::rows(3, 3)}})
      expect_op(fmt::format("leave_out_padding/{}/{}", name, k), {DType::kF32, DType::kF32},
                [&](Place& p) -> std::vector<Output> {
                  const Tensor expert = p.ints(std::vector<int32_t>(size_t(9 * k), 5)).view({9, k});
                  leave_out_padding(p.context(), tokens, expert);
                  return {{"expert", expert}};
                });
  Bench bench({DType::kF32, DType::kF32});
  Place p(gpu::kOps, bench);
  leave_out_padding(p.context(), Sequence(std::vector<Segment>()), p.ints({}).view({0, 2}));
}

// Rows that no expert has are not written, so they stay NaN in the emulator, and are not read.
std::vector<Output> run_moves(Place& p, const RoutedTokens& c, int64_t H, bool identity) {
  const Shape TH{c.T(), H}, RH{c.T() * c.k, H}, Tk{c.T(), c.k};
  const RoutePlan plan = make_plan(p, c);
  const Tensor m = p.random(p.product(), "m", TH), weight = p.random(p.wide(), "weight", Tk, 1);
  const Tensor x = p.unset(p.product(), RH), y = p.unset(p.product(), RH);
  gather_rows(p.context(), plan, m, x);
  const Tensor some_y = p.random(p.product(), "y", RH);
  copy(p.context(), Matrix::of(some_y.slice(0, c.rows())), Matrix::of(y.slice(0, c.rows())));
  const Tensor e = p.unset(p.stream(), TH);
  combine_forward(p.context(), {.plan = plan,
                                .identity = identity,
                                .y_rows_RH = y,
                                .weight_Tk = weight,
                                .m_TH = m,
                                .e_TH = e});
  const Tensor de = p.random(p.stream(), "de", TH);
  const Tensor dy = p.unset(p.product(), RH), dweight = p.unset(p.wide(), Tk);
  combine_backward(p.context(), {.plan = plan,
                                 .identity = identity,
                                 .de_TH = de,
                                 .y_rows_RH = y,
                                 .weight_Tk = weight,
                                 .m_TH = m,
                                 .dy_rows_RH = dy,
                                 .dweight_Tk = dweight});
  const Tensor dm = p.random(p.stream(), "dm", TH);
  scatter_rows_add(p.context(),
                   {.plan = plan,
                    .identity = identity,
                    .shared_TH = identity ? p.random(p.product(), "shared", TH) : Tensor(),
                    .dx_rows_RH = y,
                    .weight_Tk = weight,
                    .de_TH = de,
                    .dm_TH = dm});
  return {{"x", x.slice(0, c.rows())},
          {"e", e},
          {"dy", dy.slice(0, c.rows())},
          {"dweight", dweight},
          {"dm", dm}};
}

void expect_moves(const RoutedTokens& c, int64_t H, const Precision& precision) {
  for (const bool identity : {false, true})
    expect_op(fmt::format("moe_rows/{}/{}/{}-{}{}", c.name, H, name_of(precision.stream),
                          name_of(precision.product), identity ? "/identity" : ""),
              precision, [&](Place& p) { return run_moves(p, c, H, identity); });
}

TEST(GpuMoe, RowsMatchTheReferenceInEveryMode) {
  for (const RoutedTokens& c : small_routings()) expect_moves(c, 33, {DType::kF32, DType::kBF16});
  const RoutedTokens many = some_tokens(70, 9, 4);
  for (const int64_t H : {1, 264}) expect_moves(many, H, {DType::kF32, DType::kF32});
  for (const DType stream : {DType::kF32, DType::kBF16})
    expect_moves(many, 40, {stream, DType::kBF16});
}

// One order of sums, that of a token's choices, in whichever rows their results are.
TEST(GpuMoe, AddsInTheOrderOfChoices) {
  const RoutedTokens c{"", 3, 3, {2, 0, 1}};
  for (const auto& [results, sum] :
       {std::pair{std::vector<double>{1e8, 1, -1e8}, 0.0}, {{1e8, -1e8, 1}, 1.0}}) {
    Bench bench({DType::kF32, DType::kF32});
    Place p(gpu::kOps, bench);
    const RoutePlan plan = make_plan(p, c);
    const Tensor y = p.zeros(DType::kF32, {3, 1}), weight = p.zeros(DType::kF32, {1, 3});
    const Tensor m = p.zeros(DType::kF32, {1, 1}), e = p.unset(DType::kF32, {1, 1});
    const Tensor dm = p.zeros(DType::kF32, {1, 1});
    const double of_rows[] = {results[1], results[2], results[0]}, ones[] = {1, 1, 1};
    upload(p.context(), of_rows, y);
    upload(p.context(), ones, weight);
    combine_forward(p.context(), {.plan = plan,
                                  .identity = false,
                                  .y_rows_RH = y,
                                  .weight_Tk = weight,
                                  .m_TH = m,
                                  .e_TH = e});
    scatter_rows_add(p.context(), {.plan = plan,
                                   .identity = false,
                                   .dx_rows_RH = y,
                                   .weight_Tk = weight,
                                   .de_TH = e,
                                   .dm_TH = dm});
    for (const Tensor& got : {e, dm}) {
      double value = -1;
      download(p.context(), got, std::span(&value, 1));
      EXPECT_EQ(value, sum);
    }
  }
}

std::vector<Output> run_shared_add(Place& p, int64_t T, int64_t H, bool gated) {
  const Shape TH{T, H};
  const Tensor z = gated ? p.random(p.wide(), "z", {T}) : Tensor();
  const Tensor s = p.random(p.product(), "s", TH), e = p.random(p.stream(), "e", TH);
  shared_add_forward(p.context(), z, s, e);
  if (!gated) return {{"e", e}};
  const Tensor ds = p.unset(p.product(), TH), dz = p.unset(p.wide(), {T});
  shared_add_backward(
      p.context(),
      {.de_TH = p.random(p.stream(), "de", TH), .z_T = z, .s_TH = s, .ds_TH = ds, .dz_T = dz});
  return {{"e", e}, {"ds", ds}, {"dz", dz}};
}

TEST(GpuMoe, SharedAddMatchesTheReferenceInEveryMode) {
  for (const auto& [T, H] : {std::pair<int64_t, int64_t>{0, 8}, {1, 1}, {3, 33}, {65, 264}})
    for (const bool gated : {true, false})
      for (const Precision& precision :
           {Precision{DType::kF32, DType::kF32}, {DType::kBF16, DType::kBF16}})
        expect_op(fmt::format("shared_add/{}x{}/{}{}", T, H, name_of(precision.product),
                              gated ? "/gated" : ""),
                  precision, [&](Place& p) { return run_shared_add(p, T, H, gated); });
}

}  // namespace
}  // namespace ashlar::kernels
