#include "ashlar/models/average.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/models/slabs.h"

namespace ashlar::models {
namespace {

// "slabs/2/mixer/num_query_heads is 8 but 16": the first value in which two models differ.
std::string first_difference(const ModelSpec& a, const ModelSpec& b) {
  const auto flat = [](const ModelSpec& spec) { return Json::parse(to_json(spec)).flatten(); };
  const Json x = flat(a), y = flat(b);
  const auto shown_at = [](const Json& json, const std::string& key) {
    return json.contains(key) ? shown(json.at(key)) : std::string("absent");
  };
  for (const Json* json : {&x, &y})
    for (const auto& [key, value] : json->items())
      if (shown_at(x, key) != shown_at(y, key))
        return fmt::format("{} is {} but {}", key.substr(1), shown_at(x, key), shown_at(y, key));
  return {};
}

}  // namespace

void require_same_model(std::span<const ModelSource> sources) {
  for (const ModelSource& source : sources)
    ASHLAR_REQUIRE(source.spec == sources[0].spec, kConfig,
                   "{} and {} are different models: {}; expected steps of one model",
                   sources[0].path, source.path, first_difference(sources[0].spec, source.spec));
}

AveragedTensors::AveragedTensors(std::vector<StoredTensors> models, std::vector<double> weights)
    : models_(std::move(models)), weights_(std::move(weights)) {
  ASHLAR_ASSERT(!models_.empty());
  for (StoredTensors& model : models_)
    for (const StoredTensors& other : models_) model.share_memory_with(other);
  ASHLAR_REQUIRE(weights_.size() == models_.size(), kConfig,
                 "{} weights for {} models; expected one for each", weights_.size(),
                 models_.size());
  for (const double weight : weights_) {
    ASHLAR_REQUIRE(std::isfinite(weight), kConfig, "a weight is {}; expected finite numbers",
                   weight);
    sum_ += weight;
  }
  ASHLAR_REQUIRE(std::isfinite(sum_) && sum_ != 0, kConfig,
                 "the sum of the weights is {}; expected a finite number other than 0, by which "
                 "the sum of the models is divided",
                 sum_);
}

void AveragedTensors::read(std::span<const Piece> pieces) const {
  if (models_.size() == 1) return models_[0].read(pieces);  // no bit changes
  int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.data.numel();
  // The memory is kept for the thread's next slab, since fresh memory would cost as much as
  // reading, and has room for the largest slab, since growing would leave holes.
  thread_local std::vector<double> sum, term;
  sum.reserve(kSlabElements);
  term.reserve(kSlabElements);
  sum.resize(std::max(sum.size(), size_t(count)));
  term.resize(sum.size());
  std::vector<Piece> terms(pieces.begin(), pieces.end());
  auto* at = reinterpret_cast<std::byte*>(term.data());
  for (Piece& piece : terms) {
    piece.data = {at, DType::kF64, Device::kCpu, piece.box.length};
    at += piece.data.bytes();
  }
  for (size_t n = 0; n < models_.size(); ++n) {
    models_[n].read(terms);
    // The first is not added to 0, which would turn -0 into 0.
    if (n == 0)
      for (int64_t i = 0; i < count; ++i) sum[size_t(i)] = weights_[n] * term[size_t(i)];
    else
      for (int64_t i = 0; i < count; ++i) sum[size_t(i)] += weights_[n] * term[size_t(i)];
  }
  for (int64_t i = 0; i < count; ++i) term[size_t(i)] = sum[size_t(i)] / sum_;
  for (size_t n = 0; n < terms.size(); ++n) copy_convert(terms[n].data, pieces[n].data);
}

DType AveragedTensors::type_of(const std::string& name) const {
  return models_.size() == 1 ? models_[0].type_of(name) : DType::kF64;
}

BytePosition AveragedTensors::position_of(const std::string& name) const {
  return models_[0].position_of(name);
}

}  // namespace ashlar::models
