#include "ashlar/models/tuned.h"

#include <algorithm>
#include <functional>

#include "ashlar/spec/tune_spec.h"
#include "ashlar/tensor/box_order.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::models {
namespace {

constexpr std::string_view kLoraA = ".lora_A.weight";

// A tensor, or of a stack matrices [first, first + count).
std::vector<double> values_in(const StoredTensors& step, const LogicalTensor& logical,
                              int64_t first, int64_t count) {
  Box box = Box::whole(logical.global_shape);
  if (box.offset.ndim() == 3) box.offset[0] = first, box.length[0] = count;
  std::vector<double> values(size_t(box.length.numel()));
  Tensor data = tensor_over(std::span(values));
  data.shape = box.length;
  LogicalTensor wanted = logical;
  wanted.dtype = DType::kF64;
  const Piece piece{wanted, box, data};
  step.read(std::span(&piece, 1));
  return values;
}

// Whether W [N, K], A [r, K] and B [N, r] belong together, all three perhaps in stacks.
bool fit(const Shape& w, const Shape& a, const Shape& b) {
  const int n = a.ndim();
  if (n < 2 || n > 3 || w.ndim() != n || b.ndim() != n) return false;
  const bool same_experts = n == 2 || (w[0] == a[0] && w[0] == b[0]);
  return same_experts && w[n - 2] == b[n - 2] && w[n - 1] == a[n - 1] && a[n - 2] == b[n - 1];
}

}  // namespace

TunedTensors::TunedTensors(std::unique_ptr<const StoredTensors> base,
                           std::unique_ptr<const StoredTensors> step, double scale)
    : base_(std::move(base)), step_(std::move(step)), scale_(scale) {
  find_adapters();
}

void TunedTensors::find_adapters() {
  for (const StoredTensor& tensor : step_->tensors()) {
    const std::string& name = tensor.logical.name;
    if (tensor.component != checkpoint::Component::kModel || !name.ends_with(kLoraA)) continue;
    const std::string layer = name.substr(0, name.size() - kLoraA.size());
    const bool stack = tensor.logical.global_shape.ndim() == 3;
    const std::string weight = stack ? layer : layer + ".weight";
    const StoredTensor* b = step_->find(lora_b_name(weight));
    const StoredTensor* w = base_->find(weight);
    const Shape& a_shape = tensor.logical.global_shape;
    const bool fits = b && w && fit(w->logical.global_shape, a_shape, b->logical.global_shape);
    ASHLAR_REQUIRE(fits, kCorrupt, "{}: {} has no other half, or {} in {} is of another shape",
                   step_->directory(), name, weight, base_->directory());
    const int dim = stack ? 1 : 0;  // of the rows
    adapters_[weight] = {a_shape[dim], w->logical.global_shape[dim], a_shape[dim + 1], stack};
  }
}

AdapterValues TunedTensors::values_of(const std::string& weight, int64_t first,
                                      int64_t count) const {
  return {values_in(*step_, step_->find(lora_a_name(weight))->logical, first, count),
          values_in(*step_, step_->find(lora_b_name(weight))->logical, first, count)};
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
  for (const Piece& piece : direct)
    if (adapters_.contains(piece.logical.name)) add_product(piece);
  for (const Piece& piece : narrow) read_narrow(piece);
}

// Reads in F64, adds, and rounds once.
void TunedTensors::read_narrow(const Piece& piece) const {
  std::vector<double> values(size_t(piece.data.numel()));
  Piece wide = piece;
  wide.logical.dtype = DType::kF64;
  wide.data = tensor_over(std::span(values));
  base_->read(std::span(&wide, 1));
  add_product(wide);
  std::vector<std::byte> rounded(size_t(piece.data.bytes()));
  copy_convert(wide.data,
               {rounded.data(), piece.data.dtype, Device::kCpu, Shape{piece.data.numel()}});
  copy_from_host(piece.data, 0, rounded);
  finish_copies_from_host();
}

// Row by row of the box, expert by expert.
void TunedTensors::add_product(const Piece& piece) const {
  const Box& box = piece.box;
  const AdapterShape& adapter = adapters_.at(piece.logical.name);
  const int dim = box.offset.ndim() - 2;  // of the rows
  ASHLAR_ASSERT(dim >= 0 && dim <= 1 && piece.data.device != Device::kMeta);
  const int64_t rows = box.length[dim], cols = box.length[dim + 1];
  const AdapterValues values = dim == 1
                                   ? values_of(piece.logical.name, box.offset[0], box.length[0])
                                   : values_of(piece.logical.name);
  std::vector<double> row(static_cast<size_t>(cols));
  const Tensor sum = tensor_over(std::span(row));
  for (int64_t i = 0; i < piece.data.numel() / cols; ++i) {
    const int64_t expert = i / rows, in_box = box.offset[dim] + i % rows;
    const double* b = values.b.data() + (expert * adapter.rows + in_box) * adapter.rank;
    const double* a = values.a.data() + expert * adapter.rank * adapter.cols + box.offset[dim + 1];
    const Tensor there = piece.data.view({piece.data.numel()}).slice(i * cols, (i + 1) * cols);
    std::vector<std::byte> bytes(size_t(there.bytes()));
    copy_to_host(there, 0, bytes);
    const Tensor here{bytes.data(), there.dtype, Device::kCpu, there.shape};
    copy_convert(here, sum);
    for (int64_t k = 0; k < adapter.rank; ++k) {
      const double factor = scale_ * b[k];
      for (int64_t j = 0; j < cols; ++j) row[size_t(j)] += factor * a[k * adapter.cols + j];
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
