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

// The positions of the first training.  Beside the object they stand for those inside it.
int64_t original_positions(const HfFields& fields, const HfFields& rope, const ModelKeys& model) {
  const char* key = "original_max_position_embeddings";
  const bool inside = rope.has(key);
  if (fields.has(key)) return fields.integer(key, 1, kMaxPositions);
  return inside ? rope.integer(key, 1, kMaxPositions) : model.max_position_embeddings;
}

double optional(const HfFields& rope, const char* key, double fallback) {
  return rope.has(key) ? rope.positive(key) : fallback;
}

// What YaRN multiplies rotated queries and keys by; 0: what follows from the factor.
double attention_factor(const HfFields& rope, double factor) {
  const double mscale = optional(rope, "mscale", 0.0), all = optional(rope, "mscale_all_dim", 0.0);
  if (rope.has("attention_factor")) return rope.positive("attention_factor");
  if (mscale == 0.0 || all == 0.0) return 0.0;
  const auto scale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  return scale(mscale) / scale(all);
}

void read_scaling(const HfFields& fields, const HfFields& rope, ModelKeys& model) {
  if (rope.has("mrope_section"))
    rope.fail("mrope_section", "none: positions of text alone are supported");
  model.rope_type = type_of(rope);
  switch (model.rope_type) {
    case RopeType::kDefault:
      return;
    case RopeType::kLinear:
      model.rope_factor = rope.positive("factor");
      return;
    case RopeType::kDynamic:
      model.rope_factor = rope.positive("factor");
      model.rope_original_positions = model.max_position_embeddings;
      return;
    case RopeType::kYarn:
      model.rope_original_positions = original_positions(fields, rope, model);
      model.rope_factor = rope.is_null("factor") ? double(model.max_position_embeddings) /
                                                       double(model.rope_original_positions)
                                                 : rope.positive("factor");
      model.rope_beta_fast = optional(rope, "beta_fast", 32.0);
      model.rope_beta_slow = optional(rope, "beta_slow", 1.0);
      model.rope_attention_factor = attention_factor(rope, model.rope_factor);
      model.rope_truncate = rope.boolean_or("truncate", true);
      return;
    case RopeType::kLlama3:
      model.rope_original_positions = original_positions(fields, rope, model);
      model.rope_factor = rope.positive("factor");
      model.rope_low_freq_factor = rope.positive("low_freq_factor");
      model.rope_high_freq_factor = rope.positive("high_freq_factor");
      return;
  }
}

// The part of a head that rotates.  Families that rotate all of it take no notice of the key, as in
// transformers, where a scaled RoPE of a part fails.
void read_rotary_factor(const HfFields& fields, const HfDefaults& defaults, ModelKeys& model) {
  const char* key = "partial_rotary_factor";
  model.partial_rotary_factor = fields.positive_or(key, defaults.rotary_factor);
  if (defaults.rotary_factor < 1.0 || model.partial_rotary_factor == 1.0) return;
  if (model.rope_type != RopeType::kDefault)
    fields.fail(key, "1.0: scaled RoPE rotates all of a head in this family");
  fields.not_followed(key);
  model.partial_rotary_factor = 1.0;
}

}  // namespace

void read_rope(const HfFields& fields, const HfDefaults& defaults, ModelKeys& model) {
  std::optional<HfFields> rope;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    if (!fields.at(key).is_object()) fields.fail(key, kObject);
    if (!rope && !fields.at(key).empty()) rope.emplace(fields.object(key, kObject));
  }
  if (rope) read_scaling(fields, *rope, model);
  const char* factor = "partial_rotary_factor";
  const bool beside = fields.has(factor);  // where older programs read it
  const bool inside = rope && rope->has(factor);
  if (inside && beside && rope->at(factor) != fields.at(factor)) fields.not_followed(factor);
  read_rotary_factor(inside ? *rope : fields, defaults, model);
  const std::string theta = "rope_theta";
  if (rope && rope->has(theta)) {
    model.rope_theta = rope->positive(theta);
    fields.find(theta);  // which may be there too, for older programs
  } else {
    model.rope_theta = fields.positive_or(theta, defaults.rope_theta);
  }
  // Programs that read rope_parameters alone would take another base.
  if (fields.has("rope_scaling") && fields.has("rope_parameters")) {
    const Json& other = fields.at("rope_parameters");
    if (const auto at = other.find(theta); at != other.end() && *at != model.rope_theta)
      fields.fail("rope_parameters",
                  fmt::format("the rope_theta {} there, as beside rope_scaling, or no rope_scaling",
                              model.rope_theta));
  }
  model.rope_theta_sliding = model.rope_theta;
}

void write_rope(const ModelKeys& keys, double theta, Json& json) {
  const RopeType type = keys.rope_type;
  Json rope = {{"rope_type", kRopeTypeNames[size_t(type)]}};
  if (type != RopeType::kDefault) rope["factor"] = keys.rope_factor;
  if (type == RopeType::kDynamic)
    ASHLAR_REQUIRE(keys.rope_original_positions == keys.max_position_embeddings, kConfig,
                   "model.rope_original_positions is {} but model.max_position_embeddings is {}; a "
                   "config.json states one number for both with rope_type dynamic: choose {} for "
                   "both, or another rope_type",
                   keys.rope_original_positions, keys.max_position_embeddings,
                   keys.rope_original_positions);
  if (type == RopeType::kYarn || type == RopeType::kLlama3)
    rope["original_max_position_embeddings"] = keys.rope_original_positions;
  if (type == RopeType::kLlama3) {
    rope["low_freq_factor"] = keys.rope_low_freq_factor;
    rope["high_freq_factor"] = keys.rope_high_freq_factor;
  }
  if (type == RopeType::kYarn) {
    rope["beta_fast"] = keys.rope_beta_fast;
    rope["beta_slow"] = keys.rope_beta_slow;
    if (keys.rope_attention_factor > 0) rope["attention_factor"] = keys.rope_attention_factor;
    if (!keys.rope_truncate) rope["truncate"] = false;
  }
  json["rope_scaling"] = type == RopeType::kDefault ? Json(nullptr) : rope;
  rope["rope_theta"] = theta;
  json["rope_parameters"] = rope;
  json["rope_theta"] = theta;
}

}  // namespace ashlar::models
