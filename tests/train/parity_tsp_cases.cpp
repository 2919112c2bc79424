// Layouts with heads and sequences on one axis: models with as many key heads as it has ranks, with
// a multiple, and with fewer.
#include "tests/train/parity_models.h"

namespace ashlar::train {

void add_tsp_cases(std::vector<ParityCase>& cases) {
  const auto add = [&](const std::string& name, int ranks, Overrides layout, Overrides model = {},
                       bool fast = false) {
    cases.push_back({name, ranks, std::move(layout), std::move(model), fast});
  };
  const Overrides kFourKeys = {"model.num_key_value_heads=4"};
  const Overrides kEightHeads = {"model.num_attention_heads=16", "model.num_key_value_heads=8",
                                 "model.head_dim=4"};
  const Overrides kQwen3Kept = joined(kDense, {"model.qk_norm=rms"});
  const Overrides kQwen3Windows =
      joined(kQwen3, {"model.layer_types=[\"attention+mlp\", \"attention_sliding+mlp\"]",
                      "model.sliding_window=9"});
  const Overrides kSparse = {
      "model.layer_types=[\"attention+moe\", \"attention+mlp\", \"attention+moe\"]",
      "model.intermediate_size=40", "model.num_hidden_layers=3"};
  const std::pair<std::string, Overrides> folded[] = {
      {"llama", kLlama},
      {"llama_recompute", joined(kLlama, {"train.recompute=true"})},
      {"qwen3", kQwen3},
      {"qwen3_kept", kQwen3Kept},
      {"windows", kQwen3Windows},
      {"sparse", kSparse},
      {"sparse_recompute", joined(kSparse, {"train.recompute=true"})},
      {"zaya1", {}},
      {"zaya1_uneven", kUneven},
      {"zaya1_windows", kWindows},
      {"mixed", kMixed},
      {"mixed_recompute", joined(kMixed, {"train.recompute=true", "model.residual=plain"})},
      {"normed_gated", kNormedGated},
      {"normed_gated_recompute", joined(kNormedGated, kRecompute)},
      {"biased", kBiased},
      {"biased_recompute", joined(kBiased, kRecompute)},
      {"biased_gated_recompute", kBiasedGated}};
  for (const auto& [model, keys] : folded) {
    for (const std::string layout : {"zigzag", "contiguous"}) {
      add("tsp2_" + layout + "_" + model, 2, {"parallel.tsp=2", "parallel.cp_layout=" + layout},
          keys, layout == "zigzag");
      add("tsp4_" + layout + "_" + model, 4, {"parallel.tsp=4", "parallel.cp_layout=" + layout},
          joined(keys, kFourKeys));
    }
    for (const int zero : {0, 1, 2, 3}) {
      const std::string z = "_zero" + std::to_string(zero) + "_" + model;
      const Overrides small = {"parallel.tsp=2", "parallel.zero=" + std::to_string(zero),
                               "parallel.bucket_bytes=20000"};
      add("tsp2" + z, 2, small, keys);
      add("dp2_tsp2" + z, 4, small, keys, model == "llama");
      add("cp2_tsp2_bucketed" + z, 4,
          joined(small, {"parallel.cp=2", "parallel.zero_layout=bucketed"}), keys);
      add("pp2_tsp2" + z, 4, joined(small, {"parallel.pp=2"}), keys);
    }
  }
  for (const int zero : {0, 1, 3}) {
    const std::string z = "_zero" + std::to_string(zero);
    const Overrides keys = {"parallel.tsp=2", "parallel.zero=" + std::to_string(zero)};
    const Overrides sparse = joined(kSparse, kEight);
    add("tsp2_ep2_sparse" + z, 2, joined(keys, {"parallel.ep=2"}), sparse, zero == 1);
    add("dp2_tsp2_ep2_sparse" + z, 4, joined(keys, {"parallel.ep=2"}), sparse);
    add("dp2_tsp2_ep4_sparse_rounds" + z, 4,
        joined(keys, {"parallel.ep=4", "parallel.expert_rows=1"}),
        joined(sparse, {"train.recompute=true"}));
    add("pp2_tsp2_ep2_top_k" + z, 4, joined(keys, {"parallel.ep=2", "parallel.pp=2"}),
        joined(kShared, kEight));
  }
  // More ranks than the 2 key heads: several hold the same heads.
  const std::pair<std::string, Overrides> same_heads[] = {
      folded[0],  folded[2],  folded[5],  folded[7],  folded[8],
      folded[11], folded[12], folded[13], folded[14], folded[16]};
  for (const auto& [model, keys] : same_heads) {
    for (const std::string ranks : {"4", "8"})
      for (const std::string layout : {"zigzag", "contiguous"})
        add("tsp" + ranks + "_same_heads_" + layout + "_" + model, std::stoi(ranks),
            {"parallel.tsp=" + ranks, "parallel.cp_layout=" + layout}, keys,
            ranks == "4" && layout == "zigzag");
    for (const int zero : {0, 1, 2, 3}) {
      const std::string z = "_same_heads_zero" + std::to_string(zero) + "_" + model;
      const Overrides small = {"parallel.tsp=4", "parallel.zero=" + std::to_string(zero),
                               "parallel.bucket_bytes=20000"};
      add("tsp4" + z, 4, small, keys, zero == 0);
      add("dp2_tsp4_owner" + z, 8, joined(small, {"parallel.muon=owner"}), keys);
      add("cp2_tsp4_bucketed" + z, 8,
          joined(small, {"parallel.cp=2", "parallel.zero_layout=bucketed"}), keys);
      add("pp2_tsp4" + z, 8, joined(small, {"parallel.pp=2"}), keys);
    }
  }
  for (const int zero : {0, 1, 3}) {
    const std::string z = "_zero" + std::to_string(zero);
    const Overrides keys = {"parallel.tsp=4", "parallel.zero=" + std::to_string(zero)};
    const Overrides sparse = joined(kSparse, kEight);
    add("tsp4_ep4_same_heads_zaya1" + z, 4, joined(keys, {"parallel.ep=4"}), kEight, zero == 1);
    add("tsp4_ep2_same_heads_sparse" + z, 4, joined(keys, {"parallel.ep=2"}), sparse);
    add("dp2_tsp4_ep8_same_heads_sparse_rounds" + z, 8,
        joined(keys, {"parallel.ep=8", "parallel.expert_rows=1"}),
        joined(sparse, {"train.recompute=true"}));
    add("tsp4_one_key_llama" + z, 4, keys, joined(kLlama, {"model.num_key_value_heads=1"}));
  }
  // Turns of a bucket of heads: one key head each, or several.
  const Overrides kEightKeys = {"model.num_key_value_heads=8", "model.num_attention_heads=8",
                                "model.head_dim=4"};
  for (const auto& [model, keys] : folded) {
    const Overrides layout = {"parallel.tsp=2", "parallel.tsp_head_buckets=2"};
    add("tsp2_buckets2_" + model, 2, layout, joined(keys, kFourKeys), true);
    add("dp2_tsp2_buckets2_zero3_" + model, 4,
        joined(layout, {"parallel.zero=3", "parallel.bucket_bytes=20000"}),
        joined(keys, kFourKeys));
    add("cp2_tsp2_buckets4_zero0_" + model, 4,
        {"parallel.tsp=2", "parallel.tsp_head_buckets=4", "parallel.zero=0", "parallel.cp=2"},
        joined(keys, kEightKeys));
    add("tsp4_buckets2_more_keys_" + model, 4,
        {"parallel.tsp=4", "parallel.tsp_head_buckets=2", "parallel.zero=2"},
        joined(keys, kEightKeys));
  }
  // 2 and 4 query heads a key head.
  for (const std::string heads : {"8", "16"})
    for (const auto& [model, keys] : {folded[0], folded[7]})
      for (const std::string buckets : {"1", "2"})
        add("tsp2_" + heads + "_heads_buckets" + buckets + "_" + model, 2,
            {"parallel.tsp=2", "parallel.tsp_head_buckets=" + buckets},
            joined(joined(keys, kFourKeys),
                   {"model.num_attention_heads=" + heads, "model.head_dim=4"}));
  add("pp2_tsp2_buckets2_qwen3_owner", 4,
      {"parallel.pp=2", "parallel.tsp=2", "parallel.tsp_head_buckets=2", "parallel.muon=owner"},
      joined(kQwen3, kFourKeys));
  add("tsp8_llama", 8, {"parallel.tsp=8", "parallel.cp_layout=contiguous"},
      joined(kLlama, kEightHeads));
  add("tsp4_more_keys_qwen3_owner", 4, {"parallel.tsp=4", "parallel.muon=owner"},
      joined(kQwen3, kEightHeads));
  add("dp2_cp2_tsp2_zero3_adamw", 8, {"parallel.tsp=2", "parallel.cp=2", "parallel.zero=3"},
      joined(kLlama, kAdamW));
  add("pp2_dp2_tsp2_zero2_gpipe", 8,
      {"parallel.pp=2", "parallel.tsp=2", "parallel.zero=2", "parallel.schedule=gpipe",
       "parallel.overlap=false"},
      kQwen3);
}

}  // namespace ashlar::train
