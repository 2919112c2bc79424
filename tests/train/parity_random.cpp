// Random recipes on random numbers of ranks: each is refused with a message that names a key, or
// trains as one rank does.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/spec/keys.h"
#include "tests/train/parity.h"

namespace ashlar::train {
namespace {

using Overrides = std::vector<std::string>;

// Numbers of the generator are the same on every machine, those of a std distribution are not.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  template <typename T = std::string>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  bool once_in(uint32_t times) { return random_() % times == 0; }

 private:
  std::mt19937 random_;
};

template <typename T>
void set(Overrides& keys, const char* name, const T& value) {
  keys.push_back(fmt::format("{}={}", name, value));
}

Overrides random_model(Draw& draw) {
  Overrides keys;
  const std::string kind =
      draw.one_of({"cca", "cca", "llama", "top_k", "mixed", "linear", "beside"});
  set(keys, "model.num_hidden_layers", kind == "mixed" ? 3 : draw.one_of<int>({1, 2, 4, 4, 5, 6}));
  set(keys, "model.num_attention_heads", draw.one_of<int>({4, 4, 6, 8, 8, 12}));
  set(keys, "model.num_key_value_heads", draw.one_of<int>({1, 2, 2, 2, 3, 4, 4}));
  set(keys, "model.num_experts", draw.one_of<int>({1, 3, 4, 4, 6, 8, 8}));
  set(keys, "model.router_hidden_size", draw.one_of<int>({16, 16, 8, 15}));
  set(keys, "model.moe_intermediate_size", draw.one_of<int>({6, 24, 24, 24, 24, 24}));
  set(keys, "model.intermediate_size", draw.one_of<int>({9, 24, 24, 24, 24, 24}));
  set(keys, "model.tie_word_embeddings", draw.one_of({"true", "false"}));
  set(keys, "model.qk_norm", draw.one_of({"none", "rms"}));
  set(keys, "model.attention_bias", draw.one_of({"none", "none", "qkv", "qkvo"}));
  if (kind == "linear") set(keys, "model.layer_types", "linear_attention");
  if (kind == "beside")
    set(keys, "model.layer_types", R"(["linear+mlp", "linear+moe", "attention+mlp", "cca+moe"])");
  if (kind == "linear" || kind == "beside") {
    set(keys, "model.linear_recurrence",
        draw.one_of({"basic", "lightning", "retention", "gla", "gated_delta"}));
    set(keys, "model.linear_num_key_heads", draw.one_of<int>({1, 2, 4, 4}));
    set(keys, "model.linear_num_value_heads", 4);
    set(keys, "model.linear_value_head_dim", draw.one_of<int>({5, 8}));
    set(keys, "model.linear_conv_kernel_dim", draw.one_of<int>({0, 0, 1, 2, 4}));
    if (kind == "beside") keys[0] = "model.num_hidden_layers=4";
  }
  if (kind == "llama") set(keys, "model.layer_types", "full_attention");
  if (kind == "mixed")
    set(keys, "model.layer_types", R"(["cca+mlp", "attention_sliding+moe", "attention+mlp"])");
  if (kind == "cca" && draw.once_in(2)) set(keys, "model.layer_types", "alternate");
  if (draw.once_in(2) || kind == "mixed") set(keys, "model.sliding_window", 9);
  if (kind == "cca" && draw.once_in(3)) set(keys, "moe.skip_output", "identity");
  if (kind == "top_k") {
    set(keys, "model.layer_types", "attention+moe");
    set(keys, "model.router", "linear");
    set(keys, "model.num_experts_per_tok", draw.one_of<int>({1, 2, 2, 3}));
    set(keys, "model.router_expert_bias", draw.one_of({"true", "false"}));
    if (draw.once_in(2))
      set(keys, "model.shared_expert_intermediate_size", draw.one_of({"24", "9"}));
    if (draw.once_in(2)) set(keys, "moe.router_aux_loss_coef", 0.05);
    if (draw.once_in(2)) set(keys, "moe.router_z_loss_coef", 0.02);
  }
  set(keys, "data.sequence_length", draw.one_of<int>({12, 24, 24, 48, 30}));
  set(keys, "train.micro_batch", draw.one_of<int>({1, 1, 1, 1, 2, 3}));
  set(keys, "train.global_batch", draw.one_of<int>({6, 8, 8, 12, 12, 24}));
  set(keys, "data.num_streams", 0);
  set(keys, "train.recompute", draw.one_of({"true", "false", "false"}));
  set(keys, "optim.matrices", draw.one_of({"muon", "adamw"}));
  return keys;
}

ParityCase random_case(Draw& draw) {
  ParityCase c;
  c.model = random_model(draw);
  Overrides& keys = c.overrides;
  const auto pp = draw.one_of<int>({1, 1, 2, 2, 3, 4}),
             tp = draw.one_of<int>({1, 1, 1, 2, 2, 3, 4});
  const auto cp = draw.one_of<int>({1, 1, 1, 2, 2, 3, 4});
  set(keys, "parallel.pp", pp);
  set(keys, "parallel.tp", tp);
  set(keys, "parallel.cp", cp);
  set(keys, "parallel.ep", draw.one_of<int>({1, 1, 1, 1, 2, 2, 3, 4}));
  if (draw.once_in(8)) set(keys, "parallel.dp", draw.one_of<int>({1, 2, 4}));
  set(keys, "parallel.zero", draw.one_of<int>({0, 1, 2, 3}));
  set(keys, "parallel.zero_layout", draw.one_of({"contiguous", "bucketed"}));
  set(keys, "parallel.bucket_bytes", draw.one_of<int>({1024, 20000, 1 << 20}));
  set(keys, "parallel.overlap", draw.one_of({"true", "true", "false"}));
  set(keys, "parallel.sequence_parallel", draw.one_of({"true", "false", "false"}));
  set(keys, "parallel.cp_layout", draw.one_of({"zigzag", "contiguous"}));
  set(keys, "parallel.cp_exchange", draw.one_of({"all_gather", "ring", "all_to_all"}));
  set(keys, "parallel.state_exchange",
      draw.one_of({"all_gather", "chain", "scan", "exclusive_scan"}));
  set(keys, "parallel.muon", draw.one_of({"auto", "replicate", "owner"}));
  set(keys, "parallel.expert_rows", draw.one_of({"1.0", "1.5", "2.0", "100"}));
  const std::string schedule = draw.one_of({"gpipe", "1f1b", "interleaved", "zb"});
  set(keys, "parallel.schedule", schedule);
  const bool chunks = draw.once_in(10) ? draw.once_in(2) : pp > 1 && schedule == "interleaved";
  set(keys, "parallel.virtual_stages", chunks ? draw.one_of<int>({2, 2, 3}) : 1);
  const int others = pp * tp * cp;
  c.num_ranks = draw.once_in(8) || others > 8 ? draw.one_of<int>({1, 2, 3, 4, 5, 6, 7, 8})
                                              : others * draw.one_of<int>({1, 1, 2, 2, 3, 4});
  c.num_ranks = std::min(c.num_ranks, others > 8 ? c.num_ranks : 8 / others * others);
  // With fewer micro-batches a rank, dp ranks make fewer updates of a step than one rank does.
  if (c.num_ranks == others && draw.once_in(3)) set(c.model, "moe.balance.scope", "micro_batch");
  c.name = fmt::format("{} ranks, {} {}", c.num_ranks, fmt::join(c.overrides, " "),
                       fmt::join(c.model, " "));
  return c;
}

// The message with which the recipe is refused on so many ranks.
std::optional<std::string> refusal(const ParityCase& c) {
  try {
    resolve_parallel(parity_recipe(c, "fp64", true), c.num_ranks);
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
    return error.what();
  }
}

bool names_a_key(const std::string& message) {
  const std::vector<Key>& keys = recipe_keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&](const Key& key) { return message.find(key.name) != std::string::npos; });
}

