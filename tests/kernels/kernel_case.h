// One place for what every kernel test needs: a machine set-up (types, threads, instruction set),
// inputs that are the same numbers in every type, and the comparison of all paths with the fp64
// reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/rng.h"
#include "ashlar/kernels/context.h"
#include "ashlar/kernels/isa.h"
#include "ashlar/tensor/host_bytes.h"

namespace ashlar::kernels {

// Types of the stream and of what meets the products, as a model run chooses them.
struct Precision {
  DType stream = DType::kF64, product = DType::kF64;
};

// Columns of a fused product that are of other parts of the layer.
inline constexpr int64_t kOtherColumns = 3;

// A call of a kernel, as it recorded it.
struct Call {
  std::string_view op;
  Cost cost;
  DType dtype;
  TraceEvent::Varies varies;
  int64_t rows;
};

inline std::vector<Call> calls_of(const Trace& trace) {
  std::vector<Call> calls;
  for (const TraceEvent& e : trace.events())
    calls.push_back({trace.text(e.name), {e.flop, e.bytes}, e.dtype, e.varies, e.count});
  return calls;
}

inline Cost total(const std::vector<Call>& calls) {
  Cost sum;
  for (const Call& call : calls) sum.flop += call.cost.flop, sum.bytes += call.cost.bytes;
  return sum;
}

class Bench {
 public:
  explicit Bench(Precision precision = {}, bool reference = true, int num_threads = 1,
                 Device device = Device::kCpu)
      : precision_(precision), threads_(num_threads), allocator_(device), workspace_(workspace()) {
    context_.device = device;
    context_.trace = &trace_;
    trace_.start();
    context_.threads = &threads_;
    context_.workspace = &workspace_;
    context_.reference = reference;
  }
  const Context& context() const { return context_; }
  const Precision& precision() const { return precision_; }
  const Arena& taken() const { return workspace_; }
  std::vector<Call> calls() const { return calls_of(trace_); }

  Tensor zeros(DType dtype, const Shape& shape) {
    return tensors_.emplace_back(make_tensor(allocator_, dtype, shape, Tag::kInput)).tensor;
  }
  Tensor stream(const Shape& shape) { return zeros(precision_.stream, shape); }
  Tensor product(const Shape& shape) { return zeros(precision_.product, shape); }

  // Uniform in center +- 1, rounded to bf16: exact in every type; a function of the name.
  Tensor random(DType dtype, std::string_view name, const Shape& shape, double center = 0) {
    const Tensor from = zeros(DType::kF64, shape), to = zeros(dtype, shape);
    if (context_.meta()) return to;
    const Rng rng(1, name);
    for (int64_t i = 0; i < from.numel(); ++i)
      from.as<double>()[i] = double(float(bf16(float(center + 2 * rng.uniform(uint64_t(i)) - 1))));
    copy_convert(from, to);
    return to;
  }
  Tensor stream(std::string_view name, const Shape& shape, double center = 0) {
    return random(precision_.stream, name, shape, center);
  }
  Tensor product(std::string_view name, const Shape& shape, double center = 0) {
    return random(precision_.product, name, shape, center);
  }
  Tensor ints(const std::vector<int32_t>& values) {
    const Tensor t = zeros(DType::kI32, {int64_t(values.size())});
    if (!context_.meta()) std::copy(values.begin(), values.end(), t.as<int32_t>());
    return t;
  }

 private:
  Arena workspace() {
    if (allocator_.device() == Device::kMeta) return Arena(Device::kMeta);
    return Arena(allocator_, 1 << 18, Tag::kWorkspace);
  }

  Precision precision_;
  Threads threads_;
  Allocator allocator_;
  Arena workspace_;
  Trace trace_;
  std::list<OwnedTensor> tensors_;
  Context context_;
};

inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  if (tensor.device == Device::kGpu) {
    std::vector<std::byte> bytes(size_t(tensor.bytes()));
    copy_to_host(tensor, 0, bytes);
    return values_of(Tensor{bytes.data(), tensor.dtype, Device::kCpu, tensor.shape});
  }
  const auto push = [&]<typename T>(T*) {
    for (const T& x : tensor.span<T>()) values.push_back(double(x));
  };
  switch (tensor.dtype) {
    case DType::kF64:
      push(static_cast<double*>(nullptr));
      break;
    case DType::kF32:
      push(static_cast<float*>(nullptr));
      break;
    case DType::kI32:
      push(static_cast<int32_t*>(nullptr));
      break;
    case DType::kI64:
      push(static_cast<int64_t*>(nullptr));
      break;
    case DType::kBF16:
      for (const bf16 x : tensor.span<bf16>()) values.push_back(double(float(x)));
      break;
    default:
      ADD_FAILURE() << "no values of this type";
  }
  return values;
}

struct Output {
  std::string_view name;
  Tensor tensor;
};
// Runs the op on inputs that `bench` makes and returns what it wrote.
using Op = std::function<std::vector<Output>(Bench& bench)>;

inline double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double x : values) result = std::max(result, std::abs(x));
  return result;
}

