#include "ashlar/models/tuned.h"

#include <algorithm>
#include <functional>

#include "ashlar/spec/tune_spec.h"
#include "ashlar/tensor/box_order.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::models {
namespace {

constexpr std::string_view kLoraA = ".lora_A.weight";

std::vector<double> whole_tensor(const StoredTensors& step, const LogicalTensor& logical) {
  std::vector<double> values(size_t(logical.global_shape.numel()));
  Tensor data = tensor_over(std::span(values));
  data.shape = logical.global_shape;
  LogicalTensor wanted = logical;
  wanted.dtype = DType::kF64;
  const Piece piece{wanted, Box::whole(logical.global_shape), data};
  step.read(std::span(&piece, 1));
  return values;
}

}  // namespace

TunedTensors::TunedTensors(std::unique_ptr<const StoredTensors> base,
                           std::unique_ptr<const StoredTensors> step, double scale)
    : base_(std::move(base)), step_(std::move(step)), scale_(scale) {
  read_adapters();
}

void TunedTensors::read_adapters() {
  for (const StoredTensor& tensor : step_->tensors()) {
    const std::string& name = tensor.logical.name;
    if (tensor.component != checkpoint::Component::kModel || !name.ends_with(kLoraA)) continue;
    const std::string weight = name.substr(0, name.size() - kLoraA.size()) + ".weight";
    const StoredTensor* b = step_->find(lora_b_name(weight));
    const StoredTensor* w = base_->find(weight);
    const Shape& a_shape = tensor.logical.global_shape;
    const bool fits = b && w && a_shape.ndim() == 2 &&
                      w->logical.global_shape == Shape{b->logical.global_shape[0], a_shape[1]} &&
                      b->logical.global_shape == Shape{w->logical.global_shape[0], a_shape[0]};
    ASHLAR_REQUIRE(fits, kCorrupt, "{}: {} has no other half, or {} in {} is of another shape",
                   step_->directory(), name, weight, base_->directory());
    adapters_[weight] = {a_shape[0], w->logical.global_shape[0], a_shape[1],
                         whole_tensor(*step_, tensor.logical), whole_tensor(*step_, b->logical)};
  }
}

std::string TunedTensors::trained_whole() const {
  for (const StoredTensor& tensor : base_->tensors())
    if (tensor.logical.role == Role::kParameter && step_->find(tensor.logical.name))
      return tensor.logical.name;
  return "";
}

void TunedTensors::read(std::span<const Piece> pieces) const {
  std::vector<Piece> trained, others;
  for (const Piece& piece : pieces) {
    if (piece.data.empty()) continue;
    (step_->find(piece.logical.name) ? trained : others).push_back(piece);
  }
  // In place, a piece in BF16 would be rounded before the sum and after it.
  const auto adapted_bf16 = [&](const Piece& piece) {
    return piece.data.dtype == DType::kBF16 && adapters_.contains(piece.logical.name);
  };
  const auto narrow = std::ranges::stable_partition(others, std::not_fn(adapted_bf16));
  const auto direct = std::span(others).first(others.size() - narrow.size());
  if (!trained.empty()) step_->read(trained);
  if (!direct.empty()) base_->read(direct);
  for (const Piece& piece : direct) {
    const auto adapter = adapters_.find(piece.logical.name);
    if (adapter != adapters_.end()) add_product(adapter->second, piece);
  }
  for (const Piece& piece : narrow) read_narrow(adapters_.at(piece.logical.name), piece);
}

// Reads in F64, adds, and rounds once.
void TunedTensors::read_narrow(const AdapterValues& adapter, const Piece& piece) const {
  std::vector<double> values(size_t(piece.data.numel()));
  Piece wide = piece;
  wide.logical.dtype = DType::kF64;
  wide.data = tensor_over(std::span(values));
  base_->read(std::span(&wide, 1));
  add_product(adapter, wide);
  std::vector<std::byte> rounded(size_t(piece.data.bytes()));
  copy_convert(wide.data,
               {rounded.data(), piece.data.dtype, Device::kCpu, Shape{piece.data.numel()}});
  copy_from_host(piece.data, 0, rounded);
  finish_copies_from_host();
}

// Row by row of the box.
void TunedTensors::add_product(const AdapterValues& adapter, const Piece& piece) const {
  const Box& box = piece.box;
  ASHLAR_ASSERT(box.offset.ndim() == 2 && piece.data.device != Device::kMeta);
  const int64_t rows = box.length[0], cols = box.length[1];
  std::vector<double> row(static_cast<size_t>(cols));
  const Tensor sum = tensor_over(std::span(row));
  for (int64_t i = 0; i < rows; ++i) {
    const Tensor there = piece.data.view({rows * cols}).slice(i * cols, (i + 1) * cols);
    std::vector<std::byte> bytes(size_t(there.bytes()));
    copy_to_host(there, 0, bytes);
    const Tensor here{bytes.data(), there.dtype, Device::kCpu, there.shape};
    copy_convert(here, sum);
    for (int64_t k = 0; k < adapter.rank; ++k) {
      const double factor = scale_ * adapter.b[size_t((box.offset[0] + i) * adapter.rank + k)];
      const double* a = adapter.a.data() + k * adapter.cols + box.offset[1];
      for (int64_t j = 0; j < cols; ++j) row[size_t(j)] += factor * a[j];
    }
    copy_convert(sum, here);
    copy_from_host(there, 0, bytes);
  }
  finish_copies_from_host();
}

DType TunedTensors::type_of(const std::string& name) const {
  if (step_->find(name)) return step_->type_of(name);
  const DType base = base_->type_of(name);
  if (!adapters_.contains(name)) return base;
  return base == DType::kF64 ? base : DType::kF32;
}

BytePosition TunedTensors::position_of(const std::string& name) const {
  return step_->find(name) ? step_->position_of(name) : base_->position_of(name);
}

}  // namespace ashlar::models
