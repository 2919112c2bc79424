// Layouts of models with linear mixers: every recurrence and every way in which states reach the
// ranks of a sequence; hybrids with softmax attention; and the other techniques.
#include "tests/train/parity_models.h"

namespace ashlar::train {

void add_linear_cases(std::vector<ParityCase>& cases) {
  const auto add = [&](const std::string& name, int ranks, Overrides layout, Overrides model,
                       bool fast = false) {
    cases.push_back({name, ranks, std::move(layout), std::move(model), fast});
  };
  // 240 tokens are cut evenly by 2, 3, 4, 5 and 8 ranks, in one chunk or two.
  const Overrides kLinear = {"model.layer_types=linear_attention", "model.intermediate_size=40",
                             "model.linear_num_key_heads=4",       "model.linear_num_value_heads=4",
                             "model.linear_key_head_dim=6",        "model.linear_value_head_dim=10",
                             "data.sequence_length=240",           "train.micro_batch=1"};
  const std::pair<std::string, Overrides> recurrences[] = {
      {"basic", {"model.linear_recurrence=basic", "model.linear_feature_map=elu"}},
      {"lightning", {"model.linear_recurrence=lightning", "train.micro_batch=2"}},
      {"retention", {"model.linear_recurrence=retention", "model.linear_feature_map=silu"}},
      {"gla", {"model.linear_recurrence=gla", "model.linear_conv_kernel_dim=3"}},
      {"gated_delta",
       {"model.linear_recurrence=gated_delta", "model.linear_num_key_heads=2",
        "model.linear_conv_kernel_dim=4"}},
      {"unmasked",
       {"model.linear_recurrence=basic", "model.linear_feature_map=relu",
        "model.linear_causal=false", "model.linear_num_key_heads=2",
        "model.linear_conv_kernel_dim=3"}}};
  for (const auto& [name, own] : recurrences) {
    const Overrides model = joined(kLinear, own);
    const bool causal = name != "unmasked";  // else states come by all_gather only
    for (const std::string exchange : {"all_gather", "chain", "scan", "exclusive_scan"})
      for (const std::string layout : {"contiguous", "zigzag"})
        for (const int cp : {2, 3, 4, 5, 8})
          if (causal || exchange == "all_gather")
            add("linear_" + name + "_cp" + std::to_string(cp) + "_" + layout + "_" + exchange, cp,
                {"parallel.cp=" + std::to_string(cp), "parallel.cp_layout=" + layout,
                 "parallel.state_exchange=" + exchange},
                model, cp == 2 && (exchange == "all_gather" || layout == "zigzag"));
    const Overrides again = joined(model, {"train.recompute=true"});
    const Overrides small = {"parallel.bucket_bytes=20000"};
    add("linear_" + name + "_tp2", 2, {"parallel.tp=2"}, model, true);
    add("linear_" + name + "_tp2_sequence_parallel_recompute", 2,
        {"parallel.tp=2", "parallel.sequence_parallel=true"}, again);
    add("linear_" + name + "_cp2_recompute", 2, {"parallel.cp=2"}, again, true);
    if (causal)
      add("linear_" + name + "_cp2_chain_recompute", 2,
          {"parallel.cp=2", "parallel.state_exchange=chain"}, again);
    for (const int zero : {0, 1, 2, 3})
      add("linear_" + name + "_dp2_cp2_zero" + std::to_string(zero), 4,
          joined(small, {"parallel.cp=2", "parallel.zero=" + std::to_string(zero)}), again,
          zero == 3 && name == "gla");
    add("linear_" + name + "_tp2_cp2_zero3", 4,
        {"parallel.tp=2", "parallel.cp=2", "parallel.zero=3"}, model);
    for (const std::string schedule : {"gpipe", "1f1b", "zb"})
      add("linear_" + name + "_pp2_" + schedule + "_cp2", 4,
          {"parallel.pp=2", "parallel.cp=2", "parallel.schedule=" + schedule}, model);
    add("linear_" + name + "_pp2_dp2_tp2", 8, {"parallel.pp=2", "parallel.tp=2", "parallel.zero=2"},
        model);
  }
  // One softmax mixer in four, and a convolved mixer beside CCA with its own halo.
  const Overrides kHybrid = {
      "model.layer_types=[\"linear+mlp\", \"linear+moe\", \"linear+mlp\", "
      "\"attention+moe\"]",
      "model.num_hidden_layers=4"};
  const Overrides kBesideCca = {
      "model.layer_types=[\"cca+moe\", \"linear+mlp\", \"attention+mlp\"]",
      "model.num_hidden_layers=3"};
  const std::pair<std::string, Overrides> hybrids[] = {
      {"lightning", joined(kHybrid, recurrences[1].second)},
      {"gla", joined(kHybrid, recurrences[3].second)},
      {"gated_delta", joined(kHybrid, recurrences[4].second)},
      {"cca", joined(kBesideCca, recurrences[4].second)},
      // Its halo, of one token, has as many elements as that of CCA, of two.
      {"cca_equal_halos",
       joined(kBesideCca, {"model.linear_recurrence=gated_delta", "model.num_key_value_heads=1",
                           "model.linear_num_key_heads=4", "model.linear_num_value_heads=4",
                           "model.linear_key_head_dim=8", "model.linear_value_head_dim=5",
                           "model.linear_conv_kernel_dim=2",
                           "model.layer_types=[\"linear+mlp\", \"attention+mlp\", \"cca+moe\"]"})}};
  const struct {
    std::string name;
    int ranks;
    Overrides layout;
  } layouts[] = {
      {"cp2", 2, {"parallel.cp=2"}},
      {"cp2_contiguous_ring_chain",
       2,
       {"parallel.cp=2", "parallel.cp_layout=contiguous", "parallel.cp_exchange=ring",
        "parallel.state_exchange=chain"}},
      {"cp4_all_to_all_scan",
       4,
       {"parallel.cp=4", "parallel.cp_exchange=all_to_all", "parallel.state_exchange=scan"}},
      {"cp4_zero3", 4, {"parallel.cp=4", "parallel.zero=3"}},
      {"dp2_cp2_tp2", 8, {"parallel.cp=2", "parallel.tp=2", "parallel.zero=2"}},
      {"tp2_sequence_parallel", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"}},
      {"cp2_ep2", 2, {"parallel.cp=2", "parallel.ep=2"}},
      {"pp2_dp2_cp2_ep4",
       8,
       {"parallel.pp=2", "parallel.cp=2", "parallel.ep=4", "parallel.zero=3"}},
      {"pp3_1f1b", 3, {"parallel.pp=3"}},
  };
  for (const auto& [name, own] : hybrids)
    for (const auto& layout : layouts)
      add("hybrid_" + name + "_" + layout.name, layout.ranks, layout.layout, joined(kLinear, own),
          layout.ranks == 2);
}

}  // namespace ashlar::train
