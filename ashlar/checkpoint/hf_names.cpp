#include "ashlar/checkpoint/hf_names.h"

#include <fmt/format.h>

#include "ashlar/core/error.h"

namespace ashlar::checkpoint {
namespace {

constexpr std::string_view kMerge[] = {"hidden_states_scale", "hidden_states_bias",
                                       "residual_scale", "residual_bias"};

// Collects both names of every tensor.  A legacy name with "{}" stands for one tensor per expert.
class Lister {
 public:
  explicit Lister(const ModelSpec& spec) : spec_(spec) {}

  void globals_before() {
    add("model.embed_tokens.weight", {spec_.vocab_size, spec_.hidden_size},
        "model.embed_tokens.weight");
    for (const char* what : {"scale", "bias"})
      add(fmt::format("model.input_hidden_states_{}", what), {spec_.hidden_size},
          fmt::format("model.layers.0.res_scale.hidden_states_{}", what));
  }

  void block(int64_t layer) {
    native_ = fmt::format("model.layers.{}.", layer);
    const std::string attention = fmt::format("model.layers.{}.", 2 * layer);
    const std::string experts = fmt::format("model.layers.{}.", 2 * layer + 1);
    const bool last = layer + 1 == spec_.num_hidden_layers;
    add_block("input_layernorm.weight", {spec_.hidden_size}, attention + "input_norm.weight");
    attention_tensors(attention + "self_attn.");
    merge("post_attention_residual_scale.", experts + "res_scale.");
    add_block("post_attention_layernorm.weight", {spec_.hidden_size},
              experts + "input_norm.weight");
    router_tensors(layer, experts + "zaya_block.router.");
    expert_tensors(experts + "zaya_block.experts.local_experts.{}.");
    merge("post_mlp_residual_scale.",
          last ? "model.res_scale." : fmt::format("model.layers.{}.res_scale.", 2 * layer + 2));
  }

  void globals_after() { add("model.norm.weight", {spec_.hidden_size}, "model.final_norm.weight"); }

  struct Entry {
    std::string native;
    Shape shape;
    std::string legacy;
    bool per_expert;
  };
  std::vector<Entry> entries;

 private:
  void add(std::string native, Shape shape, std::string legacy, bool per_expert = false) {
    entries.push_back({std::move(native), shape, std::move(legacy), per_expert});
  }
  void add_block(std::string_view native, Shape shape, std::string legacy) {
    add(fmt::format("{}{}", native_, native), shape, std::move(legacy));
  }

  void merge(std::string_view native, const std::string& legacy) {
    for (const std::string_view name : kMerge)
      add_block(fmt::format("{}{}", native, name), {spec_.hidden_size},
                fmt::format("{}{}", legacy, name));
  }

  void attention_tensors(const std::string& legacy) {
    const int64_t hidden = spec_.hidden_size, channels = spec_.conv_channels();
    const std::string qkv = legacy + "qkv.";
    add_block("self_attn.qkv_proj.q_proj.weight", {spec_.q_dim(), hidden}, qkv + "linear_q.weight");
    add_block("self_attn.qkv_proj.k_proj.weight", {spec_.kv_dim(), hidden},
              qkv + "linear_k.weight");
    add_block("self_attn.qkv_proj.v_proj_current.weight", {spec_.kv_dim() / 2, hidden},
              qkv + "val_proj1.weight");
    add_block("self_attn.qkv_proj.v_proj_delayed.weight", {spec_.kv_dim() / 2, hidden},
              qkv + "val_proj2.weight");
    add_block("self_attn.qkv_proj.conv_qk_depthwise.weight", {channels, 1, 2},
              qkv + "conv_qk.0.weight");
    add_block("self_attn.qkv_proj.conv_qk_depthwise.bias", {channels}, qkv + "conv_qk.0.bias");
    add_block("self_attn.qkv_proj.conv_qk_grouped.weight", {channels, spec_.head_dim, 2},
              qkv + "conv_qk.1.weight");
    add_block("self_attn.qkv_proj.conv_qk_grouped.bias", {channels}, qkv + "conv_qk.1.bias");
    add_block("self_attn.qk_norm.temp", {spec_.num_key_value_heads}, qkv + "temp");
    add_block("self_attn.o_proj.weight", {hidden, spec_.q_dim()}, legacy + "o_proj.weight");
  }

