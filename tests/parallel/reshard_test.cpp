// Ranks of one random layout load what ranks of another have saved: every element of every tensor
// comes where it belongs.  Layouts are those of the model itself, on meta: pipelines, ZeRO in all
// its stages, both kinds of shards, context, tensor and expert parallelism, sizes that do not
// divide.
//
//   ASHLAR_RESHARD_CASES=N   so many pairs of layouts (default 30; scripts/campaign reshard)
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <set>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/comm/recording/recording.h"
#include "ashlar/core/rng.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/box_order.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using testing_support::TinyRank;
using Overrides = std::vector<std::string>;

// The generator's numbers are the same on every machine, those of a std distribution are not.
class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

 private:
  std::mt19937 random_;
};

template <typename T>
void set_key(Overrides& keys, const char* name, const T& value) {
  keys.push_back(fmt::format("{}={}", name, value));
}

Overrides any_model(Draw& draw) {
  Overrides keys = {"train.precision=fp32",    "train.global_batch=48",
                    "train.micro_batch=1",     "data.num_streams=48",
                    "data.sequence_length=48", "model.intermediate_size=24"};
  const int64_t heads = draw.one_of<int64_t>({4, 6, 8, 12});
  set_key(keys, "model.num_attention_heads", heads);
  set_key(keys, "model.num_key_value_heads", draw.one_of<int64_t>({1, 2, 3, 4}));
  set_key(keys, "model.head_dim", draw.one_of<int>({4, 8}));
  set_key(keys, "model.hidden_size", draw.one_of<int>({7, 10, 16}));
  set_key(keys, "model.vocab_size", draw.one_of<int>({261, 271, 280}));
  set_key(keys, "model.num_experts", draw.one_of<int>({3, 4, 5, 8}));
  set_key(keys, "model.moe_intermediate_size", draw.one_of<int>({6, 12, 24}));
  set_key(keys, "model.router_hidden_size", draw.one_of<int>({3, 8}));
  set_key(keys, "model.num_hidden_layers", draw.one_of<int>({2, 3, 4}));
  set_key(keys, "model.tie_word_embeddings", draw.one_of({"true", "false"}));
  const std::string types =
      draw.one_of<std::string>({"hybrid", "hybrid", "full_attention", "attention+moe",
                                R"(["linear+mlp", "attention+mlp"])"});
  set_key(keys, "model.layer_types", types);
  if (types == "attention+moe") set_key(keys, "model.router", "linear");
  if (types.starts_with("[")) {
    set_key(keys, "model.linear_recurrence", draw.one_of({"basic", "gla", "gated_delta"}));
    set_key(keys, "model.linear_num_key_heads", draw.one_of<int>({2, 4}));
    set_key(keys, "model.linear_num_value_heads", 4);
    set_key(keys, "model.linear_conv_kernel_dim", draw.one_of<int>({0, 3}));
  }
  return keys;
}

struct Layout {
  int num_ranks = 1;
  Recipe recipe;
  std::string text;
};

// nullopt: the rules of recipes forbid it.
std::optional<Layout> layout_of(int num_ranks, const Overrides& keys) {
  try {
    Layout layout{num_ranks, load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", keys),
                  fmt::format("{}", fmt::join(keys, " "))};
    resolve_parallel(layout.recipe, num_ranks);
    return layout;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kConfig) throw;
    return std::nullopt;
  }
}

// Both are drawn until the rules allow them.
Overrides random_model(Draw& draw) {
  for (;;)
    if (const Overrides model = any_model(draw); layout_of(1, model)) return model;
}

Layout random_layout(const Overrides& model, Draw& draw) {
  for (;;) {
    const int pp = draw.one_of({1, 1, 2, 3}), tp = draw.one_of({1, 1, 2, 3, 4}),
              cp = draw.one_of({1, 1, 2, 3}), dp = draw.one_of({1, 1, 2, 3, 4});
    if (pp * tp * cp * dp > 12) continue;
    Overrides keys = model;
    set_key(keys, "parallel.pp", pp);
    set_key(keys, "parallel.tp", tp);
    set_key(keys, "parallel.cp", cp);
    set_key(keys, "parallel.dp", dp);
    set_key(keys, "parallel.ep", draw.one_of({1, 1, 2, 3, 4}));
    set_key(keys, "parallel.zero", draw.one_of({0, 1, 2, 3}));
    set_key(keys, "parallel.zero_layout", draw.one_of({"contiguous", "bucketed"}));
    set_key(keys, "parallel.bucket_bytes", draw.one_of({1024, 5000, 20000}));
    if (auto layout = layout_of(pp * tp * cp * dp, keys)) return *std::move(layout);
  }
}

// Memory behind the boxes that a rank has of the model and of one state of the optimizer.
struct HeldPieces {
  std::vector<Piece> model, optim;
  std::vector<std::vector<float>> memory;
  void add(const LogicalTensor& logical, const Box& box, std::vector<Piece>& list) {
    memory.emplace_back(size_t(box.length.numel()), std::nanf(""));
    list.push_back({logical, box, tensor_over(std::span(memory.back())).view(box.length)});
  }
};

