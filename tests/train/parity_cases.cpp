#include "tests/train/parity_models.h"

namespace ashlar::train {
namespace {

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
        add(name + "_uneven", dp, joined(keys, {"parallel.overlap=false"}), kUneven);
        add(name + "_windows_owner", dp, joined(keys, {"parallel.muon=owner"}), kWindows);
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
        add(name + "_uneven_zero3", cp, joined(keys, {"parallel.zero=3"}), kUneven);
        add(name + "_adamw_zero2", cp, joined(keys, {"parallel.zero=2"}), kAdamW);
      }
  for (const int cp : {2, 4})  // of 4 query heads; 4 ranks share 2 key heads
    for (const std::string layout : {"contiguous", "zigzag"}) {
      const Overrides keys = {"parallel.cp=" + std::to_string(cp), "parallel.cp_layout=" + layout,
                              "parallel.cp_exchange=all_to_all"};
      const std::string name = "cp" + std::to_string(cp) + "_" + layout + "_all_to_all";
      add(name, cp, keys, {}, cp == 2);
      add(name + "_windows", cp, keys, kWindows);
      add(name + "_uneven_zero3", cp, joined(keys, {"parallel.zero=3"}), kUneven);
      add(name + "_adamw_zero2", cp, joined(keys, {"parallel.zero=2"}), kAdamW);
    }
  for (const int zero : {0, 1, 2, 3}) {
    const std::string z = "_zero" + std::to_string(zero),
                      key = "parallel.zero=" + std::to_string(zero);
    const Overrides small = {key, "parallel.bucket_bytes=30000"};
    add("dp2_cp2" + z, 4, joined(small, {"parallel.cp=2"}), {}, zero == 1);
    add("dp2_tp2" + z, 4, joined(small, {"parallel.tp=2"}), kWindows, zero == 1);
    add("dp2_tp2_sequence_parallel" + z, 4,
        joined(small, {"parallel.tp=2", "parallel.sequence_parallel=true"}), kUneven);
    add("tp2_cp2" + z, 4, joined(small, {"parallel.cp=2", "parallel.tp=2"}), {}, zero == 1);
    add("dp2_cp2_all_to_all" + z, 4,
        joined(small, {"parallel.cp=2", "parallel.cp_exchange=all_to_all"}), kUneven);
    add("tp2_cp2_all_to_all" + z, 4,
        joined(small, {"parallel.cp=2", "parallel.tp=2", "parallel.cp_exchange=all_to_all"}),
        kWindows);
    add("tp2_cp2_ring_sequence_parallel" + z, 4,
        joined(small, {"parallel.cp=2", "parallel.tp=2", "parallel.cp_exchange=ring",
                       "parallel.sequence_parallel=true"}),
        kWindows);
    add("dp2_cp2_tp2" + z, 8, joined(small, {"parallel.cp=2", "parallel.tp=2"}), {}, zero == 1);
    add("dp2_cp2_tp2_bucketed_owner_uneven" + z, 8,
        joined(small, {"parallel.cp=2", "parallel.tp=2", "parallel.zero_layout=bucketed",
                       "parallel.muon=owner", "parallel.sequence_parallel=true"}),
        kUneven);
  }
  // Every layout again with dense models and mixtures of k experts.  In the tiny model two ranks of
  // tp 4 share a key head.
  const std::pair<std::string, Overrides> models[] = {
      {"llama", kLlama},
      {"qwen3", kQwen3},
      {"mixed", kMixed},
      {"mixtral", kMixtral},
      {"qwen3_moe", kQwen3Moe},
      {"shared_expert", kShared},
      {"normed_gated", kNormedGated},
      {"normed_moe_recompute", joined(kNormedMoe, kRecompute)},
      {"biased", kBiased},
      {"biased_gated_recompute", kBiasedGated}};
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
      {"cp2_zigzag_all_to_all", 2, {"parallel.cp=2", "parallel.cp_exchange=all_to_all"}},
      {"cp4_contiguous_all_to_all_zero3",
       4,
       {"parallel.cp=4", "parallel.cp_layout=contiguous", "parallel.cp_exchange=all_to_all",
        "parallel.zero=3"}},
      {"dp2_cp2_tp2_all_to_all_zero2",
       8,
       {"parallel.tp=2", "parallel.cp=2", "parallel.cp_exchange=all_to_all", "parallel.zero=2",
        "parallel.sequence_parallel=true"}},
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
          joined(kShared, {"moe.balance.scope=micro_batch", "train.micro_batch=1"}));
  }
  // Pipelines: stages of 1, 2 or more blocks, of every schedule.
  const Overrides kFive = {"model.num_hidden_layers=5"};
  const Overrides kSix = {"model.num_hidden_layers=6"};
  const std::pair<std::string, Overrides> piped[] = {
      {"zaya1", {}},
      {"llama", kLlama},
      {"qwen3", joined(kDense, {"model.qk_norm=rms"})},
      {"mixed", kMixed},
      {"normed_gated", kNormedGated},
      {"normed_gated_recompute", joined(kNormedGated, kRecompute)},
      {"biased", kBiased}};
  for (const auto& [model, keys] : piped)
    for (const int pp : {2, 3, 4}) {
      const Overrides blocks = model == "mixed" ? Overrides{} : pp == 4 ? kFive : kSix;
      if (model == "mixed" && pp > 3) continue;
      for (const std::string schedule : {"gpipe", "1f1b", "zb"}) {
        if (schedule == "zb" && model.ends_with("recompute")) continue;  // which it refuses
        add("pp" + std::to_string(pp) + "_" + schedule + "_" + model, pp,
            {"parallel.pp=" + std::to_string(pp), "parallel.schedule=" + schedule},
            joined(keys, blocks), pp == 2 || schedule == "zb");
      }
      if (model != "mixed")
        add("pp" + std::to_string(pp) + "_interleaved_" + model, pp,
            {"parallel.pp=" + std::to_string(pp), "parallel.schedule=interleaved",
             "parallel.virtual_stages=2", "train.global_batch=24"},
            joined(joined(keys, {"model.num_hidden_layers=9"}), {"train.global_batch=24"}),
            pp == 2);
    }
  // Fewer micro-batches than stages, and recomputation.
  add("pp4_few_micro_batches", 4, {"parallel.pp=4"},
      joined(kFive, {"train.global_batch=8", "train.micro_batch=4", "train.recompute=true"}));
  add("pp3_gpipe_recompute", 3, {"parallel.pp=3", "parallel.schedule=gpipe"},
      joined(kSix, {"train.recompute=true"}));
  add("pp2_1f1b_recompute_uneven", 2, {"parallel.pp=2"}, kUneven, true);
  add("pp2_interleaved_recompute_qwen3", 2,
      {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=3"},
      joined(kQwen3, kSix));
  // With the other techniques.
  for (const std::string schedule : {"1f1b", "gpipe", "interleaved", "zb"})
    for (const int zero : {0, 1, 2, 3}) {
      const bool interleaved = schedule == "interleaved";
      const Overrides keys = {"parallel.pp=2", "parallel.schedule=" + schedule,
                              "parallel.zero=" + std::to_string(zero),
                              std::string("parallel.virtual_stages=") + (interleaved ? "2" : "1"),
                              "parallel.bucket_bytes=30000"};
      const std::string name = "_zero" + std::to_string(zero) + "_" + schedule;
      add("pp2_dp2" + name, 4, keys, kFive, zero == 3);
      add("pp2_dp2_llama_bucketed" + name, 4, joined(keys, {"parallel.zero_layout=bucketed"}),
          joined(kLlama, kFive));
      add("pp2_dp2_normed_gated" + name, 4, keys, joined(kNormedGated, kFive));
      add("pp2_tp2_dp2_sequence_parallel" + name, 8,
          joined(keys, {"parallel.tp=2", "parallel.sequence_parallel=true"}), kFive);
      add("pp2_cp2" + name, 4, joined(keys, {"parallel.cp=2"}), kFive);
    }
  for (const std::string schedule : {"1f1b", "zb"}) {
    add("pp2_tp2_" + schedule, 4,
        {"parallel.pp=2", "parallel.tp=2", "parallel.schedule=" + schedule}, kWindows, true);
    add("pp2_tp4_shared_keys_qwen3_" + schedule, 8,
        {"parallel.pp=2", "parallel.tp=4", "parallel.schedule=" + schedule},
        joined(kDense, {"model.qk_norm=rms"}));
    add("pp2_dp2_cp2_tp2_ring_zero3_" + schedule, 16,
        {"parallel.pp=2", "parallel.cp=2", "parallel.tp=2", "parallel.cp_exchange=ring",
         "parallel.zero=3", "parallel.schedule=" + schedule},
        kFive);
  }
  // Gradients that a zb stage keeps back, where ZeRO has room for few: with key heads that ranks
  // share, and with the gate of a shared expert.
  const Overrides zb_zero3 = {"parallel.pp=2", "parallel.schedule=zb", "parallel.zero=3"};
  for (const auto& [model, keys] : {piped[0], piped[1], piped[4]})
    add("pp2_zb_dp2_tp2_shared_keys_zero3_" + model, 8, joined(zb_zero3, {"parallel.tp=2"}),
        joined(keys, {"model.num_key_value_heads=1", "model.num_hidden_layers=6"}));
  add("pp2_zb_dp2_zero3_shared_expert", 4, zb_zero3,
      joined(kShared, {"model.num_hidden_layers=6"}));
  add("pp2_dp2_overlap_off_owner", 4,
      {"parallel.pp=2", "parallel.overlap=false", "parallel.muon=owner"}, kAdamW);
  // Expert parallelism: ZAYA1's router with its skip class, several experts a token, most experts
  // without a token, a shared expert; with little room, so that rows go in many rounds.
  const std::pair<std::string, Overrides> mixtures[] = {
      {"zaya1", kEight},
      {"zaya1_identity", joined(kEight, {"moe.skip_output=identity", "train.recompute=true"})},
      {"mixtral", joined(kTopK, {"model.num_experts=8", "model.num_experts_per_tok=2"})},
      {"qwen3_moe", joined(kQwen3Moe, kEight)},
      {"many_experts", kManyExperts},
      {"shared", joined(kShared, kEight)},
      {"normed", joined(kNormedMoe, kEight)}};
  const struct {
    std::string name;
    int ranks;
    Overrides layout;
  } expert_layouts[] = {
      {"dp2_ep2_zero0", 2, {"parallel.ep=2", "parallel.zero=0"}},
      {"dp2_ep2_zero1", 2, {"parallel.ep=2"}},
      {"dp2_ep2_rounds", 2, {"parallel.ep=2", "parallel.expert_rows=1"}},
      {"dp2_ep2_zero3", 2, {"parallel.ep=2", "parallel.zero=3", "parallel.bucket_bytes=20000"}},
      {"dp4_ep2_zero1_bucketed",
       4,
       {"parallel.ep=2", "parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"}},
      {"dp4_ep2_zero2_owner", 4, {"parallel.ep=2", "parallel.zero=2", "parallel.muon=owner"}},
      {"dp4_ep4_zero0", 4, {"parallel.ep=4", "parallel.zero=0"}},
      {"dp4_ep4_zero3_rounds", 4, {"parallel.ep=4", "parallel.zero=3", "parallel.expert_rows=1.5"}},
      {"cp2_ep2", 2, {"parallel.cp=2", "parallel.ep=2"}},
      {"dp2_cp2_ep4_zero2", 4, {"parallel.cp=2", "parallel.ep=4", "parallel.zero=2"}},
      {"tp2_dp2_ep2_zero0", 4, {"parallel.tp=2", "parallel.ep=2", "parallel.zero=0"}},
      {"tp2_dp2_ep2_sequence_parallel",
       4,
       {"parallel.tp=2", "parallel.ep=2", "parallel.sequence_parallel=true"}},
      {"pp2_dp2_ep2", 4, {"parallel.pp=2", "parallel.ep=2"}},
      {"pp2_dp2_cp2_ep2_zero3",
       8,
       {"parallel.pp=2", "parallel.cp=2", "parallel.ep=2", "parallel.zero=3"}},
  };
  for (const auto& [model, keys] : mixtures)
    for (const auto& layout : expert_layouts)
      add(layout.name + "_" + model, layout.ranks, layout.layout, keys, layout.ranks == 2);
  for (const auto& [model, keys] : {mixtures[0], mixtures[2], mixtures[5]})
    add("pp2_zb_dp2_ep2_" + model, 4, {"parallel.pp=2", "parallel.schedule=zb", "parallel.ep=2"},
        keys);
  // Rows with padding, which no expert takes and no router counts.
  const Overrides kPadding = {"data.packing=best_fit"};
  for (const auto& [model, keys] : {mixtures[0], mixtures[1], mixtures[5]}) {
    const Overrides padded = joined(keys, kPadding);
    for (const auto& layout : expert_layouts)
      add("padding_" + layout.name + "_" + model, layout.ranks, layout.layout, padded,
          layout.ranks == 2);
    for (const std::string axis : {"tp", "cp", "tsp", "pp"})
      add("padding_" + axis + "2_" + model, 2, {"parallel." + axis + "=2"}, padded, true);
    add("padding_pp2_zb_dp2_ep2_" + model, 4,
        {"parallel.pp=2", "parallel.schedule=zb", "parallel.ep=2"},
        joined(mixtures[0].second, kPadding));
    add("padding_cp2_balanced_each_micro_batch_" + model, 2, {"parallel.cp=2"},
        joined(padded, {"moe.balance.scope=micro_batch"}));
  }
  add_tsp_cases(cases);
  add_linear_cases(cases);
  add_tune_cases(cases);
  add_width_cases(cases);
  return cases;
}

}  // namespace

const std::vector<ParityCase>& parity_cases() {
  static const std::vector<ParityCase> cases = make_cases();
  return cases;
}

}  // namespace ashlar::train
