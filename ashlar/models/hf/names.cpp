// How it works.  A table maps native names to legacy names: it has the part after "model.layers.N."
// and the sub-layer of the legacy numbering.  Other families have a table for mixers (HfNames), and
// names of experts.  Lister goes through the native tensors and adds those of the files; a tensor
// made of several is added at the first of them.
#include "ashlar/models/hf/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "ashlar/core/error.h"
#include "ashlar/nn/weights.h"

namespace ashlar::models {
namespace {

// Block l is the legacy layers 2l, with attention, and 2l + 1, with experts; its last merge is
// at the top of the next block's attention, or in the model after the last.
enum class Home : uint8_t { kAttention, kExperts, kEachExpert, kNextAttention };

struct Rule {
  std::string_view native, legacy;  // prefixes; the rest of the name is the same
  Home home;
};
constexpr Rule kRules[] = {
    {"input_layernorm.", "input_norm.", Home::kAttention},
    {"self_attn.qkv_proj.q_proj.", "self_attn.qkv.linear_q.", Home::kAttention},
    {"self_attn.qkv_proj.k_proj.", "self_attn.qkv.linear_k.", Home::kAttention},
    {"self_attn.qkv_proj.v_proj_current.", "self_attn.qkv.val_proj1.", Home::kAttention},
    {"self_attn.qkv_proj.v_proj_delayed.", "self_attn.qkv.val_proj2.", Home::kAttention},
    {"self_attn.qkv_proj.conv_qk_depthwise.", "self_attn.qkv.conv_qk.0.", Home::kAttention},
    {"self_attn.qkv_proj.conv_qk_grouped.", "self_attn.qkv.conv_qk.1.", Home::kAttention},
    {"self_attn.qk_norm.temp", "self_attn.qkv.temp", Home::kAttention},
    {"self_attn.o_proj.", "self_attn.o_proj.", Home::kAttention},
    {"post_attention_residual_scale.", "res_scale.", Home::kExperts},
    {"post_attention_layernorm.", "input_norm.", Home::kExperts},
    {"mlp.gate.router_mlp.norm.", "zaya_block.router.rmsnorm_eda.", Home::kExperts},
    {"mlp.gate.router_mlp.fc1.", "zaya_block.router.router_mlp.0.", Home::kExperts},
    {"mlp.gate.router_mlp.fc2.", "zaya_block.router.router_mlp.2.", Home::kExperts},
    {"mlp.gate.router_mlp.out_proj.", "zaya_block.router.router_mlp.4.", Home::kExperts},
    {"mlp.gate.", "zaya_block.router.", Home::kExperts},
    {"mlp.experts.gate_up_proj", "zaya_block.experts.local_experts.{}.linear_fc1.weight",
     Home::kEachExpert},
    {"mlp.experts.down_proj", "zaya_block.experts.local_experts.{}.linear_fc2.weight",
     Home::kEachExpert},
    {"post_mlp_residual_scale.", "res_scale.", Home::kNextAttention},
};
constexpr Rule kOutsideBlocks[] = {
    {"model.input_", "model.layers.0.res_scale.", Home::kAttention},
    {"model.norm.", "model.final_norm.", Home::kAttention},
};

struct LegacyName {
  std::string text;  // with "{}" for the expert's number where each has a tensor of its own
  bool each_expert = false;
};

std::string with(const Rule& rule, std::string_view native) {
  return fmt::format("{}{}", rule.legacy, native.substr(rule.native.size()));
}

LegacyName in_block(int64_t block, bool last, std::string_view rest) {
  for (const Rule& rule : kRules) {
    if (!rest.starts_with(rule.native)) continue;
    const std::string tail = with(rule, rest);
    if (rule.home == Home::kNextAttention && last) return {"model." + tail};
    const int64_t sub_layer = rule.home == Home::kAttention       ? 2 * block
                              : rule.home == Home::kNextAttention ? 2 * block + 2
                                                                  : 2 * block + 1;
    return {fmt::format("model.layers.{}.{}", sub_layer, tail), rule.home == Home::kEachExpert};
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("tensor {} has no name in the legacy layout; expected a ZAYA1 model, or "
                          "the native layout",
                          rest));
}

// The number of the block whose tensor is named, and the rest of the name.
struct InBlock {
  int64_t block;
  std::string_view rest;
};
std::optional<InBlock> block_of(std::string_view native) {
  constexpr std::string_view kBlocks = "model.layers.";
  if (!native.starts_with(kBlocks)) return std::nullopt;
  int64_t block = 0;
  const char* end = native.data() + native.size();
  const char* dot = std::from_chars(native.data() + kBlocks.size(), end, block).ptr;
  return InBlock{block, {dot + 1, end}};
}

LegacyName legacy_name(const std::string& native, int64_t num_blocks) {
  if (const auto at = block_of(native))
    return in_block(at->block, at->block + 1 == num_blocks, at->rest);
  for (const Rule& rule : kOutsideBlocks)
    if (native.starts_with(rule.native)) return {with(rule, native)};
  return {native};
}

// A tensor that is part `part` of native tensor n.
FileTensor part_of(std::string name, const Shape& shape, size_t n, int64_t part = 0,
                   int64_t num_parts = 1) {
  return {std::move(name), shape, {{n, part, num_parts, 0, shape[0], shape[0]}}};
}

// The names of the matrices of one expert that lie one after another in the native tensor, if it is
// a stack of experts.
std::vector<std::string_view> parts_of_expert(std::string_view rest, const HfExpertNames& names) {
  if (rest == "mlp.experts.gate_up_proj") return {names.gate, names.up};
  if (rest == "mlp.experts.down_proj") return {names.down};
  return {};
}

std::string_view kind_of(const MixerSpec& mixer) {
  return std::visit([](const auto& spec) { return std::string_view(spec.kKind); }, mixer);
}

int64_t heads_of_rows(const MixerSpec& mixer) {
  if (const auto* linear = std::get_if<LinearSpec>(&mixer)) return linear->num_key_heads;
  return std::get<AttentionSpec>(mixer).num_query_heads;
}

// The list of a family's files, native tensor by native tensor.
class Lister {
 public:
  Lister(std::span<const LogicalTensor> natives, std::span<const BlockSpec> blocks,
         const HfNames& names)
      : natives_(natives), blocks_(blocks), names_(names) {
    if (names.mixers.empty()) return;
    for (size_t n = 0; n < natives.size(); ++n) by_name_[natives[n].name] = n;
  }