void expect_parity(const ParityCase& c) {
  std::vector<std::string> differences(size_t(c.num_ranks));
  Allocator allocator(Device::kCpu);
  try {
    comm::run_ranks(c.num_ranks, {.timeout_s = 60}, allocator, [&](comm::Group& ranks) {
      differences[size_t(ranks.rank())] = check_parity(c, ranks);
    });
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  for (size_t rank = 0; rank < differences.size(); ++rank)
    EXPECT_EQ(differences[rank], "") << "on rank " << rank;
}

constexpr int kTrainedOfSeed = 12, kMostOfSeed = 1000;

class RandomRecipes : public testing::TestWithParam<int> {};

TEST_P(RandomRecipes, AreRefusedByNameOrEqualOneRank) {
  Draw draw(uint32_t(20250302 + GetParam()));
  int num_trained = 0, num_refused = 0;
  while (num_trained < kTrainedOfSeed) {
    const ParityCase c = random_case(draw);
    SCOPED_TRACE(c.name);
    if (const auto message = refusal(c)) {
      EXPECT_TRUE(names_a_key(*message)) << *message;
      ASSERT_LE(++num_refused, kMostOfSeed) << "nearly nothing is allowed";
    } else {
      expect_parity(c);
      ++num_trained;
    }
  }
  EXPECT_GE(num_refused, kTrainedOfSeed);
}

INSTANTIATE_TEST_SUITE_P(Layouts, RandomRecipes, testing::Range(0, 10));

}  // namespace
}  // namespace ashlar::train
