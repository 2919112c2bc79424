#include "ashlar/cli/ckpt_output.h"

#include "ashlar/checkpoint/hf_write.h"
#include "ashlar/checkpoint/model_files.h"
#include "ashlar/core/text.h"
#include "ashlar/data/hf_tokenizer.h"
#include "ashlar/eval/load.h"

namespace ashlar::cli {

void add_hf_flags(CLI::App& verb, const std::shared_ptr<HfFlags>& flags) {
  verb.add_option("--layout", flags->layout, "native or legacy")->capture_default_str();
  verb.add_option("--dtype", flags->dtype, "bf16 or fp32")->capture_default_str();
  verb.add_option("--max-file-gb", flags->max_file_gb, "larger models are sharded")
      ->capture_default_str();
}

void write_hf(FileSystem& files, const std::string& out, const checkpoint::ModelSource& source,
              const checkpoint::TensorReader& reader, const HfFlags& flags, Log& log) {
  checkpoint::HfWriteOptions options;
  ASHLAR_REQUIRE(flags.layout == "native" || flags.layout == "legacy", kConfig,
                 "--layout is {}; expected native or legacy", flags.layout);
  ASHLAR_REQUIRE(flags.dtype == "bf16" || flags.dtype == "fp32", kConfig,
                 "--dtype is {}; expected bf16 or fp32", flags.dtype);
  ASHLAR_REQUIRE(flags.max_file_gb > 0, kConfig, "--max-file-gb is {}; expected a number above 0",
                 flags.max_file_gb);
  options.layout =
      flags.layout == "native" ? checkpoint::HfLayout::kNative : checkpoint::HfLayout::kLegacy;
  options.dtype = flags.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.max_file_bytes = int64_t(flags.max_file_gb * 1e9);
  options.log = &log;
  std::vector<std::string> unstated;
  if (auto bytes = checkpoint::read_tokenizer_file(files, source)) {
    data::HfTokenizer written = data::to_hf_tokenizer(*eval::read_tokenizer(files, source));
    unstated = std::move(written.unstated);
    options.files = {written.files.begin(), written.files.end()};
    options.files[checkpoint::kTokenizerFile] = std::move(*bytes);
  }
  checkpoint::write_hf_model(files, out, source.spec, nn::logical_tensors, reader, options);
  for (const std::string& setting : unstated)
    log.warn(
        "{}: tokenizer.json cannot follow {}; transformers encodes some texts to other ids "
        "than training did",
        out, setting);
  for (const std::string& option : checkpoint::unstated_options(source.spec))
    log.warn("{}: config.json has no key for {}; who reads it computes with the default", out,
             option);
}

void write_root(FileSystem& files, const std::string& out, const checkpoint::ModelSource& source,
                const checkpoint::TensorReader& reader, std::vector<checkpoint::Blob> extra,
                std::map<std::string, std::string> sections, Log& log) {
  if (auto tokenizer = checkpoint::read_tokenizer_file(files, source))
    extra.push_back({checkpoint::kTokenizerFile, std::move(*tokenizer), false});
  const checkpoint::ModelStep step{.spec = source.spec,
                                   .tensors_of = source.tensors_of,
                                   .extra = std::move(extra),
                                   .sections = std::move(sections)};
  const checkpoint::ModelStepStats stats =
      checkpoint::write_model_step(files, out, step, reader, 0, log);
  print_result(
      fmt::format("{}: {} tensors, {}", stats.directory, stats.tensors, format_bytes(stats.bytes)));
}

}  // namespace ashlar::cli