  void add(size_t n, std::vector<FileTensor>& tensors) const {
    const LogicalTensor& native = natives_[n];
    const auto at = block_of(native.name);
    if (at && add_of_mixer(n, *at, tensors)) return;
    if (at && names_.experts && add_of_mixture(n, *at, tensors)) return;
    tensors.push_back(part_of(native.name, native.global_shape, n));
  }

 private:
  std::string prefix(size_t n, const InBlock& at) const {  // "model.layers.N."
    const std::string& native = natives_[n].name;
    return native.substr(0, native.size() - at.rest.size());
  }

  // Whether the family's files have another tensor for it, which its first native tensor adds.
  bool add_of_mixer(size_t n, const InBlock& at, std::vector<FileTensor>& tensors) const {
    const MixerSpec& mixer = blocks_[size_t(at.block)].mixer;
    for (const HfMixerTensor& rule : names_.mixers) {
      if (rule.mixer != kind_of(mixer) ||
          std::find(rule.natives.begin(), rule.natives.end(), at.rest) == rule.natives.end())
        continue;
      if (at.rest == rule.natives[0]) tensors.push_back(of_mixer(n, at, mixer, rule));
      return true;
    }
    return false;
  }

  FileTensor of_mixer(size_t n, const InBlock& at, const MixerSpec& mixer,
                      const HfMixerTensor& rule) const {
    const std::string block = prefix(n, at), name = block + std::string(rule.name);
    Shape shape = natives_[n].global_shape;
    if (rule.natives[1].empty()) return part_of(name, shape, n);
    const int64_t heads = heads_of_rows(mixer);
    std::vector<FileRows> all;
    int64_t stride = 0;
    for (const std::string_view part : rule.natives) {
      if (part.empty()) break;
      const size_t native = by_name_.at(block + std::string(part));
      const int64_t each = natives_[native].global_shape[0] / heads;
      all.push_back({.native = native, .begin = stride, .each = each});
      stride += each;
    }
    for (FileRows& rows : all) rows.stride = stride;
    shape[0] = heads * stride;
    return {name, shape, all};
  }