  void router_tensors(int64_t layer, const std::string& legacy) {
    const int64_t width = spec_.router_hidden_size, classes = spec_.num_classes();
    add_block("mlp.gate.down_proj.weight", {width, spec_.hidden_size}, legacy + "down_proj.weight");
    add_block("mlp.gate.down_proj.bias", {width}, legacy + "down_proj.bias");
    if (layer > 0)  // block 0 has no router state before it
      add_block("mlp.gate.router_states_scale", {width}, legacy + "router_states_scale");
    add_block("mlp.gate.router_mlp.norm.weight", {width}, legacy + "rmsnorm_eda.weight");
    add_block("mlp.gate.router_mlp.fc1.weight", {width, width}, legacy + "router_mlp.0.weight");
    add_block("mlp.gate.router_mlp.fc1.bias", {width}, legacy + "router_mlp.0.bias");
    add_block("mlp.gate.router_mlp.fc2.weight", {width, width}, legacy + "router_mlp.2.weight");
    add_block("mlp.gate.router_mlp.fc2.bias", {width}, legacy + "router_mlp.2.bias");
    add_block("mlp.gate.router_mlp.out_proj.weight", {classes, width},
              legacy + "router_mlp.4.weight");
    add_block("mlp.gate.balancing_biases", {classes}, legacy + "balancing_biases");
  }

  void expert_tensors(const std::string& legacy) {
    const int64_t experts = spec_.num_experts, hidden = spec_.hidden_size;
    const int64_t width = spec_.moe_intermediate_size;
    add(native_ + "mlp.experts.gate_up_proj", {experts, 2 * width, hidden},
        legacy + "linear_fc1.weight", true);
    add(native_ + "mlp.experts.down_proj", {experts, hidden, width}, legacy + "linear_fc2.weight",
        true);
  }

  const ModelSpec& spec_;
  std::string native_;  // prefix of the block
};

std::vector<Lister::Entry> entries_of(const ModelSpec& spec) {
  Lister lister(spec);
  lister.globals_before();
  for (int64_t layer = 0; layer < spec.num_hidden_layers; ++layer) lister.block(layer);
  lister.globals_after();
  return std::move(lister.entries);
}

}  // namespace

std::vector<LogicalTensor> native_tensors(const ModelSpec& spec, DType dtype) {
  std::vector<LogicalTensor> tensors;
  for (const Lister::Entry& entry : entries_of(spec)) {
    const bool buffer = entry.native.ends_with(".balancing_biases");
    const DType own = buffer && dtype != DType::kF64 ? DType::kF32 : dtype;
    tensors.push_back({entry.native, own, entry.shape, buffer ? Role::kBuffer : Role::kParameter});
  }
  return tensors;
}

std::vector<FileTensor> file_tensors(const ModelSpec& spec, HfLayout layout) {
  std::vector<FileTensor> tensors;
  const std::vector<Lister::Entry> entries = entries_of(spec);
  for (size_t n = 0; n < entries.size(); ++n) {
    const Lister::Entry& entry = entries[n];
    if (layout == HfLayout::kNative || !entry.per_expert) {
      tensors.push_back(
          {layout == HfLayout::kNative ? entry.native : entry.legacy, entry.shape, n, 0, 1});
      continue;
    }
    const Shape one(entry.shape.dims().subspan(1));
    for (int64_t expert = 0; expert < spec.num_experts; ++expert)
      tensors.push_back(
          {fmt::format(fmt::runtime(entry.legacy), expert), one, n, expert, spec.num_experts});
  }
  return tensors;
}

int64_t num_file_tensors(const ModelSpec& spec, HfLayout layout) {
  ModelSpec small = spec;  // the last of two blocks stands for all but the first
  small.num_experts = 1;
  small.num_hidden_layers = 1;
  const int64_t one = int64_t(entries_of(small).size());
  small.num_hidden_layers = 2;
  const int64_t next = int64_t(entries_of(small).size()) - one;
  const int64_t per_expert = layout == HfLayout::kLegacy ? 2 * (spec.num_experts - 1) : 0;
  return one + (spec.num_hidden_layers - 1) * next + spec.num_hidden_layers * per_expert;
}

std::string canonical_name(std::string_view name) {
  constexpr std::string_view kOther = ".smoe_block.", kOurs = ".zaya_block.";
  std::string text(name);
  if (const size_t at = text.find(kOther); at != std::string::npos)
    text.replace(at, kOther.size(), kOurs);
  return text;
}

}  // namespace ashlar::checkpoint
