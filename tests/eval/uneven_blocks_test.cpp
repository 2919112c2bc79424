// A model whose blocks differ in heads, experts, windows and RoPE, as a step: prompts in chunks
// give the logits of one pass.
#include <gtest/gtest.h>

#include "ashlar/core/rng.h"
#include "ashlar/eval/generate.h"
#include "ashlar/eval/score.h"
#include "ashlar/models/write_step.h"
#include "tests/eval/small_model.h"

namespace ashlar::eval {
namespace {

// hf_small with one more key head in block 1, other RoPE there, and more and wider experts in block
// 2.
ModelSpec uneven(ModelSpec spec) {
  auto& mixer = std::get<CcaSpec>(spec.blocks.at(1).mixer);
  mixer.num_query_heads = 6, mixer.num_key_heads = 3;
  mixer.rotary_factor = 1.0, mixer.rope_theta = 77.0;
  auto& moe = std::get<MoeSpec>(spec.blocks.at(2).feed_forward);
  moe.num_experts += 2, moe.width += 8;
  return spec;
}

struct UnevenModel {
  UnevenModel() {
    const SmallModel small;
    const ModelSpec spec = uneven(small.source.spec);
    uint64_t draws = 0;
    for (const LogicalTensor& logical : nn::logical_tensors(spec)) {
      owned.push_back(make_tensor(allocator, DType::kF32, logical.global_shape, Tag::kWeights));
      pieces.push_back({logical, Box::whole(logical.global_shape), owned.back().tensor});
      for (float& value : pieces.back().data.span<float>())
        value = float(splitmix64(draws++) % 1000) / 2500.0f - 0.2f;
    }
    models::write_model_step(*files, "root", {.spec = spec}, models::TensorsInMemory(pieces), 1,
                             log);
    source = find_model(*files, "root", log);
  }

  Log log{[](std::string_view) {}};
  Allocator allocator{Device::kCpu};
  std::vector<OwnedTensor> owned;
  std::vector<Piece> pieces;
  std::unique_ptr<FileSystem> files = memory_files();
  ModelSource source;
};

TEST(UnevenBlocks, PromptsInChunksGiveTheLogitsOfOnePass) {
  const UnevenModel model;
  const int64_t T = 40, V = model.source.spec.vocab_size;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < T; ++i) ids.push_back(int32_t(splitmix64(uint64_t(i)) % uint64_t(V)));
  Runtime whole(*model.files, model.source, DType::kF32, {.max_positions = T, .max_call = T}, 2);
  const Scores scores = score(whole.ctx, whole.allocator, whole.model, ids);
  const auto wanted = scores.logits.tensor.span<float>().last(size_t(V));
  for (const int64_t chunk : {1, 7}) {
    Runtime runtime(*model.files, model.source, DType::kF32,
                    {.max_positions = T + 1, .max_call = chunk, .cached = true}, 2);
    Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, T + 1, chunk);
    const std::span<const float> found = decoder.feed(ids);
    for (size_t v = 0; v < size_t(V); ++v)
      ASSERT_NEAR(found[v], wanted[v], 1e-4) << chunk << " at " << v;
  }
}

}  // namespace
}  // namespace ashlar::eval