  // The same for routers and experts.
  bool add_of_mixture(size_t n, const InBlock& at, std::vector<FileTensor>& tensors) const {
    const Shape& shape = natives_[n].global_shape;
    const std::string block = prefix(n, at);
    if (at.rest == "mlp.gate.weight") {
      tensors.push_back(part_of(block + std::string(names_.experts->router), shape, n));
      return true;
    }
    const auto parts = parts_of_expert(at.rest, *names_.experts);
    const auto count = int64_t(parts.size());
    if (parts.empty()) return false;
    const Shape one{shape[1] / count, shape[2]};
    for (int64_t i = 0; i < shape[0] * count; ++i) {
      const std::string_view name = parts[size_t(i % count)];
      tensors.push_back(
          part_of(block + fmt::format(fmt::runtime(name), i / count), one, n, i, shape[0] * count));
    }
    return true;
  }

  std::span<const LogicalTensor> natives_;
  std::span<const BlockSpec> blocks_;
  const HfNames& names_;
  std::unordered_map<std::string, size_t> by_name_;
};

void add_legacy(const LogicalTensor& native, size_t n, int64_t num_blocks,
                std::vector<FileTensor>& tensors) {
  const Shape& shape = native.global_shape;
  const LegacyName legacy = legacy_name(native.name, num_blocks);
  if (!legacy.each_expert) return tensors.push_back(part_of(legacy.text, shape, n));
  const Shape one(shape.dims().subspan(1));
  for (int64_t expert = 0; expert < shape[0]; ++expert)
    tensors.push_back(
        part_of(fmt::format(fmt::runtime(legacy.text), expert), one, n, expert, shape[0]));
}

}  // namespace

std::vector<FileTensor> file_tensors(std::span<const LogicalTensor> natives,
                                     std::span<const BlockSpec> blocks, HfLayout layout,
                                     const HfNames& names) {
  std::vector<FileTensor> tensors;
  const Lister lister(natives, blocks, names);
  const bool legacy = layout == HfLayout::kLegacy && names.native();
  for (size_t n = 0; n < natives.size(); ++n)
    legacy ? add_legacy(natives[n], n, int64_t(blocks.size()), tensors) : lister.add(n, tensors);
  return tensors;
}

int64_t num_file_tensors(const ModelSpec& spec, HfLayout layout, const HfNames& names) {
  // Equal blocks have equally many tensors, except the first, and each expert adds a fixed number.
  ModelSpec small = spec;
  const auto one_expert = [](BlockSpec block) {
    if (auto* moe = std::get_if<MoeSpec>(&block.feed_forward)) moe->num_experts = 1;
    return block;
  };
  const auto count = [&](std::vector<BlockSpec> blocks) {
    small.blocks = std::move(blocks);
    const auto natives = nn::logical_tensors(small, DType::kF32);
    return int64_t(file_tensors(natives, small.blocks, layout, names).size());
  };
  const int64_t of_expert = names.experts ? 3 : layout == HfLayout::kLegacy ? 2 : 0;
  const BlockSpec first = one_expert(spec.blocks[0]);
  int64_t total = count({first}), next = 0;
  const BlockSpec* counted = nullptr;  // the block that `next` is of
  for (size_t l = 0; l < spec.blocks.size(); ++l) {
    const BlockSpec& block = spec.blocks[l];
    if (const auto* moe = std::get_if<MoeSpec>(&block.feed_forward))
      total += of_expert * (moe->num_experts - 1);
    if (l == 0) continue;
    if (!counted || *counted != block) {
      counted = &block;
      next = count({first, one_expert(block)}) - count({first});
    }
    total += next;
  }
  return total;
}

std::vector<FileBuffer> file_buffers(std::span<const BlockSpec> blocks, const HfNames& names) {
  std::vector<FileBuffer> buffers;
  for (size_t l = 0; l < blocks.size(); ++l)
    if (const auto* linear = std::get_if<LinearSpec>(&blocks[l].mixer))
      for (const HfBuffer& buffer : names.buffers)
        buffers.push_back({fmt::format("model.layers.{}.{}", l, buffer.name), linear, &buffer});
  return buffers;
}

std::string canonical_name(std::string_view name) {
  constexpr std::string_view kOther = ".smoe_block.", kOurs = ".zaya_block.";
  std::string text(name);
  if (const size_t at = text.find(kOther); at != std::string::npos)
    text.replace(at, kOther.size(), kOurs);
  return text;
}

}  // namespace ashlar::models
