// ashlar ckpt import HF_DIR ROOT | export STEP HF_DIR
#include <fmt/ranges.h>

#include "ashlar/cli/ckpt_output.h"
#include "ashlar/core/text.h"
#include "ashlar/eval/generation_config.h"
#include "ashlar/eval/load.h"
#include "ashlar/models/hf/files.h"
#include "ashlar/models/peft.h"

namespace ashlar::cli {
namespace {

struct ConvertFlags {
  std::string path, out;
  bool adapter = false;
  std::shared_ptr<HfFlags> hf = std::make_shared<HfFlags>();
};

// Files beside the weights that go with the model from here on, and those that do not.
void say_what_came(FileSystem& files, const models::ModelSource& source,
                   const models::Companions& companions, Log& log) {
  std::vector<std::string> names;
  for (const auto& [name, content] : companions.files) names.push_back(name);
  if (!names.empty()) log.info("kept beside the weights: {}", fmt::join(names, ", "));
  const auto left = models::left_behind(files, source.resolved);
  if (!left.empty()) log.info("not kept: {}", models::listed(left));
}

int import_model(const ConvertFlags& flags, Log& log) {
  const auto files = posix_files();
  require_outside(flags.out, flags.path);
  require_outside_steps(*files, flags.out);
  const models::ModelSource source = eval::find_model(*files, flags.path, log);
  ASHLAR_REQUIRE(source.hugging_face, kConfig,
                 "{}: expected a Hugging Face directory (with config.json)", flags.path);
  const models::Companions companions = models::companions_of(*files, source);
  // Read before anything is written: a file that is none ends here.
  const auto config = eval::read_generation_config(companions, source);
  const auto tokenizer = eval::find_readable_tokenizer(*files, source, log);
  const data::TextFiles text = eval::read_text_files(companions, source, tokenizer.get());
  const models::StoredTensors stored(*files, source);
  write_root(*files, flags.out, source, step_type(stored), stored, companions, {}, log);
  say_what_came(*files, source, companions, log);
  for (const std::string& note : text.notes) log.warn("{}", printable(note));
  if (!config.unfollowed.empty())
    log.warn("{}: not followed: {}", config.path, fmt::join(config.unfollowed, ", "));
  return 0;
}

int export_adapter(FileSystem& files, const std::string& out, const models::ModelSource& source) {
  const models::PeftStats stats = models::write_peft_adapter(files, out, source);
  print_result(fmt::format("{}: adapters of {} layers, {} parameters, for {}", out, stats.layers,
                           format_thousands(stats.parameters), source.tuned->base.resolved));
  return 0;
}

int export_model(const ConvertFlags& flags, Log& log) {
  const auto files = posix_files();
  require_outside_steps(*files, flags.out);
  const models::ModelSource source = eval::find_model(*files, flags.path, log);
  if (flags.adapter) {
    const HfFlags defaults;
    ASHLAR_REQUIRE(
        flags.hf->layout == defaults.layout && flags.hf->dtype == defaults.dtype &&
            flags.hf->max_file_gb == defaults.max_file_gb,
        kConfig,
        "--adapter writes one file of F32 with PEFT's names; leave out --layout, --dtype "
        "and --max-file-gb");
    return export_adapter(*files, flags.out, source);
  }
  const std::string_view type =
      write_hf(*files, flags.out, source, models::StoredTensors(*files, source), *flags.hf, log);
  print_result(fmt::format("{}: {} layout, {}, from {}", flags.out, flags.hf->layout, type,
                           source.resolved));
  return 0;
}

}  // namespace

void add_ckpt_conversion(CLI::App& group, CommandAction& action) {
  const auto flags = std::make_shared<ConvertFlags>();
  CLI::App* import_app =
      add_verb(group, action, "import", "a Hugging Face directory as step 0 of a new root", flags,
               import_model);
  import_app->add_option("HF_DIR", flags->path)->required();
  import_app->add_option("ROOT", flags->out)->required();
  CLI::App* export_app =
      add_verb(group, action, "export", "a step as a Hugging Face directory", flags, export_model);
  export_app->add_option("STEP", flags->path)->required();
  export_app->add_option("HF_DIR", flags->out)->required();
  export_app->add_flag("--adapter", flags->adapter,
                       "the adapters alone, as PEFT loads them; without: merged into the model");
  add_hf_flags(*export_app, flags->hf);
}

}  // namespace ashlar::cli
