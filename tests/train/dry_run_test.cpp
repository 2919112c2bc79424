// The dry run of every rank against real ranks that are threads: memory by tag, allocations,
// workspace, traffic and what is moved, as integers.
#include <gtest/gtest.h>

#include "ashlar/comm/thread/run_ranks.h"
#include "tests/support/malloc_count.h"
#include "tests/support/temporary_directory.h"
#include "tests/train/parity.h"
#include "tests/train/plan_differences.h"
#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

using namespace testing_support;

// Bytes that are moved whatever the documents are: not halos.
std::string differences_in_moves(KernelCosts planned, KernelCosts real) {
  std::string text;
  for (const char* op : {"copy", "add", "fill", "copy_from_runs", "copy_to_runs"}) {
    const kernels::Cost p = planned[op], r = real[op];
    if (p.bytes != r.bytes || p.flop != r.flop)
      text += fmt::format("{}: planned {} bytes, {} flop; real {}, {}\n", op, p.bytes, p.flop,
                          r.bytes, r.flop);
  }
  return text;
}

// The costs of the kernels in one rank's step.
struct StepCosts {
  KernelCosts planned, real;
};

// "" if a step of this rank takes and says what its dry run says, but for its `costs`.
std::string check_rank(const Recipe& recipe, comm::Group& ranks, Allocator& allocator,
                       StepCosts& costs) {
  const DType compute = nn::resolve_precision(recipe.train.precision);
  const RunPlan plan = plan_run(recipe, compute, ranks.size(), 1, ranks.rank());
  RealRank real(recipe, compute, ranks, allocator, plan.step_memory);
  real.evaluate();
  real.step(0);
  const std::vector<GroupTraffic> before = traffic_of(real.trainer());
  real.record(plan.trace);
  real.step(1);
  std::string text = differences(plan.traffic, traffic_since(before, traffic_of(real.trainer())));
  text += differences(plan, real.memory());
  text += difference_in_workspace(plan, real.trainer());
  costs = {plan.costs, real.costs()};
  return text;
}

// "" if the ranks move what their dry runs say.
std::string check_moves(const Recipe& recipe, const std::vector<StepCosts>& ranks) {
  // Around a ring, parts that no query of a rank sees are not added.
  if (recipe.parallel.cp_exchange == CpExchange::kRing) return "";
  StepCosts sums;
  std::string text;
  for (const StepCosts& costs : ranks) {
    add(sums.planned, costs.planned);
    add(sums.real, costs.real);
    text += differences_in_moves(costs.planned, costs.real);
  }
  // Adapters of experts add as many rows on a rank as routers send it: all of them on all ranks.
  const bool uneven =
      recipe.parallel.ep > 1 && recipe.tune.adapts("model.layers.1.mlp.experts.down_proj");
  return uneven ? differences_in_moves(sums.planned, sums.real) : text;
}

struct RealCase {
  ParityCase layout;
  std::string precision;
};

void PrintTo(const RealCase& c, std::ostream* out) {
  *out << c.layout.name << " " << c.precision;
}

