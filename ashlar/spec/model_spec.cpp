#include "ashlar/spec/model_spec.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ashlar/core/fields.h"

namespace ashlar {
namespace {

constexpr int64_t kMost = INT32_MAX;

// The members of the model itself: visit(name, value, least).
template <typename Model, typename Visit>
void visit_members(Model& s, Visit visit) {
  visit("vocab_size", s.vocab_size, 1);
  visit("hidden_size", s.hidden_size, 1);
  visit("max_positions", s.max_positions, 1);
  visit("norm_eps", s.norm_eps, 0);
  visit("pad_token_id", s.pad_token_id, -1);
  visit("bos_token_id", s.bos_token_id, -1);
}

struct MemberWriter {
  nlohmann::ordered_json& json;
  template <typename Number>
  void operator()(const char* name, const Number& value, int) const {
    json[name] = value;
  }
  template <typename Enum, size_t kCount>
  void operator()(const char* name, Enum value, const std::array<const char*, kCount>& words) {
    json[name] = words[size_t(value)];
  }
  template <typename Enum, size_t kCount>
  void operator()(const char* name, Enum value, const std::array<const char*, kCount>& words,
                  Enum otherwise) {
    if (value != otherwise) (*this)(name, value, words);
  }
  void operator()(const char* name, bool value) const { json[name] = value; }
  void operator()(const char* name, bool value, bool otherwise) const {
    if (value != otherwise) json[name] = value;
  }
  void operator()(const char* name, const RouterSpec& router) {
    const auto write = [&](const auto& spec) {
      if (router.index() > 0) json[name] = spec.kKind;
      spec.visit_members(spec, *this);
    };
    std::visit(write, router);
  }
  void operator()(const char* name, const SharedExpertSpec& shared) {
    if (shared.width > 0) shared.visit_members(shared, MemberWriter{json[name]});
  }
};

template <typename... Specs>
void read_kind(const Fields& fields, const char* key, const std::string& kind,
               std::variant<Specs...>& branch);

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
  template <typename Enum, size_t kCount>
  void operator()(const char* name, Enum& value, const std::array<const char*, kCount>& words) {
    const std::string& word = fields.text(name);
    for (size_t i = 0; i < kCount; ++i)
      if (word == words[i]) return void(value = Enum(i));
    fields.fail("{} is \"{}\"; expected one of {}", name, word, fmt::join(words, ", "));
  }
  template <typename Enum, size_t kCount>
  void operator()(const char* name, Enum& value, const std::array<const char*, kCount>& words,
                  Enum otherwise) {
    value = otherwise;
    if (fields.has(name)) (*this)(name, value, words);
  }
  void operator()(const char* name, bool& value) const { value = fields.boolean(name); }
  void operator()(const char* name, bool& value, bool otherwise) const {
    value = fields.has(name) ? fields.boolean(name) : otherwise;
  }
  void operator()(const char* name, RouterSpec& router) const {
    read_kind(fields, name, fields.has(name) ? fields.text(name) : MlpRouterSpec::kKind, router);
  }
  void operator()(const char* name, SharedExpertSpec& shared) const {
    if (!fields.has(name)) return;
    const Fields members = fields.object(name);
    shared.visit_members(shared, MemberReader{members});
  }
};

// Reads one of several kinds of spec; `key` is the member that has its kind.
template <typename... Specs>
void read_kind(const Fields& fields, const char* key, const std::string& kind,
               std::variant<Specs...>& branch) {
  const auto read = [&]<typename Spec>(Spec spec) {
    if (kind != Spec::kKind) return false;
    Spec::visit_members(spec, MemberReader{fields});
    branch = spec;
    return true;
  };
  if (!(read(Specs{}) || ...))
    fields.fail("{} is \"{}\"; expected one of {}", key, kind,
                fmt::join(std::array{Specs::kKind...}, ", "));
}

// A mixer or a feed-forward with its kind.
template <typename... Specs>
nlohmann::ordered_json json_of(const std::variant<Specs...>& branch) {
  nlohmann::ordered_json json;
  std::visit(
      [&](const auto& spec) {
        json["kind"] = spec.kKind;
        spec.visit_members(spec, MemberWriter{json});
      },
      branch);
  return json;
}

template <typename... Specs>
void read_branch(const Fields& fields, std::variant<Specs...>& branch) {
  read_kind(fields, "kind", fields.text("kind"), branch);
}

nlohmann::ordered_json json_of(const ResidualFactors& factors) {
  return {{"alpha", factors.alpha}, {"beta", factors.beta}};
}

ResidualFactors parse_factors(const Fields& fields) {
  return {fields.number("alpha"), fields.number("beta")};
}

nlohmann::ordered_json json_of(const BlockSpec& block) {
  nlohmann::ordered_json json{{"mixer", json_of(block.mixer)},
                              {"feed_forward", json_of(block.feed_forward)},
                              {"residual", kResidualNames[size_t(block.residual)]}};
  if (block.residual == Residual::kNormed) {
    json["mixer_factors"] = json_of(block.mixer_factors);
    json["feed_forward_factors"] = json_of(block.feed_forward_factors);
  }
  return json;
}

BlockSpec parse_block(const Fields& fields) {
  BlockSpec block;
  read_branch(fields.object("mixer"), block.mixer);
  read_branch(fields.object("feed_forward"), block.feed_forward);
  MemberReader{fields}("residual", block.residual, kResidualNames);
  if (block.residual == Residual::kNormed) {
    block.mixer_factors = parse_factors(fields.object("mixer_factors"));
    block.feed_forward_factors = parse_factors(fields.object("feed_forward_factors"));
  }
  return block;
}

// Programs before lists of ids read eos_token_id alone.
void write_eos(const ModelSpec& model, nlohmann::ordered_json& json) {
  const std::vector<int64_t>& ids = model.eos_token_ids;
  json["eos_token_id"] = ids.empty() ? -1 : ids[0];
  if (ids.size() > 1) json["eos_token_ids"] = ids;
}

std::vector<int64_t> read_eos(const Fields& fields) {
  const int64_t first = fields.integer("eos_token_id", -1, kMost);
  std::vector<int64_t> ids;
  if (first >= 0) ids.push_back(first);
  if (!fields.has("eos_token_ids")) return ids;
  std::vector<int64_t> all = fields.counts("eos_token_ids");
  if (all.empty() || all[0] != first || std::ranges::max(all) > kMost)
    fields.fail("eos_token_ids is {}; expected ids of which the first is eos_token_id, {}", all,
                first);
  return all;
}

}  // namespace

