// Loading: any boxes from any boxes, strictness, casts, chunk borders, tied tensors.
#include <gtest/gtest.h>

#include "ashlar/checkpoint/format/boxes.h"
#include "tests/checkpoint/random_boxes.h"
#include "tests/checkpoint/state_test_util.h"

namespace ashlar::checkpoint {
namespace {

// The value of element (tensor, global index).
int32_t value_of(size_t tensor, int64_t global) {
  return int32_t(tensor * 1000003 + size_t(global));
}

template <typename F>
void for_each_value(const Piece& piece, F&& body) {
  const Shape& shape = piece.logical.global_shape;
  for (int64_t i = 0; i < piece.box.length.numel(); ++i) {
    int64_t rest = i, global = 0, stride = 1;
    for (int d = shape.ndim() - 1; d >= 0; --d) {
      global += (piece.box.offset[d] + rest % piece.box.length[d]) * stride;
      rest /= piece.box.length[d];
      stride *= shape[d];
    }
    body(piece.data.as<int32_t>()[i], global);
  }
}

TEST(Load, AnyBoxesFromAnyBoxes) {
  const auto files = memory_files();
  Log log = quiet_log();
  Draw draw(3, "load");
  Checkpointer checkpoints(*files, "root", direct(1), log);
  const std::vector<Shape> shapes{{},      {1},       {0, 5},       {17},
                                  {9, 14}, {8, 3, 5}, {3, 4, 2, 6}, {2, 1, 7, 1, 3}};
  for (int64_t round = 1; round <= 120; ++round) {
    State saved, loaded;
    for (size_t t = 0; t < shapes.size(); ++t) {
      const std::string name = fmt::format("t{}", t);
      for (const Box& box : random_tiling(shapes[t], draw.below(7), draw))
        saved.add_box(name, DType::kI32, shapes[t], box, Role::kParameter);
      for (const Box& box : random_tiling(shapes[t], draw.below(7), draw))
        loaded.add_box(name, DType::kI32, shapes[t], box, Role::kParameter);
    }
    for (const Piece& piece : saved.pieces()) {
      const size_t tensor = size_t(piece.logical.name[1] - '0');
      for_each_value(piece,
                     [&](int32_t& value, int64_t global) { value = value_of(tensor, global); });
    }
    SaveRequest request;
    request.step = round;
    request.model = saved.pieces();
    checkpoints.save(request);
    checkpoints.open_newest().load(loaded.pieces());
    for (const Piece& piece : loaded.pieces()) {
      const size_t tensor = size_t(piece.logical.name[1] - '0');
      for_each_value(piece, [&](int32_t& value, int64_t global) {
        ASSERT_EQ(value, value_of(tensor, global)) << piece.logical.name << to_text(piece.box);
      });
    }
    // Overflow files hold the second, third ... box of a tensor; each is a step of its own to
    // verify.
    ASSERT_TRUE(verify_step(*files, checkpoints.newest()->directory, VerifyLevel::kDeep, log).ok());
  }
}

TEST(Load, TensorsOverManyChunks) {
  const auto files = memory_files();
  Log log = quiet_log();
  State saved, loaded;
  saved.add("a", DType::kI32, {1300, 1021}, Role::kParameter);  // 5.3 MB
  saved.add("b", DType::kI32, {3, 700001}, Role::kParameter);   // 8.4 MB
  saved.fill(1);
  Checkpointer checkpoints(*files, "root", direct(), log);
  SaveRequest request;
  request.step = 1;
  request.model = saved.pieces();
  checkpoints.save(request);
  const StepReader reader = checkpoints.open_newest();
  EXPECT_EQ(reader.index().files[0].chunk_crcs.size(), 4u);
  for (int64_t column = 0; column < 700001; column += 350001) {
    const int64_t width = std::min<int64_t>(350001, 700001 - column);
    loaded.add_box("b", DType::kI32, {3, 700001}, {{0, column}, {3, width}}, Role::kParameter);
  }
  LoadOptions options;
  options.allow_unexpected = {"a"};
  const LoadReport report = reader.load(loaded.pieces(), options);
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"a"});
  EXPECT_EQ(report.tensors, 1);
  const int32_t* expected = saved.pieces()[1].data.as<int32_t>();
  for (const Piece& piece : loaded.pieces())
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t width = piece.box.length[1];
      EXPECT_EQ(std::memcmp(piece.data.as<int32_t>() + row * width,
                            expected + row * 700001 + piece.box.offset[1], size_t(width) * 4),
                0);
    }
}

