#include <algorithm>
#include <map>

#include "ashlar/sizing/rules.h"

namespace ashlar::sizing {
namespace {

// Collects products of the rank, each name once.
class Products {
 public:
  explicit Products(const RuleInput& input) : p_(input.parallel) {
    const Recipe& r = input.recipe;
    tokens_ = std::max<int64_t>(1, r.train.micro_batch * r.data.sequence_length / (p_.cp * p_.tsp));
    hidden_ = r.model.hidden_size;
  }

  void add(const AttentionSpec& m) {
    const int64_t q = m.q_dim() / p_.tp, kv = std::max(m.kv_dim() / p_.tp, m.head_dim);
    put({"queries, keys, values", tokens_, q + 2 * kv + (m.output_gate ? q : 0), hidden_});
    put({"attention's output", tokens_, hidden_, q});
  }
  void add(const CcaSpec& m) {
    const int64_t q = m.q_dim() / p_.tp, kv = std::max(m.kv_dim() / p_.tp, m.head_dim);
    put({"queries, keys, values", tokens_, q + 2 * kv, hidden_});
    put({"attention's output", tokens_, hidden_, q});
  }
  void add(const LinearSpec& m) {
    put({"linear mixer's input", tokens_, m.conv_channels() / p_.tp, hidden_});
    put({"linear mixer's output", tokens_, hidden_, m.value_dim() / p_.tp});
  }
  void add(const MlpSpec& m) {
    add_feed_forward("mlp", "model.intermediate_size", m.width, tokens_, 1);
  }
  void add(const MoeSpec& m) {
    const int64_t here = m.num_experts / p_.ep;
    const int64_t rows = tokens_ * m.experts_of_token() / here;
    add_feed_forward("experts", "model.moe_intermediate_size", m.width, std::max<int64_t>(1, rows),
                     here);
    if (m.shared.width > 0)
      add_feed_forward("shared expert", "model.shared_expert_intermediate_size", m.shared.width,
                       tokens_, 1);
  }
  void add_head(int64_t vocab) {
    put({"head", tokens_ / (p_.sequence_parallel ? p_.tp : 1), vocab, hidden_, 1,
         "model.vocab_size", 1});
  }
  std::vector<BlockProduct> list() && { return std::move(list_); }

 private:
  void add_feed_forward(const std::string& name, const char* key, int64_t width, int64_t rows,
                        int64_t groups) {
    const int64_t F = width / p_.tp;
    put({name + ", gate and up", rows, 2 * F, hidden_, groups, key, 2});
    put({name + ", down", rows, hidden_, F, groups});
  }
  void put(BlockProduct product) {
    for (BlockProduct& known : list_)
      if (known.name == product.name) {
        ++known.times;
        return;
      }
    list_.push_back(std::move(product));
  }

  const ParallelSpec& p_;
  int64_t tokens_ = 0, hidden_ = 0;
  std::vector<BlockProduct> list_;
};

}  // namespace

std::vector<BlockProduct> block_products(const RuleInput& input) {
  Products products(input);
  const ModelSpec model = model_of(input.recipe.model);
  for (const BlockSpec& block : model.blocks) {
    std::visit([&](const auto& spec) { products.add(spec); }, block.mixer);
    std::visit([&](const auto& spec) { products.add(spec); }, block.feed_forward);
  }
  products.add_head(model.vocab_size);
  return std::move(products).list();
}

}  // namespace ashlar::sizing
