#include "ashlar/eval/input.h"

#include <algorithm>
#include <cmath>

#include "ashlar/checkpoint/load/step_reader.h"
#include "ashlar/models/step_model.h"

namespace ashlar::eval {
namespace {

constexpr const char* kRecipeFile = "recipe.toml";

// The data section of the run that made the model; without one, samples of a single token, so that
// the cut depends on the fraction alone.
DataSpec training_data(FileSystem& files, const ModelSource& model) {
  DataSpec unknown;
  unknown.sequence_length = 1;
  if (model.hugging_face) return unknown;
  const checkpoint::StepReader reader(files, model.resolved);
  if (!reader.has_blob(kRecipeFile)) return unknown;
  return parse_saved_recipe(reader.read_blob(kRecipeFile),
                            join(model.resolved, std::string("extra/") + kRecipeFile))
      .data;
}

data::Source open_held_out(FileSystem& files, const ModelSource& model, const InputSpec& spec) {
  DataSpec training = training_data(files, model);
  if (spec.validation_fraction) {
    const double fraction = *spec.validation_fraction;
    ASHLAR_REQUIRE(fraction > 0 && fraction < 1, kConfig,
                   "--validation-fraction is {}; expected above 0, below 1", fraction);
    training.validation_fraction = fraction;
    training.validation.clear();
  }
  for (const BlendEntry& entry : training.validation)
    if (entry.path == spec.data)
      return data::open_source(files, spec.data, spec.length, Packing::kConcat,
                               model.spec.vocab_size, "--data", data::Rest::kKeep);
  ASHLAR_REQUIRE(training.validation.empty() && training.validation_fraction > 0, kConfig,
                 "{}: its recipe holds nothing of {} out ({}); give --part all, or "
                 "--validation-fraction for a tail that it may have seen",
                 model.resolved, spec.data,
                 training.validation.empty()
                     ? "data.validation_fraction is 0"
                     : fmt::format("data.validation is {}", training.validation.front().path));
  return data::open_held_out(files, spec.data, training, spec.length, model.spec.vocab_size,
                             "--data");
}

// "" if the dataset was made with the model's tokenizer, else why that is not known.  kConfig if it
// was made with another.
std::string check_tokenizer(FileSystem& files, const ModelSource& model,
                            const data::IndexedDataset& dataset) {
  const auto& sidecar = dataset.sidecar();
  if (!sidecar) return fmt::format("{}.json is missing", dataset.prefix());
  const auto tokenizer = find_tokenizer(files, model);
  if (!tokenizer) return fmt::format("{} holds no tokenizer", model.resolved);
  ASHLAR_REQUIRE(
      sidecar->tokenizer_fingerprint == tokenizer->fingerprint(), kConfig,
      "{} was prepared with tokenizer {:016x} ({}, {} ids) but {} has {:016x} ({}, {} ids), to "
      "which the same ids are other text; prepare the text with the model's, or give "
      "--any-tokenizer",
      dataset.prefix(), sidecar->tokenizer_fingerprint, sidecar->tokenizer_kind,
      sidecar->vocab_size, model.resolved, tokenizer->fingerprint(), tokenizer->kind(),
      tokenizer->vocab_size());
  return "";
}

}  // namespace

Input open_input(FileSystem& files, const ModelSource& model, const InputSpec& spec) {
  ASHLAR_REQUIRE(spec.length >= 1 && spec.length <= kMaxTokens, kConfig,
                 "--length is {}; expected 1 to {}", spec.length, kMaxTokens);
  std::string doubt, beginning;
  {
    const auto dataset = data::open_dataset(files, spec.data, "--data");
    if (!spec.any_tokenizer) doubt = check_tokenizer(files, model, *dataset);
    if (const auto& sidecar = dataset->sidecar(); sidecar && doubt.empty() && !spec.any_tokenizer)
      beginning =
          other_beginning(*sidecar, read_text_files(models::companions_of(files, model), model,
                                                    find_tokenizer(files, model).get()));
    if (const auto& sidecar = dataset->sidecar())
      ASHLAR_REQUIRE(sidecar->vocab_size <= model.spec.vocab_size, kConfig,
                     "{} was prepared with a vocabulary of {} ids but {} has {}; expected at most "
                     "as many",
                     spec.data, sidecar->vocab_size, model.resolved, model.spec.vocab_size);
  }
  if (!spec.all) return {open_held_out(files, model, spec), doubt, beginning};
  return {data::open_source(files, spec.data, spec.length, Packing::kConcat, model.spec.vocab_size,
                            "--data", data::Rest::kKeep),
          doubt, beginning};
}

}  // namespace ashlar::eval