class Strict : public testing::Test {
 protected:
  void SetUp() override {
    run_.fill(1);
    Checkpointer checkpoints(*files_, "root", direct(), log_);
    checkpoints.save(run_.request(1));
  }
  std::string load_error(std::span<const Piece> pieces, const LoadOptions& options = {}) {
    const StepReader reader = open_checkpoint(*files_, "root", log_);
    return message_of(ErrorKind::kConfig, [&] { reader.load(pieces, options); });
  }
  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_ = quiet_log();
  TinyRun run_;
};

TEST_F(Strict, AllDifferencesAreReportedAndNothingIsWritten) {
  TinyRun wanted;
  wanted.clear();
  std::vector<Piece> pieces = wanted.all();
  pieces[0].logical.name = "embed.other";
  pieces[1].logical.global_shape = {6, 3};
  pieces[2].logical.dtype = pieces[2].data.dtype = DType::kF16;
  const std::string message = load_error(pieces);
  EXPECT_NE(message.find("missing there: embed.other; not wanted here: embed.weight; different: "
                         "layers.0.up.weight is [5, 3] but [6, 3] is wanted, layers.0.bias is BF16 "
                         "but F16 is wanted"),
            message.npos)
      << message;
  TinyRun untouched;
  untouched.clear();
  EXPECT_EQ(wanted.bytes(), untouched.bytes());
}

TEST_F(Strict, RelaxationsAreExplicitAndReported) {
  State wanted;
  wanted.add("embed.weight", DType::kF32, {7, 16}, Role::kParameter);
  wanted.add("new.weight", DType::kF32, {2}, Role::kParameter);
  wanted.pieces()[1].data.as<float>()[0] = 5;
  LoadOptions options;
  options.components = {Component::kModel};
  options.allow_missing = {"new.*"};
  EXPECT_NE(load_error(wanted.pieces(), options).find("not wanted here: layers.0.up.weight"),
            std::string::npos);
  options.allow_unexpected = {"*.bias", "layers.0.*t*", "layers.0.none"};
  const LoadReport report = open_checkpoint(*files_, "root", log_).load(wanted.pieces(), options);
  EXPECT_EQ(report.missing, std::vector<std::string>{"new.weight"});
  EXPECT_EQ(report.unexpected.size(), 4u);
  EXPECT_EQ(wanted.pieces()[1].data.as<float>()[0], 5);
  EXPECT_EQ(std::memcmp(wanted.pieces()[0].data.data, run_.model.pieces()[0].data.data, 7 * 16 * 4),
            0);
}

// A part of a larger work says nothing about what else is stored, but what it names must be there.
TEST_F(Strict, OnlyTheseLooksAtNothingElse) {
  TinyRun wanted;
  wanted.clear();
  std::vector<Piece> pieces = wanted.all();
  LoadOptions options;
  options.only_these = true;
  const StepReader reader = open_checkpoint(*files_, "root", log_);
  for (const Piece& piece : pieces) {
    const LoadReport report = reader.load(std::span(&piece, 1), options);
    EXPECT_EQ(report.tensors, 1);
    EXPECT_TRUE(report.unexpected.empty());
  }
  TinyRun saved;
  saved.fill(1);
  const std::vector<Piece> expected = saved.all();
  for (size_t i = 0; i < pieces.size(); ++i)
    EXPECT_EQ(
        std::memcmp(pieces[i].data.data, expected[i].data.data, size_t(pieces[i].data.bytes())), 0)
        << pieces[i].logical.name;
  pieces[0].logical.name = "embed.other";
  const std::string message = load_error(std::span(pieces).first(1), options);
  EXPECT_NE(message.find("missing there: embed.other"), message.npos) << message;
  EXPECT_EQ(message.find("not wanted here"), message.npos) << message;
}

