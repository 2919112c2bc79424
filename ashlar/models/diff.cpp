// How it works.  match() pairs the tensors of both sides by name.  To compare values, it cuts the
// pairs of one shape into slabs in A's order; each worker reads a slab of both sides, each in its
// own type, compares range by range, and adds the result to the tensor's ValueDiff under a lock.
// Counts and maxima do not depend on the order of slabs.
#include "ashlar/models/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>

#include "ashlar/models/slabs.h"

namespace ashlar::models {
namespace {

float value_of(bf16 x) {
  return float(x);
}
template <typename T>
T value_of(T x) {
  return x;
}

template <typename T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// Elements of one type differ if their bits do, those of two types if their values do; all NaN are
// equal.
template <typename A, typename B>
bool differ(A a, B b) {
  if constexpr (std::is_same_v<A, B>) {
    return !same_bits(a, b);
  } else {
    const auto x = double(value_of(a)), y = double(value_of(b));
    return !(x == y || (std::isnan(x) && std::isnan(y)));
  }
}

template <typename A, typename B>
ValueDiff compare_one_by_one(const A* a, const B* b, int64_t count) {
  ValueDiff found;
  for (int64_t i = 0; i < count; ++i) {
    if (!differ(a[i], b[i])) continue;
    ++found.differing;
    const auto x = double(value_of(a[i])), y = double(value_of(b[i]));
    if (std::isfinite(x) && std::isfinite(y))
      found.max_abs = std::max(found.max_abs, std::abs(x - y));
    else
      ++found.not_finite;
  }
  return found;
}

// Compares without branches if every element is finite and no sum overflows, else one by one.
template <typename A, typename B>
ValueDiff compare_few(const A* a, const B* b, int64_t count) {
  if constexpr (std::is_same_v<A, B>)
    if (std::memcmp(a, b, size_t(count) * sizeof(A)) == 0) return {};
  ValueDiff found;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double distance = std::abs(double(value_of(a[i])) - double(value_of(b[i])));
    sum += distance;
    found.max_abs = distance > found.max_abs ? distance : found.max_abs;
  }
  if (!std::isfinite(sum)) return compare_one_by_one(a, b, count);
  for (int64_t i = 0; i < count; ++i) found.differing += differ(a[i], b[i]);
  return found;
}

template <typename A, typename B>
ValueDiff compare(const A* a, const B* b, int64_t count) {
  constexpr int64_t kFew = 1024;  // they stay in the first cache
  ValueDiff found;
  for (int64_t i = 0; i < count; i += kFew)
    found.add(compare_few(a + i, b + i, std::min(kFew, count - i)));
  return found;
}

// Calls body with a pointer to elements of the tensor's type.  F16 is compared only by its bits, as
// integers.
template <typename F>
ValueDiff with_elements(const Tensor& tensor, F&& body) {
  const std::byte* data = tensor.data;
  switch (tensor.dtype) {
    case DType::kF64:
      return body(reinterpret_cast<const double*>(data));
    case DType::kF32:
      return body(reinterpret_cast<const float*>(data));
    case DType::kBF16:
      return body(reinterpret_cast<const bf16*>(data));
    case DType::kI64:
      return body(reinterpret_cast<const int64_t*>(data));
    case DType::kI32:
      return body(reinterpret_cast<const int32_t*>(data));
    case DType::kI16:
      return body(reinterpret_cast<const int16_t*>(data));
    case DType::kI8:
      return body(reinterpret_cast<const int8_t*>(data));
    case DType::kU64:
      return body(reinterpret_cast<const uint64_t*>(data));
    case DType::kU32:
      return body(reinterpret_cast<const uint32_t*>(data));
    case DType::kF16:
    case DType::kU16:
      return body(reinterpret_cast<const uint16_t*>(data));
    case DType::kU8:
    case DType::kBool:
      return body(reinterpret_cast<const uint8_t*>(data));
  }
  ASHLAR_FAIL(kConfig, "elements of a type that is not known");
}

ValueDiff compare(const Tensor& a, const Tensor& b) {
  return with_elements(a, [&](const auto* x) {
    return with_elements(b, [&](const auto* y) { return compare(x, y, a.numel()); });
  });
}

std::unordered_map<std::string_view, const StoredTensor*> by_name(const StoredTensors& side) {
  std::unordered_map<std::string_view, const StoredTensor*> found;
  for (const StoredTensor& tensor : side.tensors()) found[tensor.logical.name] = &tensor;
  return found;
}

class Comparison {
 public:
  Comparison(const StoredTensors& a, const StoredTensors& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  Diff run() {
    match();
    if (options_.values) compare_values();
    return std::move(result_);
  }

 private:
  // Whether tensors of the component are compared: not if only one side can hold it.
  bool wanted(checkpoint::Component component) {
    if (options_.component && component != *options_.component) return false;
    if (component == checkpoint::Component::kModel || (!a_.hugging_face() && !b_.hugging_face()))
      return true;
    if (std::ranges::find(result_.left_out, component) == result_.left_out.end())
      result_.left_out.push_back(component);
    return false;
  }

  void match() {
    const auto in_a = by_name(a_), in_b = by_name(b_);
    for (const StoredTensor& tensor : a_.tensors()) {
      if (!wanted(tensor.component)) continue;
      TensorDiff each{tensor.logical.name, tensor.component, tensor.logical, {}, {}};
      const auto other = in_b.find(tensor.logical.name);
      if (other != in_b.end()) {
        each.b = other->second->logical;
        pairs_.push_back({result_.tensors.size(), &tensor, other->second});
      }
      result_.tensors.push_back(std::move(each));
    }
    for (const StoredTensor& tensor : b_.tensors())
      if (!in_a.contains(tensor.logical.name) && wanted(tensor.component))
        result_.tensors.push_back({tensor.logical.name, tensor.component, {}, tensor.logical, {}});
  }

  void compare_values() {
    std::erase_if(pairs_, [](const Pair& pair) {
      return !(pair.a->logical.global_shape == pair.b->logical.global_shape);
    });
    std::vector<LogicalTensor> tensors;
    std::vector<TensorRange> ranges;
    for (const Pair& pair : pairs_) {
      result_.tensors[pair.place].values.emplace();
      ranges.push_back({tensors.size(), 0, pair.a->logical.global_shape.numel()});
      tensors.push_back(pair.a->logical);
    }
    std::vector<Scratch> scratch(size_t(num_workers(options_.num_threads)));
    for_each_slab(
        cut_into_slabs(tensors, ranges, a_), options_.num_threads, options_.log, "comparing",
        [&](const Slab& slab, int worker) { compare_slab(slab, scratch[size_t(worker)]); });
  }

  struct Pair {
    size_t place;  // in result_.tensors
    const StoredTensor *a, *b;
  };
  // The elements of a slab, those of one side after those of the other.
  struct Scratch {
    std::vector<uint64_t> a, b;
  };

  // The ranges of the slab as tensors, each at its own elements of `memory`.
  std::vector<Tensor> read(const StoredTensors& side, const StoredTensor* Pair::*which,
                           const Slab& slab, std::vector<uint64_t>& memory) const {
    std::vector<int64_t> begin;
    int64_t used = 0;
    for (const TensorRange& range : slab) {
      begin.push_back(used);
      used += (range.count * size_of(side.read_type(*(pairs_[range.tensor].*which))) + 7) / 8;
    }
    memory.resize(std::max(memory.size(), size_t(used)));
    std::vector<Tensor> data;
    std::vector<Piece> pieces;
    for (size_t n = 0; n < slab.size(); ++n) {
      const StoredTensor& tensor = *(pairs_[slab[n].tensor].*which);
      data.push_back({reinterpret_cast<std::byte*>(memory.data() + begin[n]),
                      side.read_type(tensor), Device::kCpu, Shape{slab[n].count}});
      add_pieces(tensor.logical, slab[n], data.back(), pieces);
    }
    side.read(pieces);
    return data;
  }

  void compare_slab(const Slab& slab, Scratch& scratch) {
    const std::vector<Tensor> a = read(a_, &Pair::a, slab, scratch.a),
                              b = read(b_, &Pair::b, slab, scratch.b);
    for (size_t n = 0; n < slab.size(); ++n) {
      const ValueDiff found = compare(a[n], b[n]);
      const std::lock_guard lock(mutex_);
      result_.tensors[pairs_[slab[n].tensor].place].values->add(found);
    }
  }

  const StoredTensors &a_, &b_;
  const DiffOptions& options_;
  Diff result_;
  std::vector<Pair> pairs_;
  std::mutex mutex_;  // of result_ while slabs are compared
};

}  // namespace

void ValueDiff::add(const ValueDiff& more) {
  differing += more.differing;
  not_finite += more.not_finite;
  max_abs = std::max(max_abs, more.max_abs);
}

bool TensorDiff::equal() const {
  return a && b && a->global_shape == b->global_shape && a->dtype == b->dtype &&
         (!values || values->differing == 0);
}

bool Diff::equal() const {
  return std::ranges::all_of(tensors, &TensorDiff::equal);
}

Diff diff(const StoredTensors& a, const StoredTensors& b, const DiffOptions& options) {
  return Comparison(a, b, options).run();
}

}  // namespace ashlar::models
