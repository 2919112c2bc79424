// Every rule of a recipe.  A rule returns its message, or "" where it holds; the message names the
// keys, their values and the nearest legal values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ashlar/core/error.h"
#include "ashlar/spec/keys.h"
#include "ashlar/spec/parallel_rules.h"

namespace ashlar {
namespace {

// "4 or 8": the multiples of `unit` next to `value`, none below one unit.
std::string multiples_near(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
}

std::string head_rules(const ModelKeys& m, const std::string& s) {
  if (m.num_attention_heads % m.num_key_value_heads != 0)
    return fmt::format(
        "{}num_attention_heads is {} but {}num_key_value_heads is {}; choose a "
        "multiple of {}: {}",
        s, m.num_attention_heads, s, m.num_key_value_heads, m.num_key_value_heads,
        multiples_near(m.num_attention_heads, m.num_key_value_heads));
  if (m.has_mixer(CcaSpec::kKind) && m.kv_dim() % 2 != 0)
    return fmt::format(
        "{}head_dim is {} but {}num_key_value_heads is {}: half of their product is "
        "delayed by one token, so it must be even; choose head_dim {}",
        s, m.head_dim, s, m.num_key_value_heads, multiples_near(m.head_dim, 2));
  return "";
}

std::string rotary_rule(const ModelKeys& m, const std::string& s) {
  const int64_t rotated = m.rotary_dim();
  if (rotated >= 2 && rotated % 2 == 0) return "";
  if (m.head_dim < 2)
    return fmt::format(
        "{}head_dim is {}, but RoPE rotates at least 2 channels of a head; choose "
        "at least 2",
        s, m.head_dim);
  // Only factors that round to the wanted number are offered.
  std::string choices;
  for (int64_t even : {rotated / 2 * 2, rotated / 2 * 2 + 2}) {
    ModelKeys other = m;
    other.partial_rotary_factor = static_cast<double>(even) / static_cast<double>(m.head_dim);
    if (even >= 2 && even <= m.head_dim && other.rotary_dim() == even)
      choices += fmt::format("{}{}", choices.empty() ? "" : " or ", other.partial_rotary_factor);
  }
  return fmt::format(
      "{}partial_rotary_factor is {} but {}head_dim is {}, which rotates {} channels; "
      "choose a factor that rotates an even number of at least 2: {}",
      s, m.partial_rotary_factor, s, m.head_dim, rotated, choices);
}

std::string layer_rules(const ModelKeys& m, const std::string& s) {
  if (static_cast<int64_t>(m.layer_types.size()) != m.num_hidden_layers)
    return fmt::format(
        "{}layer_types has {} entries but {}num_hidden_layers is {}; give one per "
        "block, so many that they repeat, or one name for all",
        s, m.layer_types.size(), s, m.num_hidden_layers);
  for (const LayerType& type : m.layer_types)
    if (type.sliding && m.sliding_window == 0)
      return fmt::format(
          "{}sliding_window is 0 but {}layer_types has {} blocks; choose "
          "at least 1, for example 4097 (the token itself counts)",
          s, s, name_of(type));
  return "";
}

std::string rope_scaling_rule(const ModelKeys& m, const std::string& s) {
  if (!m.has_mixer(AttentionSpec::kKind)) return "";
  const char* type = kRopeTypeNames[size_t(m.rope_scaling.type)];
  const bool has_original = RopeScalingSpec::has_original_positions(m.rope_scaling.type);
  if (has_original != (m.rope_scaling.original_positions > 0))
    return fmt::format(
        "{}rope_original_positions is {} but {}rope_type is {}; choose {}", s,
        m.rope_scaling.original_positions, s, type,
        has_original ? "at least 1: those of the first training" : "0, or another type");
  if (m.rope_scaling.type == RopeType::kLlama3 &&
      m.rope_scaling.high_freq_factor <= m.rope_scaling.low_freq_factor)
    return fmt::format(
        "{}rope_high_freq_factor is {} but {}rope_low_freq_factor is {}; choose more, "
        "for example 4 and 1",
        s, m.rope_scaling.high_freq_factor, s, m.rope_scaling.low_freq_factor);
  if (m.rope_scaling.type == RopeType::kYarn && m.rope_scaling.beta_fast < m.rope_scaling.beta_slow)
    return fmt::format(
        "{}rope_beta_fast is {} but {}rope_beta_slow is {}; choose at least as much, for example "
        "32 and 1",
        s, m.rope_scaling.beta_fast, s, m.rope_scaling.beta_slow);
  if (m.rope_scaling.type == RopeType::kDynamic && m.rotary_dim() < 4)
    return fmt::format(
        "{}rope_type is dynamic but RoPE rotates {} channels of a head, whose one frequency no "
        "base changes; choose at least 4, or another type",
        s, m.rotary_dim());
  return "";
}

// Sizes that only some kinds of block have.
std::string size_rule(const ModelKeys& m, const std::string& s) {
  const bool moe = m.has_feed_forward(MoeSpec::kKind), linear = m.has_mixer(LinearSpec::kKind);
  const struct {
    bool used;
    const char* name;
    int64_t value;
    std::string_view kind;
  } sizes[] = {
      {moe, "num_experts", m.num_experts, MoeSpec::kKind},
      {moe, "moe_intermediate_size", m.moe_intermediate_size, MoeSpec::kKind},
      {moe && m.router == RouterKind::kMlp, "router_hidden_size", m.router_hidden_size,
       "moe and router mlp"},
      {m.has_feed_forward(MlpSpec::kKind), "intermediate_size", m.intermediate_size,
       MlpSpec::kKind},
      {linear, "linear_num_key_heads", m.linear.num_key_heads, LinearSpec::kKind},
      {linear, "linear_num_value_heads", m.linear.num_value_heads, LinearSpec::kKind},
      {linear, "linear_key_head_dim", m.linear.key_head_dim, LinearSpec::kKind},
      {linear, "linear_value_head_dim", m.linear.value_head_dim, LinearSpec::kKind},
  };
  for (const auto& size : sizes)
    if (size.used && size.value == 0)
      return fmt::format("{}{} is 0 but {}layer_types has blocks with {}; choose at least 1", s,
                         size.name, s, size.kind);
  return "";
}

// Keys that a kind of router does not use must keep their defaults, since they would change
// nothing.
std::string router_rule(const ModelKeys& m, const std::string& s) {
  if (!m.has_feed_forward(MoeSpec::kKind)) return "";
  const int64_t k = m.linear_router.num_chosen;
  if (m.router == RouterKind::kMlp) {
    if (k != 1)
      return fmt::format(
          "{}num_experts_per_tok is {} but {}router is mlp, which chooses one expert; choose 1, or "
          "router linear",
          s, k, s);
    const std::pair<bool, std::string> others[] = {
        {m.linear_router.expert_bias, "router_expert_bias is true"},
        {m.linear_router.scale != 1.0,
         fmt::format("routed_scaling_factor is {}", m.linear_router.scale)},
        {!m.linear_router.renormalize, "norm_topk_prob is false"},
        {!m.linear_router.pre_softmax, "router_pre_softmax is false"},
    };
    for (const auto& [given, what] : others)
      if (given)
        return fmt::format(
            "{}{} but {}router is mlp, which knows nothing of it; leave it out, or choose router "
            "linear",
            s, what, s);
  }
  if (m.router == RouterKind::kLinear && m.skip_output != SkipOutput::kZero)
    return fmt::format(
        "moe.skip_output is identity but {}router is linear, which skips no token; leave it out, "
        "or "
        "choose router mlp",
        s);
  if (k > m.num_experts)
    return fmt::format("{}num_experts_per_tok is {} but {}num_experts is {}; choose 1 to {}", s, k,
                       s, m.num_experts, m.num_experts);
  if (!m.linear_router.pre_softmax && !m.linear_router.renormalize)
    return fmt::format(
        "{}norm_topk_prob is false but {}router_pre_softmax is false: a softmax over the chosen "
        "experts adds up to 1; choose norm_topk_prob true",
        s, s);
  if (m.shared_expert_gate && m.shared_expert_intermediate_size == 0)
    return fmt::format(
        "{}shared_expert_gate is true but {}shared_expert_intermediate_size is 0; choose at least "
        "1, or no gate",
        s, s);
  return "";
}

std::string linear_rule(const ModelKeys& m, const std::string& s) {
  if (!m.has_mixer(LinearSpec::kKind)) return "";
  if (m.linear.num_value_heads % m.linear.num_key_heads != 0)
    return fmt::format(
        "{}linear_num_value_heads is {} but {}linear_num_key_heads is {}; choose a multiple of {}: "
        "{}",
        s, m.linear.num_value_heads, s, m.linear.num_key_heads, m.linear.num_key_heads,
        multiples_near(m.linear.num_value_heads, m.linear.num_key_heads));
  if (m.linear.conv_taps == 1)
    return fmt::format(
        "{}linear_conv_kernel_dim is 1, which is no convolution; choose 0, or 2 to 8 taps", s);
  const bool fixed =
      m.linear.kind == LinearKind::kLightning || m.linear.kind == LinearKind::kGatedDelta;
  if (fixed && m.linear.map != LinearMap::kIdentity)
    return fmt::format(
        "{}linear_feature_map is {} but {}linear_recurrence is {}, which has its own; leave it out",
        s, kLinearMapNames[size_t(m.linear.map)], s, kLinearKindNames[size_t(m.linear.kind)]);
  if (m.linear.kind == LinearKind::kLightning && m.linear.conv_taps > 0)
    return fmt::format(
        "{}linear_conv_kernel_dim is {} but {}linear_recurrence is lightning, which goes through "
        "SiLU without a convolution; choose 0",
        s, m.linear.conv_taps, s);
  if (!m.linear.causal && m.linear.kind != LinearKind::kBasic)
    return fmt::format(
        "{}linear_causal is false but {}linear_recurrence is {}, whose states change from token to "
        "token; choose basic, or linear_causal true",
        s, s, kLinearKindNames[size_t(m.linear.kind)]);
  return "";
}

std::string token_rule(const ModelKeys& m, const std::string& s) {
  struct Token {
    const char* name;
    int64_t id;
  };
  std::vector<Token> tokens{{"pad", m.pad_token_id}, {"bos", m.bos_token_id}};
  for (const int64_t id : m.eos_token_ids) tokens.push_back({"eos", id});
  for (const Token& token : tokens)
    if (token.id >= m.vocab_size)
      return fmt::format(
          "{}{}_token_id is {} but {}vocab_size is {}; choose 0 to {}, or -1 for none", s,
          token.name, token.id, s, m.vocab_size, m.vocab_size - 1);
  return "";
}

std::string model_problem(const ModelKeys& model, const std::string& section) {
  Recipe holder;
  holder.model = model;
  // `section` stands for "model." in the names that are shown: a spec need not come from a recipe.
  for (const Key& key : recipe_keys()) {
    if (!key.name.starts_with("model.")) continue;
    std::string problem = range_problem(key, key.get(holder), section + key.name.substr(6));
    if (!problem.empty()) return problem;
  }
  for (const auto& rule : {head_rules, rotary_rule, layer_rules, size_rule, linear_rule,
                           router_rule, rope_scaling_rule, token_rule}) {
    std::string problem = rule(model, section);
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string range_rules(const Recipe& recipe) {
  for (const Key& key : recipe_keys()) {
    std::string problem = range_problem(key, key.get(recipe), key.name);
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string blend_rules(const Recipe& recipe) {
  const struct {
    const char* name;
    const std::vector<BlendEntry>& blend;
  } lists[] = {{"data.train", recipe.data.train}, {"data.validation", recipe.data.validation}};
  for (const auto& list : lists) {
    for (const BlendEntry& entry : list.blend) {
      if (entry.path.empty())
        return fmt::format(
            "{} has an entry without a path; expected the prefix of a prepared dataset", list.name);
      if (!std::isfinite(entry.weight) || entry.weight <= 0)
        return fmt::format("{} gives {} the weight {}; expected a number above 0", list.name,
                           entry.path, entry.weight);
    }
  }
  return "";
}

std::string stream_rule(int64_t streams, int64_t batch) {
  if (streams == 0 || batch % streams == 0) return "";
  int64_t below = std::min(streams, batch), above = below;
  while (batch % below != 0) --below;
  while (batch % above != 0) ++above;
  const std::string nearest =
      below == above ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
  return fmt::format(
      "data.num_streams is {} but train.global_batch is {}; choose a divisor of the batch: {}",
      streams, batch, nearest);
}

std::string batch_rules(const Recipe& recipe) {
  const TrainSpec& train = recipe.train;
  if (train.global_batch % train.micro_batch != 0)
    return fmt::format(
        "train.global_batch is {} but train.micro_batch is {}; choose a multiple of "
        "{}: {}",
        train.global_batch, train.micro_batch, train.micro_batch,
        multiples_near(train.global_batch, train.micro_batch));
  const double tokens = static_cast<double>(train.steps) * static_cast<double>(train.global_batch) *
                        static_cast<double>(recipe.data.sequence_length);
  if (tokens > static_cast<double>(std::numeric_limits<int64_t>::max()) / 2)
    return fmt::format(
        "train.steps is {}, which makes {:.3g} tokens of the run; expected fewer than "
        "4.6e18",
        train.steps, tokens);
  return stream_rule(recipe.data.num_streams, train.global_batch);
}

// Where the precision is auto, the run refuses a bf16 stream if its machine then takes fp32.
std::string residual_rule(const Recipe& recipe) {
  const TrainSpec& train = recipe.train;
  const bool wide = train.precision == Precision::kF32 || train.precision == Precision::kF64;
  if (train.stream != StreamType::kBF16 || !wide) return "";
  return fmt::format(
      "train.stream is bf16 but train.precision is {}; choose precision bf16, or stream fp32",
      kPrecisionNames[size_t(train.precision)]);
}

std::string sequence_rule(const Recipe& recipe) {
  const int64_t length = recipe.data.sequence_length, limit = recipe.model.max_position_embeddings;
  if (length <= limit) return "";
  return fmt::format(
      "data.sequence_length is {} but model.max_position_embeddings is {}; choose at "
      "most {} or raise the model's limit",
      length, limit, limit);
}

std::string rate_rule(const Recipe& recipe) {
  const OptimSpec& optim = recipe.optim;
  if (optim.lr_min <= optim.lr) return "";
  return fmt::format("optim.lr_min is {} but optim.lr is {}; choose at most {}", optim.lr_min,
                     optim.lr, optim.lr);
}

std::string retention_rule(const Recipe& recipe) {
  const CheckpointSpec& checkpoint = recipe.checkpoint;
  if (checkpoint.keep_every == 0) return "";
  if (checkpoint.every <= 0)
    return fmt::format(
        "checkpoint.keep_every is {} but checkpoint.every is {}, which saves {}; choose "
        "keep_every 0 or "
        "give checkpoint.every",
        checkpoint.keep_every, checkpoint.every,
        checkpoint.every == 0 ? "only at the end" : "never");
  if (checkpoint.keep_every % checkpoint.every == 0) return "";
  return fmt::format(
      "checkpoint.keep_every is {} but checkpoint.every is {}; choose a multiple of "
      "{}: {}",
      checkpoint.keep_every, checkpoint.every, checkpoint.every,
      multiples_near(checkpoint.keep_every, checkpoint.every));
}

std::string directory_rule(const Recipe& recipe) {
  return recipe.train.run_dir.empty() ? "train.run_dir is \"\"; expected a directory" : "";
}

std::string tune_rule(const Recipe& recipe) {
  const TuneSpec& tune = recipe.tune;
  if (!tune.has_adapters() && tune.lora != LoraSpec{})
    return "keys of [lora] are stated but lora.rank is 0, which trains all weights; choose a rank, "
           "or leave them out";
  if (tune.trains_all()) return "";
  const std::string key = tune.has_adapters() ? fmt::format("lora.rank is {}", tune.lora.rank)
                                              : std::string("train.freeze names tensors");
  if (tune.has_adapters() && !tune.freeze.empty())
    return key +
           " and train.freeze names tensors, but beside adapters every tensor is frozen that "
           "lora.modules_to_save does not name; leave out train.freeze";
  if (tune.has_adapters() && tune.lora.targets.empty())
    return key +
           " but lora.targets is []; name layers that get adapters: attention, mlp, "
           "experts";
  if (recipe.init.model.empty())
    return key + " but init.model is \"\"; name the model whose tensors stay as they are";
  return "";
}

}  // namespace

int64_t default_num_streams(int64_t global_batch) {
  constexpr int64_t kUsual = 1024;
  return global_batch % kUsual == 0 ? kUsual : global_batch;
}

void validate(const ModelKeys& spec, const std::string& section) {
  const std::string problem = model_problem(spec, section);
  ASHLAR_REQUIRE(problem.empty(), kConfig, "{}", problem);
}

void validate(const Recipe& recipe) {
  // Ranges first, and one problem at a time: later rules divide by sizes and multiply them.
  std::string problem = range_rules(recipe);
  if (problem.empty()) problem = model_problem(recipe.model, "model.");
  for (const auto& rule : {blend_rules, batch_rules, residual_rule, sequence_rule, rate_rule,
                           retention_rule, directory_rule, parallel_problem, tune_rule})
    if (problem.empty()) problem = rule(recipe);
  ASHLAR_REQUIRE(problem.empty(), kConfig, "{}{}{}", recipe.source,
                 recipe.source.empty() ? "" : ": ", problem);
}

}  // namespace ashlar
