// ashlar ckpt average STEP... [--weights W1,W2,...] --out PATH [--to root|hf]
#include <nlohmann/json.hpp>

#include "ashlar/cli/ckpt_output.h"
#include "ashlar/core/json.h"
#include "ashlar/eval/load.h"
#include "ashlar/models/average.h"
#include "ashlar/models/step_model.h"

namespace ashlar::cli {
namespace {

struct AverageFlags {
  std::vector<std::string> paths;
  std::vector<double> weights;
  std::string out, to = "root";
  std::shared_ptr<HfFlags> hf = std::make_shared<HfFlags>();
};

// By the files that both have: a run keeps tokenizer.model alone, export writes both of it.
bool have_one_tokenizer(const models::Companions& one, const models::Companions& other) {
  bool any = false, both = false;
  for (const char* name : {models::kTokenizerFile, "tokenizer.json"}) {
    const auto a = one.files.find(name), b = other.files.find(name);
    const bool in_one = a != one.files.end(), in_other = b != other.files.end();
    any = any || in_one || in_other;
    if (!in_one || !in_other) continue;
    if (a->second != b->second) return false;
    both = true;
  }
  return both || !any;
}

// A model has one tokenizer: ids of another would mean other text.  Returns the first one's
// companions.
models::Companions same_tokenizer(FileSystem& files, std::span<const models::ModelSource> sources) {
  models::Companions first = models::companions_of(files, sources[0]);
  for (const models::ModelSource& source : sources.subspan(1))
    ASHLAR_REQUIRE(have_one_tokenizer(models::companions_of(files, source), first), kConfig,
                   "{} and {} have different tokenizers, or one has none; expected steps of one "
                   "model",
                   sources[0].path, source.path);
  return first;
}

int average(const AverageFlags& flags, Log& log) {
  const auto files = posix_files();
  ASHLAR_REQUIRE(flags.to == "root" || flags.to == "hf", kConfig, "--to is {}; expected root or hf",
                 flags.to);
  require_outside_steps(*files, flags.out);
  std::vector<models::ModelSource> sources;
  for (const std::string& path : flags.paths) {
    sources.push_back(eval::find_model(*files, path, log));
    require_outside(flags.out, sources.back().resolved);
  }
  models::require_same_model(sources);
  const models::Companions companions = same_tokenizer(*files, sources);
  std::vector<double> weights = flags.weights;
  if (weights.empty()) weights.assign(sources.size(), 1.0);
  std::vector<models::StoredTensors> models;
  nlohmann::ordered_json from = nlohmann::ordered_json::array();
  DType dtype = DType::kF32;
  for (const models::ModelSource& source : sources) {
    models.emplace_back(*files, source);
    if (step_type(models.back()) == DType::kF64) dtype = DType::kF64;
    from.push_back({{"source", source.resolved}, {"origin", source.origin}});
  }
  const models::AveragedTensors averaged(std::move(models), weights);
  if (flags.to == "root") {
    for (size_t n = 0; n < weights.size(); ++n) from[n]["weight"] = weights[n];
    checkpoint::Blob note{"average.json", one_line({{"models", from}}), true};
    write_root(*files, flags.out, sources[0], dtype, averaged, companions, {std::move(note)}, log);
  } else {
    const std::string_view type = write_hf(*files, flags.out, sources[0], averaged, *flags.hf, log);
    print_result(fmt::format("{}: the average of {} models, {} layout, {}", flags.out,
                             sources.size(), flags.hf->layout, type));
  }
  return 0;
}

}  // namespace

void add_ckpt_average(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<AverageFlags>();
  CLI::App* verb = add_verb(group, action, "average",
                            "the weighted average of models, as a new root or a Hugging Face "
                            "directory",
                            flags, average);
  verb->add_option("STEP", flags->paths, "steps, roots or Hugging Face directories of one model")
      ->required();
  verb->add_option("--weights", flags->weights,
                   "one for each, W1,W2,...; they are divided by their sum (default: all equal)")
      ->delimiter(',');
  verb->add_option("--out", flags->out, "what is made; it must not exist yet")->required();
  verb->add_option("--to", flags->to, "root (step 0 of it) or hf")->capture_default_str();
  add_hf_flags(*verb, flags->hf);
}

}  // namespace ashlar::cli
