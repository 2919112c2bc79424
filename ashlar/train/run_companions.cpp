#include "ashlar/train/run_companions.h"

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/data/hf/json_tokenizer.h"
#include "ashlar/data/text_files.h"
#include "ashlar/models/hf/files.h"
#include "ashlar/models/step_model.h"

namespace ashlar::train {
namespace {

using models::Companions;

void take_tokenizer(Inherited& inherited, const data::Tokenizer& tokenizer, Log& log) {
  auto& files = inherited.companions.files;
  const bool is_json = data::is_json_tokenizer(tokenizer.bytes());
  const auto own = files.find(models::kTokenizerFile);
  bool known = own != files.end(), same = known && own->second == tokenizer.bytes();
  if (is_json && !known) {
    const auto model = data::readable_tokenizer_among(files, inherited.place, log);
    known = model != nullptr;
    same = known && model->bytes() == tokenizer.bytes();
  }
  const size_t before = files.size();
  if (!same)
    std::erase_if(files, [](const auto& file) { return models::is_of_tokenizer(file.first); });
  if (files.size() < before)
    log.warn(
        "{}, so checkpoints leave the files of its tokenizer out: an export writes those of the "
        "training data's",
        known ? inherited.place + " has another tokenizer than the training data"
              : inherited.place + " has no tokenizer.model to compare with the training data's");
  if (!same) inherited.companions.bos_id.reset();
  if (!is_json)
    files[models::kTokenizerFile] = tokenizer.bytes();
  else if (!same)
    files.merge(data::json_tokenizer_files(tokenizer));
}

// All other members keep their values and order.
void state_stop_ids(const ModelSpec& model, Inherited& inherited) {
  const std::string name(models::kHfGenerationFile);
  const auto file = inherited.companions.files.find(name);
  if (file == inherited.companions.files.end() || model.eos_token_ids == inherited.eos_token_ids)
    return;
  const std::string place = join(inherited.place, name);
  parse_json(file->second, place, ErrorKind::kData);  // throws a precise error if it is malformed
  auto json = nlohmann::ordered_json::parse(file->second);
  ASHLAR_REQUIRE(json.is_object(), kData, "{}: expected an object", place);
  const std::vector<int64_t>& ids = model.eos_token_ids;
  json["eos_token_id"] = nullptr;
  if (ids.size() == 1) json["eos_token_id"] = ids[0];
  if (ids.size() > 1) json["eos_token_id"] = ids;
  file->second = json.dump(2) + "\n";
}

void state_beginning(std::span<const data::Source> training, Companions& companions) {
  for (const data::Source& source : training)
    if (const auto& sidecar = source.dataset->sidecar()) {
      companions.bos_id = sidecar->bos_id;
      return;
    }
}

}  // namespace

Companions run_companions(Inherited inherited, const ModelSpec& model,
                          const data::Tokenizer* tokenizer, std::span<const data::Source> training,
                          Log& log) {
  if (tokenizer) take_tokenizer(inherited, *tokenizer, log);
  state_stop_ids(model, inherited);
  Companions& companions = inherited.companions;
  const std::optional<int32_t> before = companions.bos_id;
  state_beginning(training, companions);
  // If nothing is inherited, documents begin as in the first dataset.
  const data::TextFiles text = data::read_text_files(companions.files, tokenizer, inherited.place,
                                                     before ? before : companions.bos_id);
  for (const data::Source& source : training)
    if (const auto& sidecar = source.dataset->sidecar())
      if (const std::string differs = data::other_beginning(*sidecar, text); !differs.empty())
        log.warn("{}: {}", source.prefix(), differs);
  return std::move(companions);
}

}  // namespace ashlar::train
