#include "ashlar/models/base_model.h"

#include "ashlar/core/fields.h"
#include "ashlar/models/fingerprint.h"

namespace ashlar::models {

std::string to_json(const BaseModel& base) {
  Ordered json{{"path", base.path}, {"fingerprint", fmt::format("{:016x}", base.fingerprint)}};
  if (base.lora.rank > 0) {
    json["r"] = base.lora.rank;
    json["lora_alpha"] = base.lora.alpha;
    json["use_rslora"] = base.lora.rslora;
  }
  return json.dump(2) + "\n";
}

BaseModel parse_base_model(const std::string& json, const std::string& place) {
  const Json parsed = parse_json(json, place, ErrorKind::kCorrupt);
  const Fields fields(parsed, place);
  fields.only({"path", "fingerprint", "r", "lora_alpha", "use_rslora"});
  BaseModel base{.path = fields.text("path"), .fingerprint = fields.hex("fingerprint", 16)};
  if (!fields.has("r")) return base;
  base.lora.rank = fields.integer("r", 1, INT32_MAX);
  base.lora.alpha = fields.number("lora_alpha");
  base.lora.rslora = fields.boolean("use_rslora");
  return base;
}

BaseModel base_model_of(FileSystem& files, const ModelSource& source, const TuneSpec& tune) {
  return {source.resolved, model_fingerprint(files, source), tune.lora};
}

void require_same_base(const BaseModel& saved, const BaseModel& found, const std::string& step) {
  ASHLAR_REQUIRE(saved.fingerprint == found.fingerprint, kConfig,
                 "{} was made from {} with fingerprint {:016x}, but {} has {:016x}: its files are "
                 "others; name the model that the run began with",
                 step, saved.path, saved.fingerprint, found.path, found.fingerprint);
}

}  // namespace ashlar::models
