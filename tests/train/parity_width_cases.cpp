// Layouts of models whose widths are no multiples of what memory is aligned to: between two tensors
// lie gaps, which are other ones in fp64 than in fp32 (nn/weights.h).
#include "tests/train/parity_models.h"

namespace ashlar::train {

void add_width_cases(std::vector<ParityCase>& cases) {
  const std::pair<std::string, Overrides> models[] = {
      {"router8", {"model.router_hidden_size=8"}},
      {"router15", {"model.router_hidden_size=15"}},
      {"router17", {"model.router_hidden_size=17"}},
      {"router24", {"model.router_hidden_size=24"}},
      {"experts7", {"model.moe_intermediate_size=7", "optim.muon_split_gate_up=true"}},
      {"hidden27", {"model.hidden_size=27", "model.router_hidden_size=9"}},
      {"llama_mlp21", joined(kLlama, {"model.intermediate_size=21"})}};
  const struct {
    std::string name;
    int ranks;
    Overrides layout;
  } layouts[] = {
      {"dp2_zero0", 2, {"parallel.zero=0"}},
      {"dp2_zero1", 2, {}},
      {"dp2_zero1_bucketed", 2, {"parallel.zero_layout=bucketed", "parallel.bucket_bytes=1024"}},
      {"dp2_zero2_replicate", 2, {"parallel.zero=2", "parallel.muon=replicate"}},
      {"dp2_zero3", 2, {"parallel.zero=3"}},
      {"dp4_zero2_owner", 4, {"parallel.zero=2", "parallel.muon=owner"}},
      {"dp8_zero3_bucketed",
       8,
       {"parallel.zero=3", "parallel.zero_layout=bucketed", "parallel.bucket_bytes=1024"}},
      {"cp3_zero1", 3, {"parallel.cp=3", "parallel.cp_layout=contiguous"}},
      {"pp2_dp2_zero1", 4, {"parallel.pp=2"}},
      {"dp2_ep2_zero1", 2, {"parallel.ep=2"}},
      {"tp2_dp2_zero1", 4, {"parallel.tp=2"}},
      {"tsp2_dp2_zero3", 4, {"parallel.tsp=2", "parallel.zero=3"}},
  };
  for (const auto& [model, keys] : models)
    for (const auto& layout : layouts) {
      const bool shares_widths = layout.name.starts_with("t");
      const bool has_router = model.starts_with("router");
      if (shares_widths && !has_router) continue;  // 2 does not divide the odd width
      if (layout.name.ends_with("ep2_zero1") && model.starts_with("llama")) continue;
      cases.push_back({model + "_" + layout.name, layout.ranks, layout.layout, keys,
                       layout.ranks == 2 && model != "router24"});
    }
}

}  // namespace ashlar::train
