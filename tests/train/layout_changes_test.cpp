// A run saved on any layout of ranks goes on on any other: every tensor of its state comes
// back bit for bit, the data go on where they ended, and the losses stay those of one rank.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/text.h"
#include "ashlar/tensor/box_order.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/start.h"
#include "ashlar/train/state.h"
#include "tests/data/support.h"

namespace ashlar::train {
namespace {

using nlohmann::json;
using Overrides = std::vector<std::string>;

constexpr int64_t kSaved = 3, kMore = 10;  // steps before the save, and after it
constexpr int kPairsOfModel = 16;

struct TestModel {
  std::string name;
  Overrides keys;
};
const std::vector<TestModel> kModels = {
    {"zaya1", {}},
    {"llama",
     {"model.layer_types=full_attention", "model.intermediate_size=40",
      "model.tie_word_embeddings=false"}},
    {"mixtral",
     {"model.layer_types=attention+moe", "model.router=linear", "model.num_experts_per_tok=2",
      "model.tie_word_embeddings=false"}},
    {"hybrid",
     {"model.layer_types=[\"linear+mlp\", \"linear+moe\", \"attention+mlp\", \"linear+moe\"]",
      "model.intermediate_size=40", "model.linear_recurrence=gated_delta",
      "model.linear_conv_kernel_dim=4"}}};

Recipe recipe_of_model(const TestModel& model, const Overrides& more) {
  Overrides all = {"data.train=text",     "data.tokenizer=byte",       "data.num_streams=8",
                   "train.eval_every=0",  "train.precision=fp32",      "train.global_batch=8",
                   "checkpoint.every=0",  "optim.schedule=constant",   "train.micro_batch=1",
                   "data.verify=off",     "model.num_hidden_layers=4", "data.sequence_length=48",
                   "train.log_every=1000"};
  all.insert(all.end(), model.keys.begin(), model.keys.end());
  all.insert(all.end(), more.begin(), more.end());
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", all);
}

struct RunLayout {
  int num_ranks = 1;
  Overrides keys;
  std::string name() const { return fmt::format("{} ranks {}", num_ranks, fmt::join(keys, " ")); }
};

// The generator's numbers are the same on every machine, those of a std distribution are not.
template <typename T>
T one_of(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

RunLayout any_layout(std::mt19937& random) {
  const int64_t pp = one_of<int64_t>(random, {1, 1, 2, 2, 4}),
                tp = one_of<int64_t>(random, {1, 1, 2, 4, 4});
  const int64_t cp = one_of<int64_t>(random, {1, 1, 2, 3, 4}),
                dp = one_of<int64_t>(random, {1, 1, 2, 4});
  const int64_t ep = one_of<int64_t>(random, {1, 1, 2, 4});
  const std::string schedule = one_of(random, {"gpipe", "1f1b", "interleaved", "zb"});
  const bool interleaved = pp > 1 && schedule == "interleaved";
  return {int(pp * tp * cp * dp),
          {fmt::format("parallel.pp={}", pp), fmt::format("parallel.tp={}", tp),
           fmt::format("parallel.cp={}", cp), fmt::format("parallel.ep={}", ep),
           std::string("parallel.schedule=") + schedule,
           fmt::format("parallel.virtual_stages={}", interleaved ? 2 : 1),
           fmt::format("parallel.zero={}", random() % 4),
           std::string("parallel.zero_layout=") + one_of(random, {"contiguous", "bucketed"}),
           fmt::format("parallel.bucket_bytes={}", one_of(random, {20000, 1 << 20})),
           std::string("parallel.cp_layout=") + one_of(random, {"contiguous", "zigzag"}),
           std::string("parallel.cp_exchange=") +
               one_of(random, {"all_gather", "ring", "all_to_all", "all_to_all"}),
           std::string("parallel.sequence_parallel=") + one_of(random, {"false", "true"})}};
}

bool is_allowed(const TestModel& model, const RunLayout& layout) {
  try {
    resolve_parallel(recipe_of_model(model, layout.keys), layout.num_ranks);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
    return false;
  }
}

// The next layout that the model allows, of 2 to 4 ranks or, one of three times, 8.
RunLayout next_layout(const TestModel& model, std::mt19937& random) {
  const int most = random() % 3 == 0 ? 8 : 4;
  for (;;) {
    RunLayout layout = any_layout(random);
    if (layout.num_ranks > 1 && layout.num_ranks <= most && is_allowed(model, layout))
      return layout;
  }
}

struct Pair {
  size_t model;
  RunLayout before, after;
};

void PrintTo(const Pair& pair, std::ostream* out) {
  *out << pair.before.name() << ", then " << pair.after.name();
}

// From and to ranks that share heads and sequences, two of which hold each of the 2 key heads where
// they are 4.
std::vector<std::pair<RunLayout, RunLayout>> pairs_of_tsp() {
  return {{{2, {"parallel.tsp=2"}}, {2, {"parallel.tp=2"}}},
          {{4, {"parallel.tsp=4"}}, {4, {"parallel.cp=2", "parallel.tp=2"}}},
          {{4, {"parallel.pp=2", "parallel.tp=2"}}, {4, {"parallel.tsp=4", "parallel.zero=0"}}},
          {{8, {"parallel.tsp=4", "parallel.zero=3", "parallel.zero_layout=bucketed"}},
           {4, {"parallel.tsp=2", "parallel.cp=2"}}},
          {{8, {"parallel.tsp=8", "parallel.zero=0"}}, {1, {}}}};
}

// The same list in every run.
const std::vector<Pair>& pairs() {
  static const std::vector<Pair> all = [] {
    std::mt19937 random(20250301);
    std::vector<Pair> list;
    for (size_t m = 0; m < kModels.size(); ++m) {
      recipe_of_model(kModels[m], {});  // which is allowed
      for (int i = 0; i < kPairsOfModel; ++i) {
        const RunLayout before = next_layout(kModels[m], random);
        list.push_back({m, before, next_layout(kModels[m], random)});
      }
      for (const auto& [before, after] : pairs_of_tsp())
        if (is_allowed(kModels[m], before) && is_allowed(kModels[m], after))  // not: linear mixers
          list.push_back({m, before, after});
    }
    return list;
  }();
  return all;
}

// Bytes of whole tensors by name.
using Bytes = std::map<std::string, std::vector<std::byte>>;

Bytes read_whole(const checkpoint::StepReader& reader, bool (*wanted)(Role)) {
  Bytes bytes;
  std::vector<Piece> pieces;
  for (const checkpoint::IndexTensor& t : reader.index().tensors) {
    if (!wanted(t.logical.role)) continue;
    const LogicalTensor& logical = t.logical;
    std::vector<std::byte>& all = bytes[logical.name];
    all.resize(size_t(size_of(logical.dtype) * logical.global_shape.numel()));
    pieces.push_back({logical,
                      Box::whole(logical.global_shape),
                      {all.data(), logical.dtype, Device::kCpu, logical.global_shape}});
  }
  checkpoint::LoadOptions options;
  options.allow_unexpected = {"*"};
  reader.load(pieces, options);
  return bytes;
}

// Where element i of the piece's box lies in its memory.
int64_t place_in_memory(const Piece& piece, int64_t i) {
  if (piece.strides.ndim() == 0) return i;
  int64_t at = 0;
  for (int d = piece.box.length.ndim() - 1; d >= 0; --d) {
    at += i % piece.box.length[d] * piece.strides[d];
    i /= piece.box.length[d];
  }
  return at;
}

// "" if the piece has the bytes that the whole tensor has there.
std::string difference(const Piece& piece, const Bytes& whole) {
  const auto found = whole.find(piece.logical.name);
  if (found == whole.end()) return piece.logical.name + " is not saved\n";
  const int64_t numel = piece.box.length.numel(), size = size_of(piece.logical.dtype);
  for (int64_t i = 0; i < numel; ++i) {
    const int64_t at = index_in_tensor(piece.logical.global_shape, piece.box, i);
    if (std::memcmp(piece.data.data + place_in_memory(piece, i) * size,
                    found->second.data() + at * size, size_t(size)))
      return fmt::format("{}[{}]\n", piece.logical.name, at);
  }
  return "";
}

class LayoutChanges : public testing::TestWithParam<Pair> {
 protected:
  static constexpr const char* kRoot = "run/checkpoints";

  LayoutChanges() { write_text_dataset(*files_); }

  static void write_text_dataset(FileSystem& files) {
    std::vector<std::vector<int32_t>> documents;
    for (int32_t d = 0; d < 300; ++d) {
      documents.emplace_back(size_t(5 + d * 7 % 90));
      for (size_t i = 0; i < documents.back().size(); ++i)
        documents.back()[i] = int32_t((size_t(d) * 31 + i * i * (i + 7)) % 251);
    }
    data::write_documents(files, "text", documents, 256);
  }
  static void train(FileSystem& files, const TestModel& model, const RunLayout& layout,
                    int64_t steps) {
    Overrides keys = layout.keys;
    keys.push_back(fmt::format("train.steps={}", steps));
    keys.push_back("train.run_dir=run");
    Log log([](std::string_view) {});
    start_run(recipe_of_model(model, keys), files, log, {layout.num_ranks, {}});
  }
  static checkpoint::StepReader step(FileSystem& files, int64_t number) {
    return {files, join(kRoot, checkpoint::step_name(number))};
  }
  static std::vector<double> losses(FileSystem& files) {
    std::vector<double> all;
    for (const std::string& line : split(read_text(files, "run/metrics.jsonl"), '\n')) {
      if (line.empty() || json::parse(line).contains("event")) continue;
      const json row = json::parse(line);
      EXPECT_EQ(row.at("step"), all.size() + 1);
      EXPECT_EQ(row.at("samples"), 8 * (all.size() + 1));
      all.push_back(row.at("loss"));
    }
    return all;
  }

  // The run of a model that stays on one rank.
  struct Straight {
    std::vector<double> losses;
    Bytes cursor;  // the loader's, at the end
  };
  static const Straight& straight(const TestModel& model) {
    static std::map<std::string, Straight> known;
    const auto [found, added] = known.try_emplace(model.name);
    if (!added) return found->second;
    const auto files = memory_files();
    write_text_dataset(*files);
    train(*files, model, {}, kSaved + kMore);
    found->second = {losses(*files), read_whole(step(*files, kSaved + kMore), is_loader)};
    return found->second;
  }
  static bool is_loader(Role role) { return role == Role::kLoader; }
  static bool is_state(Role role) { return role != Role::kLoader; }

  // On every rank of the layout: restores the step, and compares all that it keeps.
  void expect_restored(const TestModel& model, const RunLayout& layout) {
    const Recipe recipe = recipe_of_model(model, layout.keys);
    const Bytes saved = read_whole(step(*files_, kSaved), is_state);
    std::map<std::string, int64_t> num_compared;
    std::vector<LogicalTensor> whole;
    std::mutex mutex;
    Allocator allocator(Device::kCpu);
    comm::run_ranks(layout.num_ranks, {}, allocator, [&](comm::Group& ranks) {
      const RunPlan plan = plan_run(recipe, DType::kF32, ranks.size(), 1, ranks.rank());
      Threads threads(1);
      Trainer trainer(recipe, DType::kF32, allocator, threads, ranks, plan.step_memory);
      EXPECT_EQ(restore(step(*files_, kSaved), trainer).counters.step, kSaved);
      std::vector<Piece> pieces = trainer.model().pieces(true);
      for (Piece& piece : trainer.optimizer_pieces(true)) pieces.push_back(std::move(piece));
      const std::lock_guard lock(mutex);
      whole = trainer.whole_state();
      for (const Piece& piece : pieces) {
        EXPECT_EQ(difference(piece, saved), "") << "on rank " << ranks.rank();
        num_compared[piece.logical.name] += piece.box.length.numel();
      }
    });
    // pieces(true) holds each element once of the copies that several ranks keep.
    for (const LogicalTensor& t : whole)
      EXPECT_EQ(num_compared[t.name], t.global_shape.numel()) << t.name;
  }

  std::unique_ptr<FileSystem> files_ = memory_files();
};

TEST_P(LayoutChanges, KeepStateDataAndLosses) {
  const Pair& pair = GetParam();
  const TestModel& model = kModels[pair.model];
  train(*files_, model, pair.before, kSaved);
  expect_restored(model, pair.after);
  train(*files_, model, pair.after, kSaved + kMore);
  const Straight& want = straight(model);
  const std::vector<double> got = losses(*files_);
  ASSERT_EQ(got.size(), size_t(kSaved + kMore));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want.losses[i], 1e-4) << "step " << i;
  EXPECT_FALSE(want.cursor.empty());
  EXPECT_EQ(read_whole(step(*files_, kSaved + kMore), is_loader), want.cursor);
}

INSTANTIATE_TEST_SUITE_P(Random, LayoutChanges, testing::ValuesIn(pairs()), [](const auto& info) {
  return fmt::format("{}_{}", kModels[info.param.model].name, info.index);
});

// The list has every technique on both sides of a change.
TEST(LayoutChangesList, HasEveryTechnique) {
  using Test = bool (*)(const ParallelSpec&);
  const std::pair<const char*, Test> techniques[] = {
      {"dp", [](const ParallelSpec& p) { return p.dp > 1; }},
      {"tp", [](const ParallelSpec& p) { return p.tp > 1; }},
      {"tp 4", [](const ParallelSpec& p) { return p.tp > 2; }},
      {"sequence_parallel", [](const ParallelSpec& p) { return p.sequence_parallel && p.tp > 1; }},
      {"tsp", [](const ParallelSpec& p) { return p.tsp > 1; }},
      {"ep", [](const ParallelSpec& p) { return p.ep > 1; }},
      {"gpipe", [](const ParallelSpec& p) { return p.pp > 1 && p.schedule == Schedule::kGpipe; }},
      {"1f1b", [](const ParallelSpec& p) { return p.pp > 1 && p.schedule == Schedule::k1f1b; }},
      {"interleaved", [](const ParallelSpec& p) { return p.pp > 1 && p.virtual_stages > 1; }},
      {"zb", [](const ParallelSpec& p) { return p.pp > 1 && p.schedule == Schedule::kZeroBubble; }},
      {"all_gather",
       [](const ParallelSpec& p) { return p.cp > 1 && p.cp_exchange == CpExchange::kAllGather; }},
      {"ring",
       [](const ParallelSpec& p) { return p.cp > 1 && p.cp_exchange == CpExchange::kRing; }},
      {"all_to_all",
       [](const ParallelSpec& p) { return p.cp > 1 && p.cp_exchange == CpExchange::kAllToAll; }},
      {"zero 0", [](const ParallelSpec& p) { return p.dp * p.cp > 1 && p.zero == 0; }},
      {"zero 1", [](const ParallelSpec& p) { return p.dp * p.cp > 1 && p.zero == 1; }},
      {"zero 2", [](const ParallelSpec& p) { return p.dp * p.cp > 1 && p.zero == 2; }},
      {"zero 3", [](const ParallelSpec& p) { return p.dp * p.cp > 1 && p.zero == 3; }},
      {"bucketed", [](const ParallelSpec& p) {
         return p.dp * p.cp > 1 && p.zero > 0 && p.zero_layout == ShardLayout::kBucketed;
       }}};
  EXPECT_GE(pairs().size(), 40u);
  for (const auto& [name, test] : techniques) {
    int before = 0, after = 0;
    for (const Pair& pair : pairs()) {
      const TestModel& model = kModels[pair.model];
      const auto spec = [&](const RunLayout& layout) {
        return resolve_parallel(recipe_of_model(model, layout.keys), layout.num_ranks);
      };
      before += test(spec(pair.before));
      after += test(spec(pair.after));
    }
    EXPECT_GE(before, 2) << name;
    EXPECT_GE(after, 2) << name;
  }
}

}  // namespace
}  // namespace ashlar::train
