// Runs of the tiny recipe on documents of 1 to 60 tokens.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ashlar/core/text.h"
#include "ashlar/spec/recipe.h"
#include "tests/data/support.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::train {

using ashlar::testing_support::TemporaryDirectory;

inline std::vector<int64_t> document_lengths() {  // 1 to 60
  std::vector<int64_t> lengths;
  for (int64_t d = 0; d < 400; ++d) lengths.push_back(1 + d * 7 % 60);
  return lengths;
}

// A run of the tiny recipe; the overrides may name other data.
inline Recipe tiny_run(FileSystem& files, const TemporaryDirectory& root,
                       std::vector<std::string> overrides) {
  std::vector<std::vector<int32_t>> documents;
  for (const int64_t length : document_lengths())
    documents.emplace_back(size_t(length), int32_t(documents.size() % 256));
  const std::string prefix = root / "text";
  data::write_documents(files, prefix, documents, 256);
  overrides.insert(overrides.begin(), {"data.train=" + prefix, "data.tokenizer=byte",
                                       "train.run_dir=" + (root / "run").string()});
  return load_recipe(ASHLAR_FIXTURES "/recipes/tiny.toml", overrides);
}

inline std::vector<nlohmann::json> rows_of(FileSystem& files, const TemporaryDirectory& root) {
  std::vector<nlohmann::json> rows;
  for (const std::string& line : split(read_text(files, root / "run/metrics.jsonl"), '\n'))
    if (!line.empty()) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

}  // namespace ashlar::train
