// Ops whose products may run on matrix units: near the CPU's reference in fp64 as a whole and in
// every element, with the same bits in every mode and the same workspace on meta.
#pragma once

#include "tests/kernels/gpu/op_case.h"

namespace ashlar::kernels {

struct Bar {
  double of_all;      // error of an output over its size, both as 2-norms
  double of_largest;  // error of an element over the largest one
};
inline constexpr Bar kFloatBar{1e-5, 2e-5};

inline void expect_within(const Output& got, const std::vector<double>& want, const Bar& bar,
                          const std::string& name) {
  const std::vector<double> values = values_of(got.tensor);
  ASSERT_EQ(values.size(), want.size()) << name;
  double error = 0, size = 0, most = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (values[i] == want[i]) continue;  // also infinite ones
    const double d = values[i] - want[i];
    ASSERT_TRUE(std::isfinite(d)) << name << ": " << got.name << "[" << i << "] is " << values[i]
                                  << ", the fp64 reference " << want[i];
    error += d * d;
    most = std::max(most, std::abs(d));
  }
  for (const double w : want) {
    if (!std::isfinite(w)) continue;
    size += w * w;
    largest = std::max(largest, std::abs(w));
  }
  EXPECT_LE(std::sqrt(error), bar.of_all * std::sqrt(size)) << name << ": " << got.name;
  EXPECT_LE(most, bar.of_largest * largest) << name << ": " << got.name;
}

// The costs of all calls, but for packed weights, which each device has in a form of its own.
inline std::vector<std::string> costs_of(const Bench& bench) {
  std::vector<std::string> costs;
  for (const Call& c : bench.calls())
    if (c.op != "pack")
      costs.push_back(fmt::format("{}: {} flop, {} bytes", c.op, c.cost.flop, c.cost.bytes));
  return costs;
}

// Own kernels compute in fp32 without matrix units, so that their bits are the same on every
// device.  A library has bits of its own.
enum class Products { kOwn, kOfLibrary };

// bars: one for each output; in fp32 those of own kernels are kFloatBar.
inline void expect_product_op(const std::string& name, DType type, const std::vector<Bar>& bars,
                              const PlacedOp& op, Products products = Products::kOwn) {
  if (!is_checked()) return;
  if (const std::string reason = device::missing(); !reason.empty()) GTEST_SKIP() << reason;
  Bench exact;
  Place reference(cpu::kOps, exact);
  std::vector<std::vector<double>> want;
  for (const Output& output : op(reference)) want.push_back(values_of(output.tensor));
  ASSERT_EQ(want.size(), bars.size());
  const Precision precision{DType::kF32, type};
  const bool known_bits = type == DType::kF32 && products == Products::kOwn;
  int64_t workspace = 0;
  std::vector<std::string> costs;
  uint64_t bits = 0;
  for (int run = 0; run < num_runs(); ++run) {
    const std::string in_mode = name + ", " + select_run(run);
    Bench bench(precision, false);
    Place place(gpu::kOps, bench, kProductWorkspaceBytes);
    const std::vector<Output> outputs = op(place);
    ASSERT_EQ(outputs.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      expect_within(outputs[i], want[i], known_bits ? kFloatBar : bars[i], in_mode);
    const uint64_t sum = checksum_of(outputs);
    if (run == 0) bits = known_bits ? expected_checksum(name) : sum;
    EXPECT_EQ(fmt::format("{} {:016x}", name, sum), fmt::format("{} {:016x}", name, bits))
        << in_mode;
    workspace = place.workspace_bytes();
    costs = costs_of(bench);
  }
  device::select_mode(0);
  Bench on_meta(precision, false, 1, Device::kMeta);
  Place meta(gpu::kOps, on_meta);
  op(meta);
  EXPECT_EQ(on_meta.taken().peak_bytes(), workspace) << name;
  EXPECT_EQ(costs_of(on_meta), costs) << name;
  if (products == Products::kOwn) return;  // whose tests have no weights in the CPU's form
  Bench on_cpu(precision, false);
  Place cpu(cpu::kOps, on_cpu, kProductWorkspaceBytes);
  op(cpu);
  EXPECT_EQ(costs_of(on_cpu), costs) << name;
}

}  // namespace ashlar::kernels