RopeScalingSpec RopeScalingSpec::of_its_type() const {
  RopeScalingSpec spec{.type = type};
  if (type != RopeType::kDefault) spec.factor = factor;
  if (has_original_positions(type)) spec.original_positions = original_positions;
  if (type == RopeType::kLlama3) {
    spec.low_freq_factor = low_freq_factor;
    spec.high_freq_factor = high_freq_factor;
  }
  if (type == RopeType::kYarn) {
    spec.beta_fast = beta_fast, spec.beta_slow = beta_slow;
    spec.attention_factor = attention_factor;
    spec.truncate = truncate;
  }
  return spec;
}

int64_t ModelSpec::halo_reach() const {
  int64_t reach = 0;
  for (const BlockSpec& block : blocks) reach = std::max(reach, block.halo_reach());
  return reach;
}

std::string to_json(const ModelSpec& model) {
  nlohmann::ordered_json json;
  visit_members(model, MemberWriter{json});
  write_eos(model, json);
  json["head_fp32"] = model.head_fp32;
  if (!model.tied_head) json["tied_head"] = false;
  if (model.zero_centered_norm) json["zero_centered_norm"] = true;
  for (const BlockSpec& block : model.blocks) json["blocks"].push_back(json_of(block));
  return json.dump(2);
}

ModelSpec parse_model_spec(std::string_view json, const std::string& what) {
  const Json parsed = parse_json(json, what, ErrorKind::kCorrupt);
  const Fields fields(parsed, what);
  ModelSpec model;
  visit_members(model, MemberReader{fields});
  model.eos_token_ids = read_eos(fields);
  model.head_fp32 = fields.boolean("head_fp32");
  if (fields.has("tied_head")) model.tied_head = fields.boolean("tied_head");
  MemberReader{fields}("zero_centered_norm", model.zero_centered_norm, false);
  const Json& blocks = fields.array("blocks");
  if (blocks.empty()) fields.fail("blocks is empty; expected at least one block");
  for (size_t l = 0; l < blocks.size(); ++l)
    model.blocks.push_back(parse_block(Fields(blocks[l], fmt::format("{}: blocks[{}]", what, l))));
  return model;
}

}  // namespace ashlar
