// Native name -> legacy name: a table of what a name goes on with after "model.layers.N.", and
// whose place in the legacy numbering it takes.
#include "ashlar/checkpoint/hf_names.h"

#include <fmt/format.h>

#include <charconv>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

// Block l is the legacy layers 2l, with attention, and 2l + 1, with experts; its last merge stands
// at the top of the next block's attention, or in the model after the last.
enum class Home : uint8_t { kAttention, kExperts, kEachExpert, kNextAttention };

struct Rule {
  std::string_view native, legacy;  // of prefixes; what follows is the same
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

LegacyName legacy_name(const std::string& native, int64_t num_blocks) {
  constexpr std::string_view kBlocks = "model.layers.";
  if (native.starts_with(kBlocks)) {
    int64_t block = 0;
    const char* begin = native.data() + kBlocks.size();
    const char* end = native.data() + native.size();
    const char* dot = std::from_chars(begin, end, block).ptr;
    return in_block(block, block + 1 == num_blocks, {dot + 1, end});
  }
  for (const Rule& rule : kOutsideBlocks)
    if (native.starts_with(rule.native)) return {with(rule, native)};
  return {native};
}

// The names of the matrices of one expert that lie one after another in the native tensor, if it is
// a stack of experts.
std::vector<std::string_view> parts_of_expert(std::string_view native, const HfExpertNames& names) {
  if (native.ends_with(".mlp.experts.gate_up_proj")) return {names.gate, names.up};
  if (native.ends_with(".mlp.experts.down_proj")) return {names.down};
  return {};
}

// Adds the tensors that files have for native tensor n.
void add_with_expert_names(const LogicalTensor& native, size_t n, const HfExpertNames& names,
                           std::vector<FileTensor>& tensors) {
  constexpr std::string_view kRouter = "mlp.gate.weight";
  const Shape& shape = native.global_shape;
  const auto parts = parts_of_expert(native.name, names);
  const auto count = int64_t(parts.size());
  const std::string block = native.name.substr(0, native.name.find("mlp."));
  if (native.name.ends_with(kRouter))
    return tensors.push_back({block + std::string(names.router), shape, n});
  if (parts.empty()) return tensors.push_back({native.name, shape, n});
  const Shape one{shape[1] / count, shape[2]};
  for (int64_t i = 0; i < shape[0] * count; ++i)
    tensors.push_back({block + fmt::format(fmt::runtime(parts[size_t(i % count)]), i / count), one,
                       n, i, shape[0] * count});
}

}  // namespace

std::vector<FileTensor> file_tensors(std::span<const LogicalTensor> natives, int64_t num_blocks,
                                     HfLayout layout, const HfExpertNames* experts) {
  std::vector<FileTensor> tensors;
  for (size_t n = 0; n < natives.size(); ++n) {
    const auto& [native, dtype, shape, role] = natives[n];
    if (experts) {
      add_with_expert_names(natives[n], n, *experts, tensors);
      continue;
    }
    if (layout == HfLayout::kNative) {
      tensors.push_back({native, shape, n, 0, 1});
      continue;
    }
    const LegacyName legacy = legacy_name(native, num_blocks);
    if (!legacy.each_expert) {
      tensors.push_back({legacy.text, shape, n, 0, 1});
      continue;
    }
    const Shape one(shape.dims().subspan(1));
    for (int64_t expert = 0; expert < shape[0]; ++expert)
      tensors.push_back({fmt::format(fmt::runtime(legacy.text), expert), one, n, expert, shape[0]});
  }
  return tensors;
}

int64_t num_file_tensors(TensorsOf tensors_of, const ModelSpec& spec, HfLayout layout,
                         const HfExpertNames* experts) {
  // A block has as many tensors as any other of its kind, the first excepted, and as many with one
  // expert as with many.
  ModelSpec small = spec;
  const auto one_expert = [](BlockSpec block) {
    if (auto* moe = std::get_if<MoeSpec>(&block.feed_forward)) moe->num_experts = 1;
    return block;
  };
  const auto count = [&](std::vector<BlockSpec> blocks) {
    small.blocks = std::move(blocks);
    return int64_t(tensors_of(small, DType::kF32).size());
  };
  const BlockSpec first = one_expert(spec.blocks[0]);
  int64_t total = count({first}), next = 0;
  const BlockSpec* counted = nullptr;  // the block that `next` is of
  for (size_t l = 0; l < spec.blocks.size(); ++l) {
    const BlockSpec& block = spec.blocks[l];
    const auto* moe = std::get_if<MoeSpec>(&block.feed_forward);
    if (moe && layout == HfLayout::kLegacy) total += 2 * (moe->num_experts - 1);
    if (moe && experts) total += 3 * moe->num_experts - 2;  // of two stacks
    if (l == 0) continue;
    if (!counted || *counted != block) {
      counted = &block;
      next = count({first, one_expert(block)}) - count({first});
    }
    total += next;
  }
  return total;
}

std::string canonical_name(std::string_view name) {
  constexpr std::string_view kOther = ".smoe_block.", kOurs = ".zaya_block.";
  std::string text(name);
  if (const size_t at = text.find(kOther); at != std::string::npos)
    text.replace(at, kOther.size(), kOurs);
  return text;
}

}  // namespace ashlar::checkpoint
