// ashlar ckpt import HF_DIR ROOT | export STEP HF_DIR
#include <nlohmann/json.hpp>

#include "ashlar/cli/ckpt_output.h"
#include "ashlar/core/json.h"
#include "ashlar/eval/load.h"

namespace ashlar::cli {
namespace {

struct Flags {
  std::string path, out;
  std::shared_ptr<HfFlags> hf = std::make_shared<HfFlags>();
};

int import_model(const Flags& flags, Log& log) {
  const auto files = posix_files();
  require_outside(flags.out, flags.path);
  require_outside_steps(*files, flags.out);
  const checkpoint::ModelSource source = eval::find_model(*files, flags.path, log);
  ASHLAR_REQUIRE(source.hugging_face, kConfig,
                 "{}: expected a Hugging Face directory (with config.json)", flags.path);
  write_root(*files, flags.out, source, checkpoint::StoredTensors(*files, source), {},
             {{"hf", one_line({{"source", flags.path}})}}, log);
  return 0;
}

int export_model(const Flags& flags, Log& log) {
  const auto files = posix_files();
  require_outside_steps(*files, flags.out);
  const checkpoint::ModelSource source = eval::find_model(*files, flags.path, log);
  write_hf(*files, flags.out, source, checkpoint::StoredTensors(*files, source), *flags.hf, log);
  print_result(fmt::format("{}: {} layout, {}, from {}", flags.out, flags.hf->layout,
                           flags.hf->dtype, source.resolved));
  return 0;
}

}  // namespace

void add_ckpt_conversion(CLI::App& group, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* import_app =
      add_verb(group, action, "import", "a Hugging Face directory as step 0 of a new root", flags,
               import_model);
  import_app->add_option("HF_DIR", flags->path)->required();
  import_app->add_option("ROOT", flags->out)->required();
  CLI::App* export_app =
      add_verb(group, action, "export", "a step as a Hugging Face directory", flags, export_model);
  export_app->add_option("STEP", flags->path)->required();
  export_app->add_option("HF_DIR", flags->out)->required();
  add_hf_flags(*export_app, flags->hf);
}

}  // namespace ashlar::cli
