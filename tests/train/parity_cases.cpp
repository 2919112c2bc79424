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
  return cases;
}

}  // namespace

const std::vector<ParityCase>& parity_cases() {
  static const std::vector<ParityCase> cases = make_cases();
  return cases;
}

}  // namespace ashlar::train
