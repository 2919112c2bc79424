#include "ashlar/train/first_weights.h"

#include <algorithm>

#include "ashlar/checkpoint/model_files.h"
#include "ashlar/checkpoint/recovery.h"
#include "ashlar/comm/agree.h"
#include "ashlar/nn/init.h"
#include "ashlar/spec/keys.h"
#include "ashlar/train/load_exchange.h"
#include "ashlar/train/saves.h"
#include "ashlar/train/state.h"

namespace ashlar::train {
namespace {

checkpoint::ModelSource find(FileSystem& files, const std::string& path, Log& log) {
  ASHLAR_REQUIRE(files.stat(path), kConfig,
                 "init.model is {}, which does not exist; expected a Hugging Face directory, a "
                 "checkpoint root or one step of it",
                 path);
  return checkpoint::find_model(files, path, nn::logical_tensors, log);
}

// The recipe with the model of the source.
Recipe with_model_of(const checkpoint::ModelSource& source, Recipe recipe) {
  const ModelKeys own = recipe.model;
  recipe.model = keys_of(source.spec);
  if (!source.hugging_face) return recipe;
  // No config.json states these (docs/formats/model.md).
  recipe.model.skip_output = own.skip_output;
  recipe.model.head_fp32 = own.head_fp32;
  recipe.model.qk_norm_eps = own.qk_norm_eps;
  return recipe;
}

// Whether two values of a key make the same tensors.  For types of blocks windows do not matter,
// and another number of blocks is told by its own key.
bool same_tensors(const KeyValue& a, const KeyValue& b) {
  const auto *here = std::get_if<std::vector<LayerType>>(&a),
             *there = std::get_if<std::vector<LayerType>>(&b);
  if (!here || !there) return a == b;
  const size_t both = std::min(here->size(), there->size());
  return std::equal(here->begin(), here->begin() + int64_t(both), there->begin(),
                    [](const LayerType& x, const LayerType& y) {
                      return x.mixer == y.mixer && x.feed_forward == y.feed_forward;
                    });
}

// Keys that say nothing of this model, such as the window where no block slides or experts where
// there are none, as keys_of leaves them.
Recipe without_unused_keys(Recipe recipe) {
  recipe.model = keys_of(model_of(recipe.model));
  return recipe;
}

// The keys that decide which tensors there are, and their shapes.
void require_sizes(const checkpoint::ModelSource& source, const Recipe& recipe) {
  const Recipe here = without_unused_keys(recipe), there = with_model_of(source, here);
  std::string problems;
  for (const Key& key : recipe_keys()) {
    if (!key.shapes || same_tensors(key.get(here), key.get(there))) continue;
    problems += fmt::format("{}{} is {} but {} has {}", problems.empty() ? "" : ", ", key.name,
                            value_text(key.get(here)), source.path, value_text(key.get(there)));
  }
  ASHLAR_REQUIRE(problems.empty(), kConfig,
                 "{}{}{}; choose the sizes of init.model, or other weights", recipe.source,
                 recipe.source.empty() ? "" : ": ", problems);
}

void read(FileSystem& files, const checkpoint::ModelSource& source, comm::Group& ranks,
          Trainer& trainer) {
  const parallel::RankModel& model = trainer.model();
  const std::vector<Piece> kept = model.pieces(false);
  std::vector<Piece> all = kept;
  add_what_others_keep(
      nn::logical_tensors(model_of(trainer.recipe().model), model.local().types().stream), all);
  LoadExchange exchange(ranks);
  checkpoint::read_weights(files, source, all, &exchange);
  nn::require_finite(trainer.context(), kept, source.spec, source.resolved, [&] {
    const auto bytes = checkpoint::read_tokenizer_file(files, source);
    if (!bytes) return int64_t{0};
    return data::parse_tokenizer(*bytes, checkpoint::tokenizer_path(source))->vocab_size();
  });
}

void report_differences(const checkpoint::ModelSource& source, const Recipe& recipe, Log& log) {
  const Recipe here = without_unused_keys(recipe);
  const std::vector<std::string> lines = differences(with_model_of(source, here), here);
  if (!lines.empty()) log.info("changed since these weights were made:");
  for (const std::string& line : lines) log.info("  {}", line);
}

void warn_of_other_tokenizer(FileSystem& files, const checkpoint::ModelSource& source,
                             const std::vector<data::Source>& sources, Log& log) {
  const auto bytes = checkpoint::read_tokenizer_file(files, source);
  if (!bytes) return;
  const auto tokenizer = data::parse_tokenizer(*bytes, checkpoint::tokenizer_path(source));
  for (const data::Source& data : sources) {
    const auto& sidecar = data.dataset->sidecar();
    if (!sidecar || sidecar->tokenizer_fingerprint == tokenizer->fingerprint()) continue;
    // All datasets of a run have the same tokenizer, if they have one.
    return log.warn(
        "{} was prepared with tokenizer {:016x} ({}, {} ids) but {} has {:016x} ({}, {} ids), to "
        "which the same ids are other text",
        data.prefix(), sidecar->tokenizer_fingerprint, sidecar->tokenizer_kind, sidecar->vocab_size,
        source.resolved, tokenizer->fingerprint(), tokenizer->kind(), tokenizer->vocab_size());
  }
}

}  // namespace

std::optional<checkpoint::ModelSource> find_first_weights(FileSystem& files, const Recipe& recipe,
                                                          comm::Group& ranks, Log& log) {
  const std::string& path = recipe.init.model;
  if (path.empty()) return std::nullopt;
  std::optional<checkpoint::ModelSource> source;
  std::string resolved;  // "": the run has steps
  if (ranks.rank() == 0 && checkpoint::committed_steps(files, checkpoint_root(recipe)).empty()) {
    source = find(files, path, log);
    require_sizes(*source, recipe);
    resolved = source->resolved;
  }
  resolved = comm::first_said(ranks, resolved, "first weights");
  if (ranks.rank() != 0 && !resolved.empty()) source = find(files, resolved, log);
  return source;
}

void take_first_weights(FileSystem& files, const checkpoint::ModelSource& source,
                        comm::Group& ranks, const std::vector<data::Source>& training,
                        Trainer& trainer, Log& log) {
  read(files, source, ranks, trainer);
  log.info("starting from the weights of {} ({})", source.path, source.origin);
  report_differences(source, trainer.recipe(), log);
  warn_of_other_tokenizer(files, source, training, log);
}

}  // namespace ashlar::train
