// The layouts again for runs that train adapters alone, or freeze tensors.
#include "tests/train/parity_models.h"

namespace ashlar::train {

void add_tune_cases(std::vector<ParityCase>& cases) {
  const auto add = [&](const std::string& name, int ranks, Overrides layout, Overrides model,
                       bool fast = false) {
    cases.push_back({name, ranks, std::move(layout), std::move(model), fast});
  };
  // The table draws weights from the seed and reads no model.
  const Overrides adapters = {"init.model=none", "lora.rank=3", "lora.alpha=7"};
  const Overrides attention = joined(adapters, {"lora.targets=attention"});
  const Overrides lora_llama = joined(joined(kLlama, adapters), {"lora.rslora=true"});
  const Overrides lora_cca = attention;
  const Overrides lora_shared =
      joined(joined(kShared, adapters), {"lora.modules_to_save=*norm.weight,*.mlp.gate.*"});
  const Overrides frozen = joined(kMixed, {"init.model=none",
                                           "train.freeze=model.embed_tokens.*,model.input_*,model."
                                           "layers.0.*,*.mlp.experts.*,*.o_proj.*"});
  add("lora_llama_dp2_zero3", 2, {"parallel.zero=3"}, lora_llama, true);
  add("lora_llama_tp2", 2, {"parallel.tp=2"}, lora_llama, true);
  add("lora_llama_pp2_zb", 2, {"parallel.pp=2", "parallel.schedule=zb"}, lora_llama, true);
  add("frozen_mixed_tp2", 2, {"parallel.tp=2"}, frozen, true);
  add("lora_llama_tsp2", 2, {"parallel.tsp=2"}, lora_llama, true);
  add("frozen_mixed_tsp2", 2, {"parallel.tsp=2"}, frozen, true);
  add("lora_llama_tsp2_buckets2", 2, {"parallel.tsp=2", "parallel.tsp_head_buckets=2"},
      joined(lora_llama, {"model.num_key_value_heads=4"}), true);
  const std::pair<std::string, Overrides> models[] = {{"lora_llama", lora_llama},
                                                      {"lora_cca", lora_cca},
                                                      {"lora_shared", lora_shared},
                                                      {"frozen_mixed", frozen}};
  const struct {
    std::string name;
    int ranks;
    Overrides layout;
  } layouts[] = {
      {"dp2_zero0", 2, {"parallel.zero=0"}},
      {"dp2_zero1_bucketed", 2, {"parallel.zero_layout=bucketed", "parallel.bucket_bytes=1024"}},
      {"dp4_zero2", 4, {"parallel.zero=2", "parallel.muon=owner"}},
      {"tp2_sequence_parallel", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"}},
      {"tp4_shared_keys", 4, {"parallel.tp=4"}},
      {"cp2_zigzag_all_gather", 2, {"parallel.cp=2"}},
      {"cp2_zigzag_all_to_all", 2, {"parallel.cp=2", "parallel.cp_exchange=all_to_all"}},
      {"cp3_contiguous_ring",
       3,
       {"parallel.cp=3", "parallel.cp_layout=contiguous", "parallel.cp_exchange=ring"}},
      {"pp2_1f1b", 2, {"parallel.pp=2"}},
      {"dp2_cp2_tp2_zero3_bucketed",
       8,
       {"parallel.tp=2", "parallel.cp=2", "parallel.zero=3", "parallel.zero_layout=bucketed",
        "parallel.sequence_parallel=true"}},
      {"pp2_dp2_tp2_zero2", 8, {"parallel.pp=2", "parallel.tp=2", "parallel.zero=2"}},
      {"tsp4_zero2", 4, {"parallel.tsp=4", "parallel.zero=2"}},
      {"cp2_tsp2_zero1_bucketed",
       4,
       {"parallel.cp=2", "parallel.tsp=2", "parallel.zero_layout=bucketed"}},
      {"pp2_dp2_tsp2_zero3", 8, {"parallel.pp=2", "parallel.tsp=2", "parallel.zero=3"}},
  };
  for (const auto& [model, keys] : models)
    for (const auto& layout : layouts)
      add(model + "_" + layout.name, layout.ranks, layout.layout, keys);
  const Overrides experts =
      joined(joined(kShared, adapters), {"lora.targets=experts,attention,mlp"});
  add("lora_experts_ep2", 2, {"parallel.ep=2"}, experts, true);
  add("lora_experts_dp2_zero3", 2, {"parallel.zero=3"}, experts, true);
  add("lora_experts_dp2_ep2_zero2", 4, {"parallel.ep=2", "parallel.zero=2"}, experts);
  add("lora_experts_ep2_zero3_bucketed", 2,
      {"parallel.ep=2", "parallel.zero=3", "parallel.zero_layout=bucketed"}, experts);
  add("lora_experts_pp2_zb", 2, {"parallel.pp=2", "parallel.schedule=zb"}, experts);
  add("lora_experts_cp2", 2, {"parallel.cp=2"}, experts);
  add("lora_experts_tsp2", 2, {"parallel.tsp=2"}, experts);
  add("lora_experts_tp2", 2, {"parallel.tp=2"}, experts, true);
  add("lora_experts_tp2_sequence_parallel", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"},
      experts);
  add("lora_experts_ep2_tp2_zero3", 4, {"parallel.ep=2", "parallel.tp=2", "parallel.zero=3"},
      experts);
  add("lora_experts_pp2_tp2_zb", 4,
      {"parallel.pp=2", "parallel.tp=2", "parallel.schedule=zb", "parallel.zero=1"}, experts);
  add("lora_experts_dp2_tp4_zero2", 8, {"parallel.tp=4", "parallel.zero=2"}, experts);
  add("lora_shared_ep2", 2, {"parallel.ep=2"}, lora_shared);
  add("lora_shared_ep2_tp2_zero3", 4, {"parallel.ep=2", "parallel.tp=2", "parallel.zero=3"},
      lora_shared);
  add("frozen_mixed_ep2", 2, {"parallel.ep=2"}, joined(frozen, kEight));
}

}  // namespace ashlar::train
