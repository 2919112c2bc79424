// Loaders over two small datasets, and the rows that they give.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "ashlar/data/loader.h"
#include "tests/data/support.h"

namespace ashlar::data {

inline LoaderOptions options_of(int64_t micro_batch, int64_t global_batch,
                                int64_t num_streams = 0) {
  LoaderOptions options;
  options.micro_batch = micro_batch;
  options.global_batch = global_batch;
  options.num_streams = num_streams;
  options.vocab_size = kTestVocab;
  return options;
}

// Two datasets, 0 with ids from 0 and 1 with ids from 500,000.
class LoaderTest : public testing::Test {
 protected:
  LoaderTest() {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 40; ++i) lengths.push_back(1 + (i * 7) % 23);
    write_counting(*files, "a", lengths);
    write_counting(*files, "b", {50, 3, 31}, 500'000);
  }
  Loader blend(LoaderOptions options, Packing packing = Packing::kConcat) {
    return Loader({source_of(*files, "a", 8, packing, 3), source_of(*files, "b", 8, packing, 1)},
                  options);
  }
  Loader one(LoaderOptions options, int64_t length = 8, Packing packing = Packing::kConcat) {
    return Loader({source_of(*files, "a", length, packing)}, options);
  }
  std::unique_ptr<FileSystem> files = memory_files();
};

struct Row {
  int64_t sample;
  int32_t dataset;
  std::vector<int32_t> ids, targets;
  friend auto operator<=>(const Row&, const Row&) = default;
};

inline std::vector<Row> rows_of(const Batch& batch) {
  std::vector<Row> rows;
  for (int64_t b = 0; b < batch.num_rows; ++b) {
    const auto begin = b * batch.length, end = begin + batch.length;
    rows.push_back({batch.samples_B[static_cast<size_t>(b)],
                    batch.datasets_B[static_cast<size_t>(b)],
                    {batch.ids_BT.begin() + begin, batch.ids_BT.begin() + end},
                    {batch.targets_BT.begin() + begin, batch.targets_BT.begin() + end}});
  }
  return rows;
}

inline std::vector<Row> take(Loader& loader, int64_t num_rows) {
  std::vector<Row> rows;
  for (Batch batch; static_cast<int64_t>(rows.size()) < num_rows;) {
    loader.next(batch);
    for (Row& row : rows_of(batch)) rows.push_back(std::move(row));
  }
  return rows;
}

inline std::vector<Row> sorted(std::vector<Row> rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace ashlar::data
