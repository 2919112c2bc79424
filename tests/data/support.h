// Datasets in memory for tests.  Token t of a dataset has the id t unless a test says otherwise, so
// that an id tells where it was read.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/data/indexed.h"
#include "ashlar/data/loader.h"
#include "tests/support/errors.h"

namespace ashlar::data {

using testing_support::message_of;

inline const std::string kVectors = ASHLAR_FIXTURES "/vectors/";
inline constexpr int64_t kTestVocab = 1 << 20;

inline void write_documents(FileSystem& files, const std::string& prefix,
                            const std::vector<std::vector<int32_t>>& documents,
                            int64_t vocab_size = kTestVocab) {
  Outputs outputs(files, {prefix + ".bin", prefix + ".idx"}, {}, Existing::kReplace);
  IndexedWriter writer(outputs, prefix, token_type_for(vocab_size));
  for (const auto& document : documents) writer.add(document);
  writer.seal();
  outputs.publish();
}

// Ids first_id, first_id + 1, ... cut into documents of the given lengths.
inline void write_counting(FileSystem& files, const std::string& prefix,
                           const std::vector<int64_t>& lengths, int32_t first_id = 0) {
  std::vector<std::vector<int32_t>> documents;
  for (const int64_t length : lengths) {
    std::vector<int32_t>& document = documents.emplace_back(static_cast<size_t>(length));
    std::iota(document.begin(), document.end(), first_id);
    first_id += static_cast<int32_t>(length);
  }
  write_documents(files, prefix, documents);
}

inline Source source_of(FileSystem& files, const std::string& prefix, int64_t sequence_length,
                        Packing packing = Packing::kConcat, double weight = 1) {
  Source source = open_source(files, prefix, sequence_length, packing, kTestVocab, "--data");
  source.weight = weight;
  return source;
}

inline void write_file(FileSystem& files, const std::string& path, std::string_view content) {
  write_text(files, path, content);
}

}  // namespace ashlar::data