// A block that was lent to somebody who needs less stays as large as it is.
TEST(ReadMemoryOfLoads, IsNoMoreThanWasNeededAtOneTime) {
  ReadMemory memory;
  ReadMemory::Block large = memory.take(1 << 20);
  const std::byte* place = large.memory.get();
  memory.give_back(std::move(large));
  for (const int64_t bytes : {1 << 12, 1 << 20, 1 << 16, 1 << 20}) {
    ReadMemory::Block block = memory.take(bytes);
    EXPECT_EQ(block.memory.get(), place);
    EXPECT_EQ(block.bytes, 1 << 20);
    memory.give_back(std::move(block));
  }
}

TEST_F(Strict, ReadersShareMemoryIfTheyAreToldTo) {
  StepReader a = open_checkpoint(*files_, "root", log_);
  const StepReader b = open_checkpoint(*files_, "root", log_);
  EXPECT_NE(&a.read_memory(), &b.read_memory());
  a.share_memory_with(b);
  EXPECT_EQ(&a.read_memory(), &b.read_memory());
  Alone ranks;
  const StepReader c(*files_, a.directory(), &ranks), d(*files_, a.directory(), &ranks);
  EXPECT_EQ(&c.read_memory(), &d.read_memory());
}

TEST_F(Strict, CastsOnlyWhereAsked) {
  State wanted;
  wanted.add("embed.weight", DType::kBF16, {7, 16}, Role::kParameter);
  LoadOptions options;
  options.allow_unexpected = {"*"};
  EXPECT_NE(load_error(wanted.pieces(), options).find("embed.weight is F32 but BF16 is wanted"),
            std::string::npos);
  options.cast = {{DType::kF32, DType::kBF16}};
  const LoadReport report = open_checkpoint(*files_, "root", log_).load(wanted.pieces(), options);
  EXPECT_EQ(report.cast, std::vector<std::string>{"embed.weight"});
  for (int64_t i = 0; i < 7 * 16; ++i)
    EXPECT_EQ(wanted.pieces()[0].data.as<bf16>()[i].bits,
              bf16(run_.model.pieces()[0].data.as<float>()[i]).bits);
}

TEST_F(Strict, TiedNamesLoadTheStoredTensor) {
  State wanted;
  wanted.add("lm_head.weight", DType::kF32, {7, 16}, Role::kParameter);
  LoadOptions options;
  options.allow_unexpected = {"*"};
  const StepReader reader = open_checkpoint(*files_, "root", log_);
  EXPECT_EQ(reader.load(wanted.pieces(), options).unexpected.size(),
            9u);  // the alias is not counted
  EXPECT_EQ(std::memcmp(wanted.pieces()[0].data.data, run_.model.pieces()[0].data.data, 7 * 16 * 4),
            0);
  EXPECT_EQ(reader.manifest().aliases.at("lm_head.weight"), "embed.weight");
  const IndexTensor* state = reader.find("optim.exp_avg.embed.weight");
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(reader.index().tensors[state->parent].logical.name, "embed.weight");
}

TEST_F(Strict, ExtraFilesAndManifestSectionsComeBack) {
  const StepReader reader = open_checkpoint(*files_, "root", log_);
  EXPECT_TRUE(reader.has_blob("tokenizer.model"));
  EXPECT_FALSE(reader.has_blob("recipe.toml"));
  EXPECT_EQ(reader.read_blob("tokenizer.model"), std::string("\x00\x01\xff blob", 8));
  EXPECT_EQ(reader.read_blob("empty.bin"), "");
  EXPECT_EQ(reader.manifest().sections.at("trainer"), "{\"tokens\":12}");
  EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { reader.read_blob("recipe.toml"); })
                .find("no extra file 'recipe.toml'"),
            std::string::npos);
}

TEST(Patterns, StarsMatchAnything) {
  EXPECT_TRUE(matches("abc", "abc"));
  EXPECT_TRUE(matches("abc", "*"));
  EXPECT_TRUE(matches("", "*"));
  EXPECT_TRUE(matches("layers.3.up.weight", "layers.*.weight"));
  EXPECT_TRUE(matches("aXbXc", "a*b*c"));
  EXPECT_FALSE(matches("abc", "ab"));
  EXPECT_FALSE(matches("abc", "*b"));
  EXPECT_FALSE(matches("ab", "abc"));
}

}  // namespace
}  // namespace ashlar::checkpoint