// Every layout of the table is held to its dry run in fp64 where it is trained
// (parity_threads.cpp).  Here: the fast ones in fp32 and bf16, and a third of the others in one of
// both; with what they move.
std::vector<RealCase> real_cases() {
  const std::string precisions[] = {"fp32", "bf16"};
  std::vector<RealCase> cases;
  size_t num_slow = 0;
  for (const ParityCase& c : parity_cases()) {
    if (!c.fast && num_slow++ % 3 != 0) continue;
    for (size_t p = 0; p < 2; ++p)
      if (c.fast || num_slow % 2 == p) cases.push_back({c, precisions[p]});
  }
  const std::vector<std::string> narrow = {"train.stream=bf16", "train.recompute=true"};
  for (const auto& [name, ranks, layout] : std::vector<std::tuple<std::string, int, Overrides>>{
           {"pp2_dp2", 4, {"parallel.pp=2"}},
           {"tp2_sequence_parallel", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"}},
           {"dp2_tsp2_zero3", 4, {"parallel.tsp=2", "parallel.zero=3"}}})
    cases.push_back({{name + "_stream", ranks, layout, narrow, true}, "bf16"});
  return cases;
}

class DryRunEqualsRanks : public testing::TestWithParam<RealCase> {};

TEST_P(DryRunEqualsRanks, InMemoryAndTrafficOnEveryRank) {
  const Recipe recipe = parity_recipe(GetParam().layout, GetParam().precision, true);
  std::vector<std::string> found(size_t(GetParam().layout.num_ranks));
  std::vector<StepCosts> costs(found.size());
  on_ranks(GetParam().layout.num_ranks, [&](comm::Group& ranks, Allocator& allocator) {
    const size_t rank = size_t(ranks.rank());
    found[rank] = check_rank(recipe, ranks, allocator, costs[rank]);
  });
  for (size_t rank = 0; rank < found.size(); ++rank)
    EXPECT_EQ(found[rank], "") << "on rank " << rank;
  EXPECT_EQ(check_moves(recipe, costs), "");
}

INSTANTIATE_TEST_SUITE_P(Table, DryRunEqualsRanks, testing::ValuesIn(real_cases()),
                         [](const testing::TestParamInfo<RealCase>& info) {
                           return info.param.layout.name + "_" + info.param.precision;
                         });

struct SteadyCase {
  std::string name, recipe;
  int num_ranks;
  Overrides overrides;
};

void PrintTo(const SteadyCase& c, std::ostream* out) {
  *out << c.name;
}

class SteadyStep : public testing::TestWithParam<SteadyCase> {};

// The rows of the third step have more documents than those before.  All three are recorded.
TEST_P(SteadyStep, TheThirdStepAllocatesNothingOnAnyRank) {
  if (!ashlar::testing_support::counts_mallocs())
    GTEST_SKIP() << "needs a build without sanitizers: they own malloc";
  Overrides overrides = {"train.threads=1",      "train.precision=fp32",     "train.micro_batch=1",
                         "train.global_batch=4", "data.sequence_length=128", "optim.muon_steps=1"};
  overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
  const Recipe recipe = load_recipe(GetParam().recipe, overrides);
  std::vector<int64_t> calls(size_t(GetParam().num_ranks), -1);
  const ashlar::testing_support::TemporaryDirectory run;
  on_ranks(GetParam().num_ranks, [&](comm::Group& ranks, Allocator& allocator) {
    const RunPlan plan = plan_run(recipe, DType::kF32, ranks.size(), 1, ranks.rank());
    ranks.trace().show_in(std::make_unique<PulseWriter>(
        run.path(), PulseRank{.rank = ranks.rank(), .num_ranks = ranks.size()}));
    RealRank real(recipe, DType::kF32, ranks, allocator, plan.step_memory);
    real.record(plan.trace, 3);
    for (int64_t step = 0; step < 2; ++step) real.step(step);
    real.cut_rows(6);
    ranks.barrier("between steps").wait();
    const int64_t before = ashlar::testing_support::num_mallocs();
    real.step(2);
    calls[size_t(ranks.rank())] = ashlar::testing_support::num_mallocs() - before;
    ranks.barrier("between steps").wait();  // nobody goes on while others count
    EXPECT_EQ(real.memory().num_allocations, plan.memory.num_allocations);
    EXPECT_GE(real.trace().size().events, 3 * plan.trace.events);
    EXPECT_EQ(real.trace().num_dropped(), 0);
  });
  EXPECT_EQ(calls, std::vector<int64_t>(calls.size(), 0));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SteadyStep,
    testing::Values(
        SteadyCase{"one_rank", kTiny, 1, {}}, SteadyCase{"dp2_zero1", kTiny, 2, {}},
        SteadyCase{"dp2_tp2_zero3_bucketed",
                   kTiny,
                   4,
                   {"parallel.tp=2", "parallel.sequence_parallel=true", "parallel.zero=3",
                    "parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"}},
        SteadyCase{"pp2_dp2_zb", kTiny, 4, {"parallel.pp=2", "parallel.schedule=zb"}},
        SteadyCase{
            "pp2_tp2_interleaved_recompute",
            kTiny,
            4,
            {"parallel.pp=2", "parallel.tp=2", "parallel.schedule=interleaved",
             "parallel.virtual_stages=2", "model.num_hidden_layers=4", "train.recompute=true"}},
        SteadyCase{"dp2_cp2_ep4_rounds",
                   kTiny,
                   4,
                   {"parallel.cp=2", "parallel.ep=4", "parallel.expert_rows=1.5",
                    "model.num_experts=8", "train.recompute=true"}},
        SteadyCase{"dp2_cp2_ring", kTiny, 4, {"parallel.cp=2", "parallel.cp_exchange=ring"}},
        SteadyCase{"tp2_cp2_all_to_all",
                   kTiny,
                   4,
                   {"parallel.tp=2", "parallel.cp=2", "parallel.cp_exchange=all_to_all"}},
        SteadyCase{"llama_nano_dp2_tp2_zero2_recompute",
                   kLlamaNano,
                   4,
                   {"parallel.tp=2", "parallel.zero=2", "train.recompute=true", "model.qk_norm=rms",
                    "model.tie_word_embeddings=false"}},
        SteadyCase{"normed_pp2_tp2_recompute",
                   kTiny,
                   4,
                   {"parallel.pp=2", "parallel.tp=2", "train.recompute=true",
                    "model.layer_types=full_attention", "model.intermediate_size=40",
                    "model.num_hidden_layers=4", "model.residual=normed",
                    "model.full_attn_alpha_factor=1.2", "model.mlp_beta_factor=0.8"}},
        SteadyCase{"gated_tp4_shared_keys_cp2",
                   kTiny,
                   8,
                   {"parallel.tp=4", "parallel.cp=2", "model.intermediate_size=40",
                    "model.layer_types=full_attention", "model.qk_norm=rms",
                    "model.zero_centered_norm=true", "model.attention_output_gate=true",
                    "model.partial_rotary_factor=0.5", "train.global_batch=2"}},
        SteadyCase{"dp2_tsp4_zero1",
                   kTiny,
                   8,
                   {"parallel.tsp=4", "model.layer_types=full_attention",
                    "model.intermediate_size=40", "model.num_key_value_heads=4"}},
        SteadyCase{"tsp2_cca_zero1", kTiny, 2, {"parallel.tsp=2"}},
        SteadyCase{
            "tsp2_cca_buckets_zero1",
            kTiny,
            2,
            {"parallel.tsp=2", "parallel.tsp_head_buckets=2", "model.num_key_value_heads=4"}},
        SteadyCase{"tsp4_cca_same_heads_zero0", kTiny, 4, {"parallel.tsp=4", "parallel.zero=0"}},
        SteadyCase{"dp2_tsp4_same_heads_zero2",
                   kTiny,
                   8,
                   {"parallel.tsp=4", "parallel.zero=2", "train.global_batch=4",
                    "model.layer_types=full_attention", "model.intermediate_size=40"}},
        SteadyCase{"cp2_tsp2_zero3_recompute",
                   kTiny,
                   4,
                   {"parallel.cp=2", "parallel.tsp=2", "parallel.zero=3", "train.recompute=true",
                    "model.layer_types=full_attention", "model.intermediate_size=40"}},
        SteadyCase{"mixed_tp4_shared_keys_cp2",
                   kTiny,
                   8,
                   {"parallel.tp=4", "parallel.cp=2", "model.intermediate_size=40",
                    "model.layer_types=[\"attention+moe\", \"cca+mlp\"]", "train.global_batch=2"}},
        SteadyCase{"top_3_dp2_cp2_tp2_zero1",
                   kTiny,
                   8,
                   {"parallel.cp=2", "parallel.tp=2", "train.global_batch=2",
                    "model.layer_types=[\"attention+mlp\", \"attention+moe\"]",
                    "model.intermediate_size=40", "model.router=linear",
                    "model.num_experts_per_tok=3", "model.router_expert_bias=true",
                    "model.shared_expert_intermediate_size=24", "model.shared_expert_gate=true",
                    "moe.router_aux_loss_coef=0.01", "moe.router_z_loss_coef=0.001"}},
        SteadyCase{"nano_dp2_cp2_tp2_zero3",
                   kNano,
                   8,
                   {"parallel.cp=2", "parallel.tp=2", "parallel.zero=3", "train.global_batch=2"}}),
    [](const testing::TestParamInfo<SteadyCase>& info) { return info.param.name; });

}  // namespace
}  // namespace ashlar::train