HeldPieces held_by(const Layout& layout, int rank, bool to_write) {
  Allocator allocator(Device::kMeta);
  comm::RecordingWorld world(rank, layout.num_ranks, {}, allocator);
  const TinyRank made(layout.recipe, world.group(),
                      {.compute = DType::kF32, .device = Device::kMeta});
  HeldPieces held;
  for (const Piece& piece : made.model.pieces(to_write))
    held.add(piece.logical, piece.box, held.model);
  std::vector<KeptTensor> moments;
  for (const Parameter& p : made.model.parameters()) {
    LogicalTensor state = p.logical;
    state.name = "optim.exp_avg." + state.name;
    state.role = Role::kOptimizerState;
    moments.push_back({&p, std::move(state), p.value});
  }
  for (const Piece& piece : to_write ? pieces_to_write(moments) : pieces_of(moments))
    held.add(piece.logical, piece.box, held.optim);
  return held;
}

template <typename F>
void for_each_element(const HeldPieces& held, F&& body) {
  for (const auto* list : {&held.model, &held.optim})
    for (const Piece& piece : *list) {
      const uint64_t name = fnv1a64(piece.logical.name);
      for (int64_t i = 0; i < piece.data.numel(); ++i) {
        const int64_t index = index_in_tensor(piece.logical.global_shape, piece.box, i);
        body(piece, piece.data.as<float>()[i], float(splitmix64(name + uint64_t(index)) >> 40));
      }
    }
}

// Every rank of the layout writes its boxes; all of them tile every tensor, or the save fails.
void save(FileSystem& files, const Layout& layout, Log& log) {
  std::vector<std::unique_ptr<checkpoint::Checkpointer>> writers;
  for (int rank = 0; rank < layout.num_ranks; ++rank) {
    checkpoint::CheckpointOptions options;
    options.async = false;
    options.run_id = "run";
    options.writer_rank = rank;
    options.num_writers = layout.num_ranks;
    options.part_timeout_s = 0;
    writers.push_back(std::make_unique<checkpoint::Checkpointer>(files, "root", options, log));
  }
  const checkpoint::Id attempt = checkpoint::random_id();
  for (int rank = layout.num_ranks - 1; rank >= 0; --rank) {  // the leader finds all parts there
    const HeldPieces held = held_by(layout, rank, true);
    for_each_element(held, [](const Piece&, float& value, float expected) { value = expected; });
    checkpoint::SaveRequest request;
    request.step = 1;
    request.attempt = attempt;
    request.model = held.model;
    request.optim = held.optim;
    writers[size_t(rank)]->save(request);
  }
}

// Loads every rank of the layout; returns how many elements came back, or fails at the first wrong
// one.
int64_t load(FileSystem& files, const Layout& layout) {
  const checkpoint::StepReader reader(files, "root/" + checkpoint::step_name(1));
  checkpoint::LoadOptions options;
  options.allow_unexpected = {"*"};  // what stands on other ranks
  std::set<std::string> names;
  int64_t count = 0, wrong = 0;
  for (int rank = 0; rank < layout.num_ranks; ++rank) {
    const HeldPieces held = held_by(layout, rank, false);
    std::vector<Piece> all = held.model;
    all.insert(all.end(), held.optim.begin(), held.optim.end());
    reader.load(all, options);
    for_each_element(held, [&](const Piece& piece, float& value, float expected) {
      names.insert(piece.logical.name);
      wrong += value != expected;
      ++count;
    });
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(names.size(), reader.index().tensors.size());
  return count;
}

TEST(Reshard, AnyLayoutFromAnyLayout) {
  const char* asked = std::getenv("ASHLAR_RESHARD_CASES");
  const int cases = asked ? std::atoi(asked) : 30;
  ASSERT_GT(cases, 0);
  Log log([](std::string_view) {});
  int64_t elements = 0, most_ranks = 0;
  std::set<std::string> pairs;
  for (int n = 0; n < cases; ++n) {
    Draw draw{uint32_t(1000 + n)};
    const Overrides model = random_model(draw);
    const Layout from = random_layout(model, draw), to = random_layout(model, draw);
    SCOPED_TRACE(fmt::format("case {}: {} ranks {} -> {} ranks {}", n, from.num_ranks, from.text,
                             to.num_ranks, to.text));
    const auto files = memory_files();
    save(*files, from, log);
    elements += load(*files, to);
    most_ranks = std::max<int64_t>({most_ranks, from.num_ranks, to.num_ranks});
    pairs.insert(from.text + " " + to.text);
    if (HasFailure()) break;
  }
  fmt::print("reshard: {} cases, {} different, up to {} ranks, {} elements compared\n", cases,
             pairs.size(), most_ranks, elements);
}

}  // namespace
}  // namespace ashlar::parallel
