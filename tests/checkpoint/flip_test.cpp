// Bits that flip in a committed step: every byte of COMMIT, manifest, index and headers, data at
// every so many bytes, extra files; each found by a deep check that names file and chunk.
//
//   ASHLAR_FLIPS=N   about so many flips (default 1,000; scripts/campaign flip)
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/checkpoint/writers_test_util.h"

namespace ashlar::checkpoint {
namespace {

struct Target {
  std::string path;    // in the step
  std::string kind;    // "COMMIT", "header", "data", ...
  int64_t begin, end;  // bytes
};

class Flips : public testing::Test {
 protected:
  // A TinyRun by two writers, and a tensor whose file has two chunks.
  void SetUp() override {
    shares_.fill(1);
    State& first = shares_.model[0];
    first.add("large", DType::kF32, {1100, 1000}, Role::kParameter);
    first.pieces().back().data.as<float>()[17] = 3;
    std::vector<std::unique_ptr<Checkpointer>> writers;
    for (int w = 0; w < 2; ++w) {
      CheckpointOptions options = direct();
      options.writer_rank = w;
      options.num_writers = 2;
      writers.push_back(std::make_unique<Checkpointer>(*files_, "root", options, log_));
    }
    const Id attempt = random_id();
    for (int w = 1; w >= 0; --w) {
      SaveRequest request;
      if (w == 0) request = shares_.whole.request(1);
      request.step = 1;
      request.attempt = attempt;
      request.model = shares_.model[size_t(w)].pieces();
      request.optim = shares_.optim[size_t(w)].pieces();
      writers[size_t(w)]->save(request);
    }
    ASSERT_TRUE(verify().ok());
  }

  VerifyReport verify() { return verify_step(*files_, step_, VerifyLevel::kDeep, log_); }

  std::vector<Target> targets() {
    std::vector<Target> list;
    const auto whole = [&](const std::string& path, const std::string& kind) {
      list.push_back({path, kind, 0, files_->stat(join(step_, path))->size_bytes});
    };
    whole(kCommitName, "COMMIT");
    whole(kManifestName, "manifest");
    whole(kIndexName, "index");
    const StepReader reader(*files_, step_);
    for (const IndexFile& file : reader.index().files) {
      if (file.kind != FileKind::kSafetensors) {
        whole(file.path, "extra");
        continue;
      }
      list.push_back({file.path, "header", 0, file.data_begin});
      list.push_back({file.path, "data", file.data_begin, file.size_bytes});
    }
    return list;
  }

  // Whether a flip of this bit is found, by the name of its file and the number of its chunk.
  bool found(const Target& target, int64_t byte, int bit) {
    const std::string path = join(step_, target.path);
    std::string text = read_all(*files_, path);
    flip(text, byte, bit);
    overwrite(*files_, path, text);
    const VerifyReport report = verify();
    flip(text, byte, bit);
    overwrite(*files_, path, text);
    const bool in_chunks =
        target.kind == "header" || target.kind == "data" || target.kind == "extra";
    for (const Finding& finding : report.findings)
      if (in_chunks ? finding.file == target.path && finding.chunk == byte / kChunkBytes
                    : finding.message.find(path) != std::string::npos)
        return true;
    return false;
  }
  static void flip(std::string& text, int64_t byte, int bit) {
    text[size_t(byte)] = char(text[size_t(byte)] ^ (1 << bit));
  }

  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_ = quiet_log();
  Shares shares_ = Shares::rows(2);
  const std::string step_ = join("root", step_name(1));
};

TEST_F(Flips, EachIsFoundByFileAndChunk) {
  const char* asked = std::getenv("ASHLAR_FLIPS");
  const int64_t wanted = asked ? std::atoll(asked) : 1000;
  ASSERT_GT(wanted, 0);
  const std::vector<Target> list = targets();
  int64_t metadata = 0, data = 0;  // bytes
  for (const Target& target : list)
    (target.kind == "data" ? data : metadata) += target.end - target.begin;
  // Half of the flips in metadata, at most one a byte; the rest in data.
  const int64_t metadata_step = std::max<int64_t>(1, 2 * metadata / wanted);
  const int64_t data_step =
      std::max<int64_t>(1, data / std::max<int64_t>(1, wanted - metadata / metadata_step));
  struct Count {
    int64_t made = 0, found = 0;
  };
  std::map<std::string, Count> counts;
  std::array<Count, 8> bits;
  int64_t number = 0;
  for (const Target& target : list) {
    const int64_t step = target.kind == "data" ? data_step : metadata_step;
    for (int64_t byte = target.begin + number % step; byte < target.end; byte += step) {
      const auto bit = int(number++ % 8);
      const bool ok = found(target, byte, bit);
      EXPECT_TRUE(ok) << target.path << " byte " << byte << " bit " << bit;
      for (Count* count : {&counts[target.kind], &bits[size_t(bit)]}) {
        ++count->made;
        count->found += ok;
      }
      if (!ok && HasFailure() && number > 20000) return;
    }
  }
  int64_t made = 0, all_found = 0;
  std::string parts;
  for (const auto& [kind, count] : counts) {
    made += count.made;
    all_found += count.found;
    parts += fmt::format("{}{} {}/{}", parts.empty() ? "" : ", ", kind, count.found, count.made);
  }
  for (const Count& count : bits) EXPECT_GT(count.made, 0);
  EXPECT_EQ(counts.size(), 6u);
  EXPECT_EQ(made, all_found);
  EXPECT_TRUE(verify().ok());  // all were undone
  fmt::print("flip: {} flips, {} found by file and chunk: {}\n", made, all_found, parts);
}

}  // namespace
}  // namespace ashlar::checkpoint
