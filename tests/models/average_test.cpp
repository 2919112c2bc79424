// Averages of models against the formula.
#include "ashlar/models/average.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/models/write_step.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/models/hf_test_util.h"
#include "tests/support/errors.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::models {
namespace {

using testing_support::message_of;

class AverageTest : public testing::Test {
 protected:
  // A root of this model.
  ModelSource add(const std::string& root, const Values& values, const ModelKeys& keys) {
    write_model_step(*files_, root, {.spec = model_of(keys)}, TensorsInMemory(values.pieces), 1,
                     log_);
    return find_model(*files_, root, log_);
  }
  ModelSource add(const std::string& root, const Values& values) {
    return add(root, values, odd_spec());
  }
  AveragedTensors average(const std::vector<ModelSource>& sources, std::vector<double> weights) {
    std::vector<StoredTensors> models;
    for (const ModelSource& source : sources) models.emplace_back(*files_, source);
    return AveragedTensors(std::move(models), std::move(weights));
  }
  static Values read(const TensorReader& reader) {
    Values values;
    for (const LogicalTensor& logical : nn::logical_tensors(model_of(odd_spec()), DType::kF32))
      values.add(logical, Box::whole(logical.global_shape), DType::kF32);
    reader.read(values.pieces);
    return values;
  }

  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_ = checkpoint::quiet_log();
};

TEST_F(AverageTest, IsTheFormulaInTheOrderOfTheModels) {
  std::deque<Values> values;  // whose pieces point into them
  std::vector<ModelSource> sources;
  for (uint64_t n = 0; n < 3; ++n) {
    values.push_back(random_values(odd_spec(), DType::kF32, n + 1));
    sources.push_back(add(fmt::format("root{}", n), values.back()));
  }
  const std::vector<double> w{0.3, 1.7, -0.25};
  const Values found = read(average(sources, w));
  for (size_t t = 0; t < found.pieces.size(); ++t)
    for (int64_t i = 0; i < found.pieces[t].data.numel(); ++i) {
      const auto x = [&](size_t n) { return double(values[n].pieces[t].data.as<float>()[i]); };
      const double sum = (w[0] * x(0) + w[1] * x(1)) + w[2] * x(2);
      ASSERT_EQ(found.pieces[t].data.as<float>()[i], float(sum / ((w[0] + w[1]) + w[2])));
    }
}

// Every bit: -0, infinities and NaN with their payloads too.
TEST_F(AverageTest, OfOneModelIsThatModel) {
  Values values = random_values(odd_spec(), DType::kF32);
  auto* first = reinterpret_cast<uint32_t*>(values.memory[0].data());
  first[0] = 0x80000000;
  first[1] = 0x7f800000;
  first[2] = 0x7f800001;
  first[3] = 0xffc12345;
  EXPECT_EQ(read(average({add("root", values)}, {0.7})).memory, values.memory);
}

TEST_F(AverageTest, OfEqualModelsIsThatModel) {
  Values values = random_values(odd_spec(), DType::kF32);
  values.pieces[0].data.as<float>()[0] = -0.0f;
  values.pieces[0].data.as<float>()[1] = 3.4e38f;
  const ModelSource source = add("root", values);
  EXPECT_EQ(read(average({source, source, source}, {1, 1, 1})).memory, values.memory);
  EXPECT_EQ(read(average({source, source}, {0.1, 0.2})).memory, values.memory);
}

TEST_F(AverageTest, OfAStepAndAHuggingFaceDirectory) {
  const Values a = random_values(odd_spec(), DType::kF32, 1),
               b = random_values(odd_spec(), DType::kF32, 2);
  const ModelSource step = add("root", a), other = add("other", b);
  write_hf_model(*files_, "hf", model_of(odd_spec()), b.pieces, {HfLayout::kLegacy, DType::kF32});
  const ModelSource hf = find_model(*files_, "hf", log_);
  EXPECT_EQ(read(average({step, hf}, {1, 3})).memory, read(average({step, other}, {1, 3})).memory);
}

TEST_F(AverageTest, RefusesOtherModelsByWhatDiffers) {
  ModelKeys wider = odd_spec();
  wider.moe_intermediate_size = 6;
  const std::vector<ModelSource> sources{add("a", random_values(odd_spec(), DType::kF32)),
                                         add("b", random_values(wider, DType::kF32), wider)};
  const std::string message = message_of(ErrorKind::kConfig, [&] { require_same_model(sources); });
  EXPECT_NE(message.find("a and b are different models: blocks/0/feed_forward/"), std::string::npos)
      << message;
  EXPECT_NE(message.find(" is 5 but 6;"), std::string::npos) << message;
  require_same_model(std::span(sources).first(1));
}

TEST_F(AverageTest, RefusesWeightsThatMakeNoAverage) {
  const ModelSource source = add("root", random_values(odd_spec(), DType::kF32));
  const auto refused = [&](std::vector<double> weights, const std::string& text) {
    const std::string message = message_of(ErrorKind::kConfig, [&] {
      average({source, source}, std::move(weights));
    });
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  refused({1}, "1 weights for 2 models; expected one for each");
  refused({1, NAN}, "a weight is nan; expected finite numbers");
  refused({1, INFINITY}, "a weight is inf; expected finite numbers");
  refused({1, -1}, "the sum of the weights is 0");
  refused({1e308, 1e308}, "the sum of the weights is inf");
}

}  // namespace
}  // namespace ashlar::models
