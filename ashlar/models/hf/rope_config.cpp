#include "ashlar/models/hf/rope_config.h"

#include <cmath>

namespace ashlar::models {
namespace {

constexpr const char* kObject = "an object with a rope_type, or null";

// The type of a rope_scaling or of rope_parameters, which older files name `type`.
RopeType type_of(const HfFields& rope) {
  const std::string expected = fmt::format("one of \"{}\"", fmt::join(kRopeTypeNames, "\", \""));
  const char* key = "rope_type";
  rope.require_not_null(key, expected);
  if (!rope.has(key)) {
    key = "type";
    rope.require_not_null(key, expected);
    if (!rope.has(key)) return RopeType::kDefault;
  }
  for (size_t i = 0; i < kRopeTypeNames.size(); ++i)
    if (rope.at(key) == kRopeTypeNames[i]) {
      if (rope.has("type") && rope.at("type") != rope.at(key))
        rope.fail("type",
                  fmt::format("rope_type, which is {}: keep one of them", rope.at(key).dump()));
      return RopeType(i);
    }
  rope.fail(key, expected);
}

// The positions of the original training.  A key beside the object overrides that inside it.
int64_t original_positions(const HfFields& fields, const HfFields& rope, int64_t max_positions) {
  const char* key = "original_max_position_embeddings";
  const bool inside = rope.has(key);
  if (fields.has(key)) return fields.integer(key, 1, kMaxPositions);
  return inside ? rope.integer(key, 1, kMaxPositions) : max_positions;
}

double optional(const HfFields& rope, const char* key, double fallback) {
  return rope.has(key) ? rope.positive(key) : fallback;
}

// YaRN's factor on rotated queries and keys; 0: derived from the factor.
double attention_factor(const HfFields& rope, double factor) {
  const double mscale = optional(rope, "mscale", 0.0), all = optional(rope, "mscale_all_dim", 0.0);
  if (rope.has("attention_factor")) return rope.positive("attention_factor");
  if (mscale == 0.0 || all == 0.0) return 0.0;
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  return scale(mscale) / scale(all);
}

RopeScalingSpec read_scaling(const HfFields& fields, const HfFields& rope, int64_t max_positions) {
  if (rope.has("mrope_section"))
    rope.fail("mrope_section", "none: positions of text alone are supported");
  RopeScalingSpec scaling{.type = type_of(rope)};
  switch (scaling.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      scaling.factor = rope.positive("factor");
      break;
    case RopeType::kDynamic:
      scaling.factor = rope.positive("factor");
      scaling.original_positions = max_positions;
      break;
    case RopeType::kYarn:
      scaling.original_positions = original_positions(fields, rope, max_positions);
      scaling.factor = rope.is_null("factor")
                           ? double(max_positions) / double(scaling.original_positions)
                           : rope.positive("factor");
      scaling.beta_fast = optional(rope, "beta_fast", 32.0);
      scaling.beta_slow = optional(rope, "beta_slow", 1.0);
      scaling.attention_factor = attention_factor(rope, scaling.factor);
      scaling.truncate = rope.boolean_or("truncate", true);
      break;
    case RopeType::kLlama3:
      scaling.original_positions = original_positions(fields, rope, max_positions);
      scaling.factor = rope.positive("factor");
      scaling.low_freq_factor = rope.positive("low_freq_factor");
      scaling.high_freq_factor = rope.positive("high_freq_factor");
      break;
  }
  return scaling;
}

// Reads the rotated part of a head.  Families that rotate all of it ignore the key, as in
// transformers, where a scaled RoPE of a part fails.
void read_rotary_factor(const HfFields& fields, const HfDefaults& defaults,
                        AttentionSpec& attention) {
  const char* key = "partial_rotary_factor";
  attention.rotary_factor = fields.positive_or(key, defaults.rotary_factor);
  if (defaults.rotary_factor < 1.0 || attention.rotary_factor == 1.0) return;
  if (attention.rope_scaling.type != RopeType::kDefault)
    fields.fail(key, "1.0: scaled RoPE rotates all of a head in this family");
  fields.not_followed(key);
  attention.rotary_factor = 1.0;
}

}  // namespace

void read_rope(const HfFields& fields, const HfDefaults& defaults, int64_t max_positions,
               AttentionSpec& attention) {
  std::optional<HfFields> rope;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    if (!fields.at(key).is_object()) fields.fail(key, kObject);
    if (!rope && !fields.at(key).empty()) rope.emplace(fields.object(key, kObject));
  }
  if (rope) attention.rope_scaling = read_scaling(fields, *rope, max_positions);
  const char* factor = "partial_rotary_factor";
  const bool beside = fields.has(factor);  // where older programs read it
  const bool inside = rope && rope->has(factor);
  if (inside && beside && rope->at(factor) != fields.at(factor)) fields.not_followed(factor);
  read_rotary_factor(inside ? *rope : fields, defaults, attention);
  const std::string theta = "rope_theta";
  if (rope && rope->has(theta)) {
    attention.rope_theta = rope->positive(theta);
    fields.find(theta);  // which may be there too, for older programs
  } else {
    attention.rope_theta = fields.positive_or(theta, defaults.rope_theta);
  }
  // Programs that read only rope_parameters would use another base.
  if (fields.has("rope_scaling") && fields.has("rope_parameters")) {
    const Json& other = fields.at("rope_parameters");
    if (const auto at = other.find(theta); at != other.end() && *at != attention.rope_theta)
      fields.fail("rope_parameters",
                  fmt::format("the rope_theta {} there, as beside rope_scaling, or no rope_scaling",
                              attention.rope_theta));
  }
}

void write_rope(const ModelSpec& model, const AttentionSpec& attention, Json& json) {
  const RopeScalingSpec& scaling = attention.rope_scaling;
  const RopeType type = scaling.type;
  Json rope = {{"rope_type", kRopeTypeNames[size_t(type)]}};
  if (type != RopeType::kDefault) rope["factor"] = scaling.factor;
  if (type == RopeType::kDynamic)
    ASHLAR_REQUIRE(scaling.original_positions == model.max_positions, kConfig,
                   "model.rope_original_positions is {} but model.max_position_embeddings is {}; a "
                   "config.json states one number for both with rope_type dynamic: choose {} for "
                   "both, or another rope_type",
                   scaling.original_positions, model.max_positions, scaling.original_positions);
  if (type == RopeType::kYarn || type == RopeType::kLlama3)
    rope["original_max_position_embeddings"] = scaling.original_positions;
  if (type == RopeType::kLlama3) {
    rope["low_freq_factor"] = scaling.low_freq_factor;
    rope["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (type == RopeType::kYarn) {
    rope["beta_fast"] = scaling.beta_fast;
    rope["beta_slow"] = scaling.beta_slow;
    if (scaling.attention_factor > 0) rope["attention_factor"] = scaling.attention_factor;
    if (!scaling.truncate) rope["truncate"] = false;
  }
  json["rope_scaling"] = type == RopeType::kDefault ? Json(nullptr) : rope;
  rope["rope_theta"] = attention.rope_theta;
  json["rope_parameters"] = rope;
  json["rope_theta"] = attention.rope_theta;
}

}  // namespace ashlar::models
