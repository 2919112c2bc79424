#include "ashlar/cli/ckpt_output.h"

#include <algorithm>

#include "ashlar/core/text.h"
#include "ashlar/data/hf_tokenizer.h"
#include "ashlar/eval/load.h"
#include "ashlar/models/hf/write.h"
#include "ashlar/models/step_model.h"

namespace ashlar::cli {

namespace {

using models::Companions, models::ElementTypes, models::ModelSource;

struct NamedType {
  std::string_view name;
  DType dtype;
};
constexpr NamedType kTypes[] = {
    {"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp32", DType::kF32}, {"fp64", DType::kF64}};

std::string_view flag_of(DType dtype) {
  return std::ranges::find(kTypes, dtype, &NamedType::dtype)->name;
}

// Sets the types of the files: the flag's, or those in which the weights came.
void set_types(const std::string& flag, const Companions& companions,
               models::HfWriteOptions& options) {
  if (flag == "source") {
    options.types = companions.types;
    return;
  }
  const auto* named = std::ranges::find(kTypes, flag, &NamedType::name);
  ASHLAR_REQUIRE(named != std::end(kTypes), kConfig,
                 "--dtype is {}; expected source, bf16, fp16, fp32 or fp64", flag);
  options.dtype = named->dtype;
}

// The companions' files; where there is a tokenizer and none that transformers reads with it, those
// too.  Settings that they do not follow go to `unstated`.
std::map<std::string, std::string> files_of(const Companions& companions,
                                            const data::Tokenizer* tokenizer,
                                            std::vector<std::string>& unstated) {
  std::map<std::string, std::string> files = companions.files;
  const bool has_others = std::ranges::any_of(files, [](const auto& file) {
    return models::is_of_tokenizer(file.first) && file.first != models::kTokenizerFile;
  });
  if (!tokenizer || has_others) return files;
  data::HfTokenizer written = data::to_hf_tokenizer(*tokenizer, companions.bos_id.value_or(-1));
  unstated = std::move(written.unstated);
  files.insert(written.files.begin(), written.files.end());
  return files;
}

void warn_of_ids(const std::string& out, const ModelSource& source, const data::TextFiles& text,
                 Log& log) {
  const int64_t rows = source.spec.vocab_size;
  if (text.num_ids == 0 || text.num_ids == rows) return;
  if (text.num_ids < rows)
    log.warn(
        "{}: the tokenizer knows {} ids but the embedding has {} rows: ids from {} on are no "
        "text",
        out, format_thousands(text.num_ids), format_thousands(rows), text.num_ids);
  else
    log.warn(
        "{}: the tokenizer knows {} ids but the embedding has only {} rows: texts with ids "
        "from {} on cannot be read",
        out, format_thousands(text.num_ids), format_thousands(rows), rows);
}

void say_what_types_cost(const std::string& out, const models::HfWriteStats& stats,
                         std::string_view type, Log& log) {
  if (stats.changed == 0) return;
  std::string vanished;
  if (stats.vanished > 0)
    vanished = fmt::format(", {} of them to 0", format_thousands(stats.vanished));
  log.info("{}: {} of {} values are rounded to {}{}; --dtype fp32 keeps more of them", out,
           format_thousands(stats.changed), format_thousands(stats.values), type, vanished);
}

}  // namespace

void add_hf_flags(CLI::App& verb, const std::shared_ptr<HfFlags>& flags) {
  verb.add_option("--layout", flags->layout, "native or legacy")->capture_default_str();
  verb.add_option(
          "--dtype", flags->dtype,
          "source: the types in which the weights came, bf16 of a run from a seed; or bf16, "
          "fp16, fp32, fp64")
      ->capture_default_str();
  verb.add_option("--max-file-gb", flags->max_file_gb, "larger models are sharded")
      ->capture_default_str();
}

std::string_view write_hf(FileSystem& files, const std::string& out, const ModelSource& source,
                          const models::TensorReader& reader, const HfFlags& flags, Log& log) {
  models::HfWriteOptions options;
  ASHLAR_REQUIRE(flags.layout == "native" || flags.layout == "legacy", kConfig,
                 "--layout is {}; expected native or legacy", flags.layout);
  constexpr double kLeastGb = 1e-9, kMostGb = 1e9;  // a byte; any file, as a number of bytes
  ASHLAR_REQUIRE(flags.max_file_gb >= kLeastGb && flags.max_file_gb <= kMostGb, kConfig,
                 "--max-file-gb is {}; expected a number above 0, at most {:.0f}",
                 flags.max_file_gb, kMostGb);
  const Companions companions = models::companions_of(files, source);
  set_types(flags.dtype, companions, options);
  options.layout = flags.layout == "native" ? models::HfLayout::kNative : models::HfLayout::kLegacy;
  options.max_file_bytes = int64_t(flags.max_file_gb * 1e9);
  options.log = &log;
  const auto tokenizer = eval::find_readable_tokenizer(files, source, log);
  std::vector<std::string> unstated;
  options.files = files_of(companions, tokenizer.get(), unstated);
  const models::HfWriteStats stats =
      models::write_hf_model(files, out, source.spec, reader, options);
  const std::string_view type = flag_of(options.types ? options.types->usual : options.dtype);
  say_what_types_cost(out, stats, type, log);
  warn_of_ids(out, source, eval::read_text_files(companions, source, tokenizer.get()), log);
  for (const std::string& setting : unstated)
    log.warn(
        "{}: tokenizer.json cannot follow {}; transformers encodes some texts to other ids "
        "than training did",
        out, setting);
  for (const std::string& option : models::unstated_options(source.spec))
    log.warn("{}: config.json has no key for {}; who reads it computes with the default", out,
             option);
  return type;
}

DType step_type(const models::StoredTensors& model) {
  const bool wide = std::ranges::any_of(model.tensors(), [](const auto& tensor) {
    return tensor.component == checkpoint::Component::kModel && tensor.logical.dtype == DType::kF64;
  });
  return wide ? DType::kF64 : DType::kF32;
}

void write_root(FileSystem& files, const std::string& out, const ModelSource& source, DType dtype,
                const models::TensorReader& reader, const Companions& companions,
                std::vector<checkpoint::Blob> extra, Log& log) {
  models::ModelStep step{
      .spec = source.spec, .dtype = dtype, .extra = std::move(extra), .sections = {}};
  add_companions(companions, source.hugging_face ? source.path : "", step.extra, step.sections);
  const models::ModelStepStats stats = models::write_model_step(files, out, step, reader, 0, log);
  print_result(
      fmt::format("{}: {} tensors, {}", stats.directory, stats.tensors, format_bytes(stats.bytes)));
}

}  // namespace ashlar::cli
