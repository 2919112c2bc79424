#include "ashlar/train/alike.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "ashlar/comm/agree.h"
#include "ashlar/core/checksum.h"
#include "ashlar/core/error.h"
#include "ashlar/core/file_sample.h"
#include "ashlar/core/rng.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/models/fingerprint.h"
#include "ashlar/spec/keys.h"
#include "ashlar/train/machine.h"

namespace ashlar::train {
namespace {

// The line of a text that contains character `at`.
std::string line_at(const std::string& text, size_t at) {
  const size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

// The checksum of the running program; 0 if the system does not show it.
uint64_t build_hash() {
  try {
    return sample_hash(*posix_files()->open("/proc/self/exe"));
  } catch (const Error&) {
    return 0;
  }
}

std::string text_of(FileSystem& files, const data::IndexedDataset& dataset) {
  const uint64_t sample = sample_hash(*files.open(dataset.prefix() + ".bin"));
  return fmt::format("{} with {} tokens in {} documents, fingerprint {:016x}", dataset.prefix(),
                     format_thousands(dataset.index().num_tokens()),
                     format_thousands(dataset.index().num_documents()),
                     splitmix64(dataset.fingerprint() ^ sample));
}

}  // namespace

void require_alike(comm::Group& ranks, std::span<const Fact> facts, std::string_view label,
                   std::string_view remedy) {
  std::string own;
  for (const Fact& fact : facts) own += fmt::format("{} = {}\n", fact.key, fact.value);
  const std::string leaders = comm::text_from_leader(ranks, own, label);
  const std::string leaders_host = comm::text_from_leader(ranks, host_name(), label);
  std::string problem;
  if (own != leaders) {
    const auto at = size_t(
        std::mismatch(own.begin(), own.end(), leaders.begin(), leaders.end()).first - own.begin());
    problem =
        fmt::format("rank {} on {} has {} but rank 0 on {} has {}; {}", ranks.rank(), host_name(),
                    line_at(own, at), leaders_host, line_at(leaders, at), remedy);
  }
  const std::string said = comm::first_said(ranks, problem, label);
  ASHLAR_REQUIRE(said.empty(), kConfig, "{}", said);
}

void require_one_program(comm::Group& ranks) {
  if (ranks.shares_memory()) return;
  const Fact program{"program",
                     fmt::format("ashlar {}, build {:016x}", ASHLAR_VERSION, build_hash())};
  require_alike(ranks, std::span(&program, 1), "program", "start one program on all machines");
  const Fact isa{"instruction set", std::string(kernels::name_of(kernels::isa()))};
  require_alike(ranks, std::span(&isa, 1), "instruction set",
                "ranks that round otherwise would drift apart: set ASHLAR_ISA to the lesser one "
                "for all of them");
}

void require_one_recipe(comm::Group& ranks, const Recipe& recipe) {
  std::vector<Fact> facts;
  for (const Key& key : recipe_keys()) facts.push_back({key.name, value_text(key.get(recipe))});
  require_alike(ranks, facts, "recipe", "start all ranks with one recipe and the same overrides");
}

void require_same_inputs(comm::Group& ranks, FileSystem& files, const Recipe& recipe,
                         const data::Sources& sources, const data::Tokenizer* tokenizer,
                         const std::optional<models::ModelSource>& first_weights) {
  if (ranks.shares_memory()) return;
  std::vector<Fact> facts;
  for (const data::Source& source : sources.train)
    facts.push_back({"data.train", text_of(files, *source.dataset)});
  if (!recipe.data.validation.empty())
    for (const data::Source& source : sources.validation)
      facts.push_back({"data.validation", text_of(files, *source.dataset)});
  const std::string& file = recipe.data.tokenizer;
  facts.push_back(
      {file.empty() ? "data.train" : "data.tokenizer",
       tokenizer ? fmt::format("{}{} tokenizer of {} ids, fingerprint {:016x}",
                               file.empty() ? "a " : file + ", a ", tokenizer->kind(),
                               format_thousands(tokenizer->vocab_size()), tokenizer->fingerprint())
                 : "no tokenizer"});
  if (first_weights)
    facts.push_back({"init.model", fmt::format("{} ({}), fingerprint {:016x}",
                                               first_weights->resolved, first_weights->origin,
                                               models::model_fingerprint(files, *first_weights))});
  require_alike(ranks, facts, "inputs",
                "give all machines the same files under that path, or a directory that they share");
}

bool is_first_of_copy(comm::Group& ranks, const data::Sources& sources) {
  if (ranks.shares_memory()) return ranks.rank() == 0;
  std::string place = machine_id();
  for (const auto* part : {&sources.train, &sources.validation})
    for (const data::Source& source : *part) {
      std::error_code ignored;
      const auto file = std::filesystem::weakly_canonical(source.prefix() + ".bin", ignored);
      place += fmt::format("\n{}", file.string());
    }
  return is_first_of(ranks, fmt::format("{:016x}", xxh3_64(std::as_bytes(std::span(place)))),
                     "copies of the data");
}

}  // namespace ashlar::train
