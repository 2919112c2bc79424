// Runs an op of the GPU in every mode of the emulator and compares it with the CPU's reference in
// fp64: near it, with the same bits in every mode and with warps of both sizes, and with the same
// workspace on meta.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/kernels/gpu/ops.h"
#include "ashlar/tensor/host_bytes.h"
#include "tests/kernels/gpu/device_array.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {

// Memory of the device for the workspace of cases.  A large one is used again as it was left, for
// the emulator fills what it hands out with NaN.
class CaseMemory final : public DeviceMemory {
 public:
  std::byte* take(int64_t bytes) override {
    const auto found = free_.find(bytes);
    if (found == free_.end()) return static_cast<std::byte*>(device::take(size_t(bytes)));
    std::byte* data = found->second;
    free_.erase(found);
    return data;
  }
  void give(std::byte* data, int64_t bytes) override {
    constexpr int64_t kLarge = 1 << 20;
    if (bytes < kLarge) return device::give(data);
    free_.emplace(bytes, data);
  }
  void copy_to_host(std::byte* to, const std::byte* from, int64_t bytes) override {
    EXPECT_EQ(device::copy_bytes(to, from, size_t(bytes)), "");
  }
  void copy_from_host(std::byte* to, const std::byte* from, int64_t bytes) override {
    EXPECT_EQ(device::copy_bytes(to, from, size_t(bytes)), "");
  }

 private:
  std::multimap<int64_t, std::byte*> free_;
};
// It is never destroyed: the emulator's records of what it handed out may end before.
inline CaseMemory& case_memory() {
  static CaseMemory& memory = *new CaseMemory;
  return memory;
}

// The workspace of a library's products, and some for the op.
inline constexpr int64_t kProductWorkspaceBytes = 40 << 20;

// Where a case runs: tensors in the memory of the device whose functions `ops` are, and a Context
// with these.  On meta there is no memory.
class Place {
 public:
  Place(const Ops& ops, Bench& host, int64_t workspace_bytes = 1 << 18)
      : context_(host.context()), host_(host), on_device_(&ops == &gpu::kOps && !context_.meta()) {
    context_.ops = &ops;
    if (context_.meta()) return;
    if (on_device_) context_.device = Device::kGpu;
    on_device_ ? allocator_.emplace(case_memory()) : allocator_.emplace(Device::kCpu);
    workspace_.emplace(*allocator_, workspace_bytes, Tag::kWorkspace);
    context_.workspace = &*workspace_;
  }
  Place(const Place&) = delete;

  const Context& context() const { return context_; }
  int64_t workspace_bytes() const { return context_.workspace->peak_bytes(); }

  Tensor zeros(DType dtype, const Shape& shape) { return moved(host_.zeros(dtype, shape)); }
  // Exact in every type, as Bench has it.
  Tensor random(DType dtype, std::string_view name, const Shape& shape, double center = 0) {
    return moved(host_.random(dtype, name, shape, center));
  }
  Tensor ints(const std::vector<int32_t>& values) { return moved(host_.ints(values)); }
  // To be filled; NaN in the memory of the emulator.
  Tensor unset(DType dtype, const Shape& shape) {
    const Tensor t = host_.zeros(dtype, shape);
    return on_device_ ? on_device(t) : t;
  }
  // Has `change` write the elements of a tensor, as T, in memory of the host.
  template <typename T, typename Change>
  void edit(const Tensor& t, Change change) {
    if (context_.meta()) return;
    std::vector<T> elements(size_t(t.bytes()) / sizeof(T));
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(elements));
    copy_to_host(t, 0, bytes);
    change(elements.data());
    copy_from_host(t, 0, bytes);
    finish_copies_from_host();
  }
  DType stream() const { return host_.precision().stream; }
  DType product() const { return host_.precision().product; }
  DType wide() const { return stream() == DType::kF64 ? DType::kF64 : DType::kF32; }

 private:
  Tensor on_device(Tensor t) {
    t.data = memory_.emplace_back(size_t(t.bytes())).data();
    t.device = Device::kGpu;
    t.memory = &case_memory();
    return t;
  }
  Tensor moved(const Tensor& from) {
    if (!on_device_) return from;
    const Tensor to = on_device(from);
    EXPECT_EQ(device::copy_bytes(to.data, from.data, size_t(from.bytes())), "");
    return to;
  }

  Context context_;
  Bench& host_;
  bool on_device_;
  std::list<device::DeviceArray<std::byte>> memory_;
  std::optional<Allocator> allocator_;  // of the workspace
  std::optional<Arena> workspace_;
};
using PlacedOp = std::function<std::vector<Output>(Place&)>;

