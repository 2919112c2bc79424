// Contents of rows: documents as segments, targets, and padding.
#include "ashlar/core/rng.h"
#include "tests/data/loader_case.h"

namespace ashlar::data {
namespace {

TEST_F(LoaderTest, DocumentsSplitRowsIntoSegments) {
  write_counting(*files, "d", {3, 2, 4, 8});  // 17 tokens: two samples of 8
  LoaderOptions options = options_of(2, 2);
  options.shuffle = false;
  Batch batch;
  Loader({source_of(*files, "d", 8)}, options).next(batch);
  EXPECT_EQ(
      batch.segments,
      (std::vector<Segment>{{0, 3, 0, 0}, {3, 2, 0, 1}, {5, 3, 0, 2}, {8, 1, 0, 3}, {9, 7, 0, 4}}));
  EXPECT_EQ(batch.num_targets, 16);

  options.mask_document_end = true;
  Loader({source_of(*files, "d", 8)}, options).next(batch);
  EXPECT_EQ(batch.targets_BT, (std::vector<int32_t>{1, 2, -1, 4, -1, 6, 7, 8,  //
                                                    -1, 10, 11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(batch.num_targets, 13);

  options.document_reset = false;
  Loader({source_of(*files, "d", 8)}, options).next(batch);
  EXPECT_EQ(batch.segments, (std::vector<Segment>{{0, 8, 0, 0}, {8, 8, 0, 1}}));
}

// A row has the same tokens in each length: the last token that was read is a target, and what
// follows the others is padding.
TEST_F(LoaderTest, PaddingBeginsWhereTheTargetsEnd) {
  struct Row {
    std::vector<int64_t> documents;
    bool document_reset;
    std::vector<Segment> segments;  // of the row's first tokens
  };
  for (const Row& row :
       std::vector<Row>{{{6}, true, {{0, 5, 0, 0}}},
                        {{3, 3}, true, {{0, 3, 0, 0}, {3, 2, 0, 1}}},
                        {{5, 1}, true, {{0, 5, 0, 0}}},  // the second document is a target only
                        {{3, 3}, false, {{0, 5, 0, 0}}},
                        {{1}, true, {}},
                        {{1}, false, {}}}) {
    write_counting(*files, "d", row.documents);
    const int64_t inputs = row.segments.empty() ? 0 : 5;
    for (const int64_t length : {5, 6, 7, 20}) {
      LoaderOptions options = options_of(1, 1);
      options.document_reset = row.document_reset;
      Batch batch;
      Loader({source_of(*files, "d", length, Packing::kBestFit)}, options).next(batch);
      std::vector<Segment> want = row.segments;
      if (inputs < length)
        want.push_back({inputs, length - inputs, 0, std::ssize(want), /*padding=*/true});
      EXPECT_EQ(batch.segments, want) << "length " << length;
      EXPECT_EQ(batch.num_targets, inputs);
    }
    for (const char* end : {"d.idx", "d.bin"}) files->remove(end);
  }
}

TEST_F(LoaderTest, BestFitPadsWithoutLoss) {
  write_counting(*files, "d", {3, 2, 9, 4, 12});  // the last is longer than a window of 9
  LoaderOptions options = options_of(2, 2);
  options.shuffle = false;
  options.pad_id = 777;
  Loader loader({source_of(*files, "d", 8, Packing::kBestFit)}, options);
  EXPECT_EQ(loader.sources()[0].samples.num_dropped(), 1);
  Batch batch;
  loader.next(batch);
  EXPECT_EQ(batch.ids_BT, (std::vector<int32_t>{5, 6, 7, 8, 9, 10, 11, 12,  //
                                                14, 15, 16, 17, 0, 1, 2, 3}));
  EXPECT_EQ(batch.targets_BT, (std::vector<int32_t>{6, 7, 8, 9, 10, 11, 12, 13,  //
                                                    15, 16, 17, 0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.segments,
            (std::vector<Segment>{{0, 8, 0, 0}, {8, 4, 0, 1}, {12, 3, 0, 2}, {15, 1, 0, 3}}));

  write_counting(*files, "e", {4, 2});
  Loader({source_of(*files, "e", 9, Packing::kBestFit)}, options_of(1, 1)).next(batch);
  EXPECT_EQ(batch.targets_BT, (std::vector<int32_t>{1, 2, 3, 4, 5, -1, -1, -1, -1}));
  EXPECT_EQ(batch.segments, (std::vector<Segment>{{0, 4, 0, 0}, {4, 1, 0, 1}, {5, 4, 0, 2, true}}));
}

TEST_F(LoaderTest, SegmentsTileTheBatch) {
  const Rng rng(3, "tile");
  for (uint64_t trial = 0; trial < 20; ++trial) {
    const auto length = static_cast<int64_t>(2 + rng.below(trial, 30));
    for (const Packing packing : {Packing::kConcat, Packing::kBestFit}) {
      Loader loader = one(options_of(3, 3), length, packing);
      Batch batch;
      for (int i = 0; i < 5; ++i) {
        loader.next(batch);
        int64_t row = 0;
        for (size_t s = 0; s < batch.segments.size(); ++s) {
          EXPECT_EQ(batch.segments[s].row, row);
          EXPECT_EQ(batch.segments[s].document, static_cast<int64_t>(s));
          EXPECT_EQ(row / length, (row + batch.segments[s].length - 1) / length) << "one row each";
          row += batch.segments[s].length;
        }
        EXPECT_EQ(row, 3 * length);
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::data
