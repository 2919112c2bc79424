#include "ashlar/train/first_weights.h"

#include <set>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/comm/agree.h"
#include "ashlar/models/step_model.h"
#include "ashlar/nn/init.h"
#include "ashlar/train/group_load_ranks.h"
#include "ashlar/train/read_recipe.h"
#include "ashlar/train/saves.h"
#include "ashlar/train/state.h"

namespace ashlar::train {
namespace {

models::ModelSource find(FileSystem& files, const std::string& path, Log& log) {
  require_first_weights(files, path);
  return models::find_model(files, path, log);
}

GivenModel given_model(const models::ModelSource& source) {
  return {source.spec, source.path, source.hugging_face};
}

std::set<std::string> names_of(const std::vector<LogicalTensor>& tensors) {
  std::set<std::string> names;
  for (const LogicalTensor& tensor : tensors) names.insert(tensor.name);
  return names;
}

void read(FileSystem& files, const models::ModelSource& source, comm::Group& ranks,
          Trainer& trainer) {
  const parallel::RankModel& model = trainer.model();
  const std::vector<LogicalTensor> whole =
      nn::logical_tensors(model_of(trainer.recipe().model), model.local().types().wide);
  std::vector<Piece> kept = model.frozen_pieces();
  const std::set<std::string> named = names_of(whole);
  for (Piece& piece : model.pieces(false))
    if (named.contains(piece.logical.name)) kept.push_back(std::move(piece));  // no adapter
  std::vector<Piece> all = kept;
  add_what_others_keep(whole, all);
  GroupLoadRanks load_ranks(ranks);
  models::read_weights(files, source, all, &load_ranks);
  nn::require_finite(trainer.context(), kept, source.spec, source.resolved, [&] {
    const auto tokenizer = data::tokenizer_among(models::read_tokenizer_files(files, source),
                                                 models::tokenizer_place(source));
    return tokenizer ? tokenizer->vocab_size() : 0;
  });
}

void warn_of_other_tokenizer(FileSystem& files, const models::ModelSource& source,
                             const std::vector<data::Source>& sources, Log& log) {
  const auto tokenizer = data::readable_tokenizer_among(models::read_tokenizer_files(files, source),
                                                        models::tokenizer_place(source), log);
  if (!tokenizer) return;
  for (const data::Source& data : sources) {
    const auto& sidecar = data.dataset->sidecar();
    if (!sidecar || sidecar->tokenizer_fingerprint == tokenizer->fingerprint()) continue;
    // All datasets of a run have the same tokenizer, if any.
    return log.warn(
        "{} was prepared with tokenizer {:016x} ({}, {} ids) but {} has {:016x} ({}, {} ids), to "
        "which the same ids are other text",
        data.prefix(), sidecar->tokenizer_fingerprint, sidecar->tokenizer_kind, sidecar->vocab_size,
        source.resolved, tokenizer->fingerprint(), tokenizer->kind(), tokenizer->vocab_size());
  }
}

}  // namespace

std::optional<models::ModelSource> find_first_weights(FileSystem& files, const Recipe& recipe,
                                                      comm::Group& ranks, Log& log) {
  const std::string& path = recipe.init.model;
  if (path.empty()) return std::nullopt;
  std::optional<models::ModelSource> source;
  std::string resolved;                       // "": the run has steps
  while_leader(ranks, "first weights", [&] {  // it may have to read a whole checkpoint
    const bool begins = checkpoint::committed_steps(files, checkpoint_root(recipe)).empty();
    if (!begins && recipe.tune.trains_all()) return;
    source = find(files, path, log);
    require_sizes(recipe, given_model(*source));
    resolved = source->resolved;
  });
  resolved = comm::first_said(ranks, resolved, "first weights");
  if (ranks.rank() != 0 && !resolved.empty()) source = find(files, resolved, log);
  return source;
}

void take_first_weights(FileSystem& files, const models::ModelSource& source, comm::Group& ranks,
                        const std::vector<data::Source>& training, Trainer& trainer, Log& log) {
  read(files, source, ranks, trainer);
  trainer.initialize_adapters();
  log.info("{} the weights of {} ({})",
           trainer.recipe().tune.trains_all() ? "starting from" : "tuning", source.path,
           source.origin);
  for (const std::string& line : model_differences(trainer.recipe(), given_model(source)))
    log.warn("{}; the recipe's value holds", line);
  warn_of_other_tokenizer(files, source, training, log);
}

}  // namespace ashlar::train