inline uint64_t checksum_of(const std::vector<Output>& outputs) {
  uint64_t sum = device::checksum(std::vector<std::byte>());
  for (const Output& o : outputs) {
    std::vector<std::byte> bytes(size_t(o.tensor.bytes()));
    copy_to_host(o.tensor, 0, bytes);
    sum = device::checksum(bytes, sum);
  }
  return sum;
}

// Every mode of the device, as often as ASHLAR_GPU_REPEATS says: on a card, which has one mode,
// equal bits in many runs say that no thread was ahead of another.
inline int num_runs() {
  const char* repeats = std::getenv("ASHLAR_GPU_REPEATS");
  return device::num_modes() * (repeats ? std::max(1, std::atoi(repeats)) : 1);
}
inline std::string select_run(int run) {
  return device::select_mode(run % device::num_modes());
}

// Within 2e-6 of the largest value, or of the inputs, which are of order 1; bf16 adds one rounding.
inline void expect_near_reference(const Output& got, const std::vector<double>& want,
                                  const std::string& name) {
  const std::vector<double> values = values_of(got.tensor);
  ASSERT_EQ(values.size(), want.size()) << name;
  const double scale = 2e-6 * std::max(1.0, largest(want)),
               own = got.tensor.dtype == DType::kBF16 ? 0x1p-8 : 0;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::abs(values[i] - want[i]), scale + own * std::abs(want[i]))
        << name << ": " << got.name << "[" << i << "] is " << values[i] << ", the fp64 reference "
        << want[i];
}

// The checksum that `name` has on every device, from tests/kernels/gpu/checksums.txt.
uint64_t expected_checksum(const std::string& name);

// Whether a case is checked.  Where all take long, as under ThreadSanitizer, ASHLAR_GPU_EVERY names
// n: the first case of each test and every nth after it are.
inline bool is_checked() {
  static const testing::TestInfo* last_test = nullptr;
  static int number = 0;
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  number = test == last_test ? number + 1 : 0;
  last_test = test;
  const char* every = std::getenv("ASHLAR_GPU_EVERY");
  return !every || number % std::max(1, std::atoi(every)) == 0;
}

inline void expect_op(const std::string& name, const Precision& precision, const PlacedOp& op) {
  if (!is_checked()) return;
  if (const std::string reason = device::missing(); !reason.empty()) GTEST_SKIP() << reason;
  Bench exact;
  Place reference(cpu::kOps, exact);
  std::vector<std::vector<double>> want;
  for (const Output& output : op(reference)) want.push_back(values_of(output.tensor));
  int64_t workspace = 0;
  for (int run = 0; run < num_runs(); ++run) {
    const std::string in_mode = name + ", " + select_run(run);
    Bench bench(precision);
    Place place(gpu::kOps, bench);
    const std::vector<Output> outputs = op(place);
    ASSERT_EQ(outputs.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) expect_near_reference(outputs[i], want[i], in_mode);
    EXPECT_EQ(fmt::format("{} {:016x}", name, checksum_of(outputs)),
              fmt::format("{} {:016x}", name, expected_checksum(name)))
        << in_mode;
    workspace = place.workspace_bytes();
  }
  device::select_mode(0);
  Bench on_meta(precision, true, 1, Device::kMeta);
  Place meta(gpu::kOps, on_meta);
  op(meta);
  EXPECT_EQ(on_meta.taken().peak_bytes(), workspace) << name;
}

// The bits of the CPU, which computes on the host what the device computes on its copy.
inline void expect_bits_of_cpu(const std::string& name, const PlacedOp& op,
                               Precision precision = {}) {
  if (!is_checked()) return;
  if (const std::string reason = device::missing(); !reason.empty()) GTEST_SKIP() << reason;
  Bench host(precision);
  Place cpu(cpu::kOps, host);
  const uint64_t want = checksum_of(op(cpu));
  for (int run = 0; run < num_runs(); ++run) {
    const std::string mode_name = select_run(run);
    Bench bench(precision);
    Place place(gpu::kOps, bench);
    EXPECT_EQ(checksum_of(op(place)), want) << name << ", " << mode_name;
  }
  device::select_mode(0);
}

}  // namespace ashlar::kernels
