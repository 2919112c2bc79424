#include "ashlar/spec/model_spec.h"

#include "ashlar/core/fields.h"

namespace ashlar {
namespace {

constexpr int64_t kMost = INT32_MAX;

// The members of each struct, once for both directions: visit(name, value, least).
template <typename Visit>
void visit_members(CcaSpec& s, Visit visit) {
  visit("num_query_heads", s.num_query_heads, 1);
  visit("num_key_heads", s.num_key_heads, 1);
  visit("head_dim", s.head_dim, 1);
  visit("rotary_factor", s.rotary_factor, 0);
  visit("window", s.window, 0);
  visit("rope_theta", s.rope_theta, 0);
  visit("qk_norm_eps", s.qk_norm_eps, 0);
}

template <typename Visit>
void visit_members(MoeSpec& s, Visit visit) {
  visit("num_experts", s.num_experts, 1);
  visit("width", s.width, 1);
  visit("router_width", s.router_width, 1);
}

template <typename Visit>
void visit_members(ModelSpec& s, Visit visit) {
  visit("vocab_size", s.vocab_size, 1);
  visit("hidden_size", s.hidden_size, 1);
  visit("max_positions", s.max_positions, 1);
  visit("norm_eps", s.norm_eps, 0);
  visit("pad_token_id", s.pad_token_id, -1);
  visit("bos_token_id", s.bos_token_id, -1);
  visit("eos_token_id", s.eos_token_id, -1);
}

template <typename Struct>
nlohmann::ordered_json members_of(Struct s) {
  nlohmann::ordered_json json;
  visit_members(s, [&](const char* name, const auto& value, int64_t) { json[name] = value; });
  return json;
}

struct MemberReader {
  const Fields& fields;
  void operator()(const char* name, int64_t& value, int64_t least) const {
    value = fields.integer(name, least, kMost);
  }
  void operator()(const char* name, double& value, int64_t least) const {
    value = fields.number(name);
    if (!(value >= double(least)))
      fields.fail("{} is {}; expected at least {}", name, value, least);
  }
};

// The only word that a member may be today.
void require_word(const Fields& fields, const char* name, std::string_view word) {
  if (fields.text(name) != word)
    fields.fail("{} is \"{}\"; expected \"{}\"", name, fields.text(name), word);
}

BlockSpec parse_block(const Fields& fields) {
  BlockSpec block;
  const Fields mixer = fields.object("mixer"), feed_forward = fields.object("feed_forward");
  require_word(mixer, "kind", "cca");
  visit_members(block.mixer, MemberReader{mixer});
  require_word(feed_forward, "kind", "moe");
  visit_members(block.feed_forward, MemberReader{feed_forward});
  const std::string& skip = feed_forward.text("skip_output");
  if (skip != "zero" && skip != "identity")
    feed_forward.fail("skip_output is \"{}\"; expected \"zero\" or \"identity\"", skip);
  block.feed_forward.skip_output = skip == "zero" ? SkipOutput::kZero : SkipOutput::kIdentity;
  require_word(fields, "residual", "scaled");
  return block;
}

}  // namespace

std::string to_json(const ModelSpec& model) {
  nlohmann::ordered_json json = members_of(model);
  json["head_fp32"] = model.head_fp32;
  for (const BlockSpec& block : model.blocks) {
    nlohmann::ordered_json mixer{{"kind", "cca"}}, feed_forward{{"kind", "moe"}};
    mixer.update(members_of(block.mixer));
    feed_forward.update(members_of(block.feed_forward));
    feed_forward["skip_output"] =
        block.feed_forward.skip_output == SkipOutput::kZero ? "zero" : "identity";
    json["blocks"].push_back(
        {{"mixer", mixer}, {"feed_forward", feed_forward}, {"residual", "scaled"}});
  }
  return json.dump(2);
}

ModelSpec parse_model_spec(std::string_view json, const std::string& what) {
  const Json parsed = parse_json(json, what, ErrorKind::kCorrupt);
  const Fields fields(parsed, what);
  ModelSpec model;
  visit_members(model, MemberReader{fields});
  model.head_fp32 = fields.boolean("head_fp32");
  const Json& blocks = fields.array("blocks");
  if (blocks.empty()) fields.fail("blocks is empty; expected at least one block");
  for (size_t l = 0; l < blocks.size(); ++l)
    model.blocks.push_back(parse_block(Fields(blocks[l], fmt::format("{}: blocks[{}]", what, l))));
  return model;
}

}  // namespace ashlar