// fp32 sums of some hundred terms and the named approximations stay within 1e-5 of the largest
// value (inputs are of order 1); bf16 adds one rounding, 2^-8 of the value.
inline void expect_close(const Output& output, const std::vector<double>& want,
                         const std::string& what) {
  const std::vector<double> got = values_of(output.tensor);
  ASSERT_EQ(got.size(), want.size()) << what;
  const double scale = 1e-5 * std::max(1.0, largest(want));
  const double own = output.tensor.dtype == DType::kBF16 ? 0x1p-8 : 0;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::abs(got[i] - want[i]), scale + own * std::abs(want[i]))
        << what << ": " << output.name << "[" << i << "] is " << got[i] << ", the fp64 reference "
        << want[i];
}

// A dry run records the same calls with the same cost and takes the same workspace.
inline void expect_same_on_meta(const Bench& real, const Op& op, const std::string& name) {
  Bench meta(real.precision(), false, 1, Device::kMeta);
  op(meta);
  EXPECT_EQ(meta.taken().peak_bytes(), real.taken().peak_bytes()) << name;
  const std::vector<Call> want = real.calls(), got = meta.calls();
  ASSERT_EQ(got.size(), want.size()) << name;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].op, want[i].op) << name;
    EXPECT_EQ(got[i].cost.bytes, want[i].cost.bytes) << name << ": " << got[i].op;
    EXPECT_EQ(got[i].cost.flop, want[i].cost.flop) << name << ": " << got[i].op;
    EXPECT_EQ(got[i].dtype, want[i].dtype) << name << ": " << got[i].op;
    EXPECT_EQ(got[i].varies, want[i].varies) << name << ": " << got[i].op;
    EXPECT_EQ(got[i].rows, want[i].rows) << name << ": " << got[i].op;
  }
}

// Every path of this machine, in fp32 and with bf16 products, on 1, 2 and 3 threads: near the fp64
// reference, and the same bits for any number of threads.
inline void expect_paths_agree(const std::string& name, const Op& op) {
  Bench exact;
  std::vector<std::vector<double>> want;
  for (const Output& output : op(exact)) want.push_back(values_of(output.tensor));
  const auto check = [&](Precision precision, bool reference, const std::string& path) {
    std::vector<std::vector<double>> first;
    for (const int num_threads : {1, 2, 3}) {
      Bench bench(precision, reference, num_threads);
      const std::vector<Output> outputs = op(bench);
      if (num_threads == 1) expect_same_on_meta(bench, op, name);
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (num_threads == 1) {
          expect_close(outputs[i], want[i], fmt::format("{}, {}", name, path));
          first.push_back(values_of(outputs[i].tensor));
        } else {
          EXPECT_EQ(values_of(outputs[i].tensor), first[i])
              << name << ", " << path << ": " << outputs[i].name << " with " << num_threads
              << " threads";
        }
      }
    }
  };
  const Isa best = isa();
  for (const Precision precision :
       {Precision{DType::kF32, DType::kF32}, Precision{DType::kF32, DType::kBF16}}) {
    const std::string types = fmt::format(" {}", name_of(precision.product));
    check(precision, true, fmt::format("reference{}", types));
    for (const Isa path : supported_isas()) {
      select_isa(path);
      check(precision, false, fmt::format("{}{}", name_of(path), types));
    }
    select_isa(best);
  }
}

// A weight in 1 +- 1, less the offset that its norm adds: both in steps that fp32 holds exactly.
inline Tensor weight_less(Bench& b, std::string_view name, const Shape& shape, double offset) {
  const Tensor w = b.stream(name, shape, 1);
  for (int64_t i = 0; i < w.numel() && !b.context().meta(); ++i)
    w.dtype == DType::kF64 ? w.as<double>()[i] -= offset : w.as<float>()[i] -= float(offset);
  return w;
}

// The same bits from both, on every path of this machine, in fp64, fp32 and with bf16 products.
inline void expect_same_bits(const std::string& name, const Op& one, const Op& other) {
  const auto check = [&](Precision precision, bool reference, const std::string& path) {
    Bench a(precision, reference), b(precision, reference);
    const std::vector<Output> got = one(a), want = other(b);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(values_of(got[i].tensor), values_of(want[i].tensor))
          << name << ", " << path << ": " << got[i].name;
  };
  const Isa best = isa();
  for (const Precision precision :
       {Precision{}, Precision{DType::kF32, DType::kF32}, Precision{DType::kF32, DType::kBF16}}) {
    check(precision, true, "reference");
    for (const Isa path : supported_isas()) {
      select_isa(path);
      check(precision, false, std::string(name_of(path)));
    }
    select_isa(best);
  }
}

// d loss / d x by central differences in fp64 equals `gradient`, within `tolerance` of it (and 1e-8
// of 1).
inline void expect_gradient(const std::string& what, const Tensor& x,
                            const std::vector<double>& gradient,
                            const std::function<double()>& loss, double tolerance = 1e-6) {
  ASSERT_EQ(size_t(x.numel()), gradient.size()) << what;
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < gradient.size(); ++i) {
    double& value = x.as<double>()[i];
    const double kept = value;
    value = kept + kStep;
    const double above = loss();
    value = kept - kStep;
    const double below = loss();
    value = kept;
    const double difference = (above - below) / (2 * kStep);
    ASSERT_LE(std::abs(difference - gradient[i]), tolerance * std::abs(gradient[i]) + 1e-8)
        << what << "[" << i << "]: differences give " << difference << ", backward " << gradient[i];
  }
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) sum += a.as<double>()[i] * b.as<double>()[i];
  return sum;
}

}  // namespace ashlar::kernels
