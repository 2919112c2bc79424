#include "parity.h"

namespace ashlar::train {
namespace {

using Overrides = std::vector<std::string>;

Overrides join(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Overrides kWindows = {"model.layer_types=alternate", "model.sliding_window=9"};
// Few tokens an expert, and many experts that get none.
const Overrides kUneven = {"model.num_experts=7", "model.num_hidden_layers=3",
                           "moe.skip_output=identity", "train.recompute=true"};
// Dense models: Llama's, with a head of its own; Qwen3's, and with windows in every second block;
// and blocks of every kind in one model.
const Overrides kDense = {"model.layer_types=full_attention", "model.intermediate_size=40"};
const Overrides kLlama = join(kDense, {"model.tie_word_embeddings=false"});
const Overrides kQwen3 = join(kDense, {"model.qk_norm=rms", "train.recompute=true"});
const Overrides kMixed = {
    "model.layer_types=[\"cca+mlp\", \"attention_sliding+moe\", \"attention+mlp\"]",
    "model.num_hidden_layers=3",
    "model.intermediate_size=40",
    "model.qk_norm=rms",
    "model.sliding_window=9",
    "model.rope_original_positions=16",
    "model.rope_factor=4"};
// Mixtures with a linear router: Mixtral's; many experts of which most get no token; one that gets
// all; Qwen3-MoE's with a dense first block, recomputed; and one with a gated shared expert whose
// router has losses and balancing biases, over two rows a micro-batch.
const Overrides kTopK = {"model.layer_types=attention+moe", "model.router=linear",
                         "model.tie_word_embeddings=false"};
const Overrides kMixtral = join(kTopK, {"model.num_experts=7", "model.num_experts_per_tok=2"});
const Overrides kManyExperts = join(kTopK, {"model.num_experts=60", "model.num_experts_per_tok=2"});
const Overrides kOneExpert = join(kTopK, {"model.num_experts=1"});
const Overrides kQwen3Moe = {
    "model.layer_types=[\"attention+mlp\", \"attention+moe\", \"attention_sliding+moe\"]",
    "model.num_hidden_layers=3",
    "model.intermediate_size=40",
    "model.qk_norm=rms",
    "model.sliding_window=9",
    "model.router=linear",
    "model.num_experts_per_tok=3",
    "model.norm_topk_prob=false",
    "train.recompute=true"};
const Overrides kShared =
    join(kTopK, {"model.num_experts=6", "model.num_experts_per_tok=2",
                 "model.router_expert_bias=true", "model.shared_expert_intermediate_size=24",
                 "model.shared_expert_gate=true", "moe.router_aux_loss_coef=0.05",
                 "moe.router_z_loss_coef=0.02", "moe.balance.lr=0.05", "train.micro_batch=2"});
const Overrides kAdamW = {"optim.matrices=adamw", "train.micro_batch=2"};

std::vector<ParityCase> make_cases() {
  std::vector<ParityCase> cases;
  const auto add = [&](const std::string& name, int ranks, Overrides layout, Overrides model = {},
                       bool fast = false) {
    cases.push_back({name, ranks, std::move(layout), std::move(model), fast});
  };
  for (const int dp : {2, 4})
    for (const int zero : {0, 1, 2, 3})
      for (const std::string layout : {"contiguous", "bucketed"}) {
        const Overrides keys = {"parallel.zero=" + std::to_string(zero),
                                "parallel.zero_layout=" + layout, "parallel.bucket_bytes=20000"};
        const std::string name =
            "dp" + std::to_string(dp) + "_zero" + std::to_string(zero) + "_" + layout;
        add(name, dp, keys, {}, dp == 2);
        add(name + "_uneven", dp, join(keys, {"parallel.overlap=false"}), kUneven);
        add(name + "_windows_owner", dp, join(keys, {"parallel.muon=owner"}), kWindows);
        add(name + "_adamw", dp, keys, kAdamW);
      }
  add("tp2", 2, {"parallel.tp=2"}, {}, true);
  add("tp2_windows", 2, {"parallel.tp=2"}, kWindows);
  add("tp2_uneven", 2, {"parallel.tp=2"}, kUneven);
  add("tp2_adamw", 2, {"parallel.tp=2"}, kAdamW);
  add("tp2_sequence_parallel", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"}, {}, true);
  add("tp2_sequence_parallel_uneven", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"},
      kUneven);
  add("tp4_shared_keys", 4, {"parallel.tp=4"});
  add("tp4_shared_keys_sequence_parallel_windows", 4,
      {"parallel.tp=4", "parallel.sequence_parallel=true"}, kWindows);
  for (const std::string axis : {"tp", "cp"})
    add(axis + "2_balanced_each_micro_batch", 2, {"parallel." + axis + "=2"},
        {"moe.balance.scope=micro_batch"});
  for (const int cp : {2, 3, 4})
    for (const std::string layout : {"contiguous", "zigzag"})
      for (const std::string exchange : {"all_gather", "ring"}) {
        const Overrides keys = {"parallel.cp=" + std::to_string(cp), "parallel.cp_layout=" + layout,
                                "parallel.cp_exchange=" + exchange};
        const std::string name = "cp" + std::to_string(cp) + "_" + layout + "_" + exchange;
        add(name, cp, keys, {}, cp == 2);
        add(name + "_windows", cp, keys, kWindows);
        add(name + "_uneven_zero3", cp, join(keys, {"parallel.zero=3"}), kUneven);
        add(name + "_adamw_zero2", cp, join(keys, {"parallel.zero=2"}), kAdamW);
      }
  for (const int zero : {0, 1, 2, 3}) {
    const std::string z = "_zero" + std::to_string(zero),
                      key = "parallel.zero=" + std::to_string(zero);
    const Overrides small = {key, "parallel.bucket_bytes=30000"};
    add("dp2_cp2" + z, 4, join(small, {"parallel.cp=2"}), {}, zero == 1);
    add("dp2_tp2" + z, 4, join(small, {"parallel.tp=2"}), kWindows, zero == 1);
    add("dp2_tp2_sequence_parallel" + z, 4,
        join(small, {"parallel.tp=2", "parallel.sequence_parallel=true"}), kUneven);
    add("tp2_cp2" + z, 4, join(small, {"parallel.cp=2", "parallel.tp=2"}), {}, zero == 1);
    add("tp2_cp2_ring_sequence_parallel" + z, 4,
        join(small, {"parallel.cp=2", "parallel.tp=2", "parallel.cp_exchange=ring",
                     "parallel.sequence_parallel=true"}),
        kWindows);
    add("dp2_cp2_tp2" + z, 8, join(small, {"parallel.cp=2", "parallel.tp=2"}), {}, zero == 1);
    add("dp2_cp2_tp2_bucketed_owner_uneven" + z, 8,
        join(small, {"parallel.cp=2", "parallel.tp=2", "parallel.zero_layout=bucketed",
                     "parallel.muon=owner", "parallel.sequence_parallel=true"}),
        kUneven);
  }
  // Every layout again with dense models and mixtures of k experts.  In the tiny model two ranks of
  // tp 4 share a key head.
  const std::pair<std::string, Overrides> models[] = {
      {"llama", kLlama},     {"qwen3", kQwen3},        {"mixed", kMixed},
      {"mixtral", kMixtral}, {"qwen3_moe", kQwen3Moe}, {"shared_expert", kShared}};
  const struct {
    std::string name;
    int ranks;
    Overrides layout;
  } layouts[] = {
      {"dp2_zero0", 2, {"parallel.zero=0"}},
      {"dp2_zero1_bucketed", 2, {"parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"}},
      {"dp4_zero2", 4, {"parallel.zero=2", "parallel.muon=owner"}},
      {"dp2_zero3", 2, {"parallel.zero=3"}},
      {"tp2", 2, {"parallel.tp=2"}},
      {"tp2_sequence_parallel", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"}},
      {"tp4_shared_keys", 4, {"parallel.tp=4"}},
      {"tp4_shared_keys_sequence_parallel",
       4,
       {"parallel.tp=4", "parallel.sequence_parallel=true"}},
      {"cp2_zigzag_all_gather", 2, {"parallel.cp=2"}},
      {"cp3_contiguous_ring",
       3,
       {"parallel.cp=3", "parallel.cp_layout=contiguous", "parallel.cp_exchange=ring"}},
      {"cp4_zigzag_ring_zero3",
       4,
       {"parallel.cp=4", "parallel.cp_exchange=ring", "parallel.zero=3"}},
      {"dp2_tp2_zero1", 4, {"parallel.tp=2"}},
      {"tp2_cp2_zero2", 4, {"parallel.tp=2", "parallel.cp=2", "parallel.zero=2"}},
      {"dp2_cp2_tp2_zero3_bucketed",
       8,
       {"parallel.tp=2", "parallel.cp=2", "parallel.zero=3", "parallel.zero_layout=bucketed",
        "parallel.sequence_parallel=true"}},
      {"tp4_cp2_zero1", 8, {"parallel.tp=4", "parallel.cp=2"}},
  };
  for (const auto& [model, keys] : models)
    for (const auto& layout : layouts)
      add(model + "_" + layout.name, layout.ranks, layout.layout, keys, layout.ranks == 2);
  for (const std::string axis : {"tp", "cp", "dp"}) {
    const Overrides layout = {"parallel." + axis + "=2"};
    add("many_experts_" + axis + "2", 2, layout, kManyExperts);
    add("one_expert_" + axis + "2", 2, layout, kOneExpert);
    if (axis != "dp")  // which makes fewer updates of a step
      add("shared_expert_" + axis + "2_balanced_each_micro_batch", 2, layout,
          join(kShared, {"moe.balance.scope=micro_batch", "train.micro_batch=1"}));
  }
  return cases;
}

}  // namespace

const std::vector<ParityCase>& parity_cases() {
  static const std::vector<ParityCase> cases = make_cases();
  return cases;
}

}  // namespace ashlar::train
